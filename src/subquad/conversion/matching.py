"""The first stage: each layer's mechanism learns what the exact attention does with the same queries, keys and values.

These are the teacher's own, noted while it reads, so that no layer suffers from another's errors and all learn at once. What
is to become small (after Zhang et al. 2024, Hedgehog and LoLCATs) is the divergence of the weights, where a mechanism has
weights, and the error of what comes out. Weights are compared for some of the queries: a row each, which costs little.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from subquad.attention import Mechanism, traits_of
from subquad.attention.looking import Call, watched
from subquad.conversion.convertible import Convertible
from subquad.ops import reference
from subquad.ops.autocast import precise, without_autocast
from subquad.tasks.mlm.masking import MaskedBatch

QUERIES = 128
"""Largest number of queries of each sequence whose weights are compared in a step."""
TINY = 1e-10
"""Smallest weight in a divergence; smaller ones are raised to it."""
GAINS = 30.0
"""The largest logarithm of a gain, either way."""


class Matched(NamedTuple):
    """How far a mechanism is from the exact attention, by head."""

    divergence: Float[Tensor, "h"] | None  # KL(exact weights || its weights) of a query, in nats; None where it has none
    error: Float[Tensor, "h"]  # of the output: its squared error over its square

    @property
    def loss(self) -> Tensor:
        """The loss that matching minimizes."""
        return self.error.mean() if self.divergence is None else self.divergence.mean() + self.error.mean()


def match(attend: Any, call: Call, places: Int[Tensor, "r"]) -> Matched:
    """Compares a mechanism with softmax for the real queries at some places, in float32 at least."""
    with without_autocast(call.q):
        precisely = precise(call.q.dtype)
        return _match(attend, call._replace(q=call.q.to(precisely), k=call.k.to(precisely), v=call.v.to(precisely)), places)


def _match(attend: Any, call: Call, places: Int[Tensor, "r"]) -> Matched:
    with torch.no_grad():
        exact = reference.softmax_weights(call.q, call.k, call.keep, call.causal, places)
        wanted = exact @ call.v
    real = torch.ones_like(wanted[:, 0, :, 0]) if call.keep is None else call.keep[:, places].to(wanted.dtype)
    divergence = None
    if attend.options.traits.has_weights:
        own = attend.weights(call.q, call.k, keep=call.keep, causal=call.causal, places=places)
        divergence = diverge(exact, own, real)
        found = own @ call.v
    elif call.causal:
        found = attend.causal(call.q, call.k, call.v, keep=call.keep)[0][:, :, places]
    else:
        found = attend(call.q, call.k, call.v, keep=call.keep)[:, :, places]
    missed, size = ((part.square().sum(-1) * real[:, None]).sum((0, 2)) for part in (found - wanted, wanted))
    return Matched(divergence, missed / size.clamp_min(TINY))


def diverge(
    exact: Float[Tensor, "b h r s"], own: Float[Tensor, "b h r s"], real: Float[Tensor, "b r"]
) -> Float[Tensor, "h"]:
    """The mean over real queries of KL(exact || own) = sum of exact (log exact - log own)."""
    entropy = torch.special.entr(exact).sum(-1)
    crossed = -(exact * own.clamp_min(TINY).log()).sum(-1)
    return ((crossed - entropy) * real[:, None]).sum((0, 2)) / real.sum().clamp_min(1)


def some_places(length: int, generator: torch.Generator) -> Int[Tensor, "r"]:
    """Random positions, at most `QUERIES`, of the queries that are compared."""
    return torch.randperm(length, generator=generator)[:QUERIES].sort().values


@torch.no_grad()
def listen(original: Convertible, batch: MaskedBatch, layers: Sequence[int]) -> dict[int, Call]:
    """What the teacher's attention is asked in some layers while it reads a batch."""
    mechanisms = original.mechanisms(original.teacher)
    layer_of = {id(mechanisms[layer]): layer for layer in layers}
    with watched([mechanisms[layer] for layer in layers]) as calls:
        original.outputs(original.teacher, batch)
    return {layer_of[id(call.attend)]: call for call in calls}


def match_step(
    original: Convertible, student: nn.Module, batch: MaskedBatch, layers: Sequence[int], generator: torch.Generator
) -> float:
    """Adds the gradients of one batch, layer after layer, and gives the mean of the layers' losses."""
    own, total = original.mechanisms(student), 0.0
    places = some_places(batch.tokens.shape[1], generator)
    for layer, call in listen(original, batch, layers).items():
        loss = match(own[layer], call, places.to(call.q.device)).loss
        torch.autograd.backward(loss)
        total += float(loss.detach())
    return total / max(1, len(layers))


@torch.no_grad()
def divergences(
    original: Convertible, student: nn.Module, batches: Sequence[MaskedBatch], layers: Sequence[int], seed: int
) -> dict[int, float]:
    """Divergence from the exact attention by layer; the output's error where a mechanism has no weights."""
    own = original.mechanisms(student)
    sums = dict.fromkeys(layers, 0.0)
    drawing = torch.Generator().manual_seed(seed)
    for batch in batches:
        places = some_places(batch.tokens.shape[1], drawing)
        for layer, call in listen(original, batch, layers).items():
            found = match(own[layer], call, places.to(call.q.device))
            sums[layer] += float((found.error if found.divergence is None else found.divergence).mean())
    return {layer: total / len(batches) for layer, total in sums.items()}


class Moments:
    """Means and covariances of a layer's queries and keys, head by head, as they come in."""

    def __init__(self) -> None:
        self.count, self.sums, self.squares = 0.0, [], []  # type: ignore[var-annotated]

    def add(self, call: Call) -> None:
        """Adds the queries and keys of real positions."""
        q, k = call.q.double(), call.k.double()
        if call.keep is not None:
            q, k = (x * call.keep[:, None, :, None] for x in (q, k))
        self.count += q.shape[0] * q.shape[2] if call.keep is None else float(call.keep.sum())
        sums, squares = [x.sum((0, 2)) for x in (q, k)], [torch.einsum("bhnd,bhne->hde", x, x) for x in (q, k)]
        self.sums = sums if not self.sums else [a + b for a, b in zip(self.sums, sums, strict=True)]
        self.squares = squares if not self.squares else [a + b for a, b in zip(self.squares, squares, strict=True)]

    def means(self) -> list[Float[Tensor, "h d"]]:
        """The mean of queries, and that of keys."""
        return [total / self.count for total in self.sums]

    def covariances(self) -> list[Float[Tensor, "h d d"]]:
        """The covariance of queries, and that of keys."""
        return [
            squares / self.count - mean[..., :, None] * mean[..., None, :]
            for squares, mean in zip(self.squares, self.means(), strict=True)
        ]


class Gain:
    """How much of a hybrid's weight should lie beyond its window, head by head, and how much does."""

    def __init__(self, attend: Any) -> None:
        self.attend = attend
        self.wanted: list[Float[Tensor, "rows h"]] = []
        self.odds: list[Float[Tensor, "rows h"]] = []

    def add(self, call: Call, places: Int[Tensor, "r"]) -> None:
        """Real queries at some places. The odds are those of beyond against within, in nats, with a gain of 1."""
        given: Any = {"keep": call.keep, "causal": call.causal, "places": places}
        near, far = self.attend.shares(self.attend.weights(call.q, call.k, **given), call.keep, places)
        exact = reference.softmax_weights(call.q, call.k, call.keep, call.causal, places)
        real = torch.ones_like(near[:, 0]) if call.keep is None else call.keep[:, places]
        odds = far.log() - near.log() - self.attend.log_gain[:, None].to(far.dtype)
        for rows, held in ((self.wanted, self.attend.shares(exact, call.keep, places)[1]), (self.odds, odds)):
            rows.append(held.movedim(1, -1)[real > 0].double())

    def solve(self) -> Float[Tensor, "h"]:
        """The one with which the mean shares are the same, which is where KL(exact || own) is least in it; by bisection."""
        wanted, odds = torch.cat(self.wanted).mean(0), torch.cat(self.odds)
        low, high = (torch.full_like(wanted, end) for end in (-GAINS, GAINS))
        for _ in range(60):
            middle = (low + high) / 2
            enough = torch.sigmoid(odds + middle).mean(0) >= wanted
            low, high = torch.where(enough, low, middle), torch.where(enough, middle, high)
        return (low + high) / 2


def calibrates(attend: nn.Module) -> bool:
    """Whether something of a mechanism can be set by what it is asked."""
    traits = traits_of(attend)
    return traits is not None and (traits.calibrates or traits.has_gain)


def calibrate(
    original: Convertible, student: nn.Module, batches: Sequence[MaskedBatch], layers: Sequence[int], seed: int
) -> None:
    """Sets all that can be, on the teacher's own queries and keys: feature maps first, then what depends on them."""
    own, moments = original.mechanisms(student), {layer: Moments() for layer in layers}
    for batch in batches:
        for layer, call in listen(original, batch, layers).items():
            moments[layer].add(call)
    for layer in layers:
        if isinstance(attend := own[layer], Mechanism):
            attend.calibrate(*moments[layer].means(), *moments[layer].covariances())
    gains = {layer: Gain(attend) for layer in layers if (found := traits_of(attend := own[layer])) and found.has_gain}
    if gains:
        _set_gains(original, gains, batches, seed)


@torch.no_grad()
def _set_gains(original: Convertible, gains: dict[int, Gain], batches: Sequence[MaskedBatch], seed: int) -> None:
    drawing = torch.Generator().manual_seed(seed)
    for batch in batches:
        places = some_places(batch.tokens.shape[1], drawing)
        for layer, call in listen(original, batch, list(gains)).items():
            gains[layer].add(call, places.to(call.q.device))
    for gain in gains.values():
        gain.attend.log_gain.copy_(gain.solve())
