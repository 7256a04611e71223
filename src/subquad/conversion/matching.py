"""The first stage: each layer's mechanism learns what the exact attention does with the same queries, keys and values.

Queries, keys and values are recorded from the teacher, so that errors of one layer do not reach another and all layers
learn at once. The loss (after Zhang et al. 2024, Hedgehog and LoLCATs) is the divergence of the attention weights, if the
mechanism has weights, plus the relative error of its output. Weights are compared for a random subset of the queries, to
save time.
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
"""Bound on the absolute logarithm of a gain."""


class Matched(NamedTuple):
    """Distance of a mechanism from the exact attention, by head."""

    divergence: Float[Tensor, "h"] | None  # mean KL(exact weights || weights) in nats; None without weights
    error: Float[Tensor, "h"]  # squared error of the output divided by its square

    @property
    def loss(self) -> Tensor:
        """The loss that matching minimizes."""
        return self.error.mean() if self.divergence is None else self.divergence.mean() + self.error.mean()


def match(attend: Any, call: Call, places: Int[Tensor, "r"]) -> Matched:
    """Compares a mechanism with softmax attention for the real queries at `places`, in float32 at least."""
    with without_autocast(call.q):
        precisely = precise(call.q.dtype)
        return _match(attend, call._replace(q=call.q.to(precisely), k=call.k.to(precisely), v=call.v.to(precisely)), places)


def _match(attend: Any, call: Call, places: Int[Tensor, "r"]) -> Matched:
    with torch.no_grad():
        exact = reference.softmax_weights(call.q, call.k, call.keep, call.causal, places)
        exact_output = exact @ call.v
    real = torch.ones_like(exact_output[:, 0, :, 0]) if call.keep is None else call.keep[:, places].to(exact_output.dtype)
    divergence = None
    if attend.traits.has_weights:
        weights = attend.weights(call.q, call.k, keep=call.keep, causal=call.causal, places=places)
        divergence = diverge(exact, weights, real)
        output = weights @ call.v
    elif call.causal:
        output = attend.causal(call.q, call.k, call.v, keep=call.keep)[0][:, :, places]
    else:
        output = attend(call.q, call.k, call.v, keep=call.keep)[:, :, places]
    missed, size = ((part.square().sum(-1) * real[:, None]).sum((0, 2)) for part in (output - exact_output, exact_output))
    return Matched(divergence, missed / size.clamp_min(TINY))


def diverge(
    exact: Float[Tensor, "b h r s"], weights: Float[Tensor, "b h r s"], real: Float[Tensor, "b r"]
) -> Float[Tensor, "h"]:
    """Mean over real queries of KL(exact || weights) = sum of exact (log exact - log weights)."""
    entropy = torch.special.entr(exact).sum(-1)
    crossed = -(exact * weights.clamp_min(TINY).log()).sum(-1)
    return ((crossed - entropy) * real[:, None]).sum((0, 2)) / real.sum().clamp_min(1)


def some_places(length: int, generator: torch.Generator) -> Int[Tensor, "r"]:
    """Random positions, at most `QUERIES`, of the queries that are compared."""
    return torch.randperm(length, generator=generator)[:QUERIES].sort().values


@torch.no_grad()
def listen(original: Convertible, batch: MaskedBatch, layers: Sequence[int]) -> dict[int, Call]:
    """Records the attention calls (q, k, v) of the teacher while it reads a batch, for these layers of a student.

    Only the heads that the student has are returned.
    """
    mechanisms = original.mechanisms(original.teacher)
    teachers = {layer: mechanisms[original.origins[layer]] for layer in layers}
    layer_of = {id(attend): layer for layer, attend in teachers.items()}
    with watched(list(teachers.values())) as calls:
        original.outputs(original.teacher, batch)
    return {layer_of[id(call.attend)]: _of_heads(call, original.kept_heads) for call in calls}


def _of_heads(call: Call, kept: Sequence[int]) -> Call:
    """Returns a call with these heads only."""
    if len(kept) == call.q.shape[1]:
        return call
    return call._replace(q=call.q[:, kept], k=call.k[:, kept], v=call.v[:, kept])


def match_step(
    original: Convertible, student: nn.Module, batch: MaskedBatch, layers: Sequence[int], generator: torch.Generator
) -> float:
    """Accumulates the gradients of one batch, layer after layer, and returns the mean of the layers' losses."""
    mechanisms, total = original.mechanisms(student), 0.0
    places = some_places(batch.tokens.shape[1], generator)
    for layer, call in listen(original, batch, layers).items():
        loss = match(mechanisms[layer], call, places.to(call.q.device)).loss
        torch.autograd.backward(loss)
        total += float(loss.detach())
    return total / max(1, len(layers))


@torch.no_grad()
def divergences(
    original: Convertible, student: nn.Module, batches: Sequence[MaskedBatch], layers: Sequence[int], seed: int
) -> dict[int, float]:
    """Mean divergence from the exact attention by layer, or the output's relative error without weights."""
    mechanisms = original.mechanisms(student)
    sums = dict.fromkeys(layers, 0.0)
    drawing = torch.Generator().manual_seed(seed)
    for batch in batches:
        places = some_places(batch.tokens.shape[1], drawing)
        for layer, call in listen(original, batch, layers).items():
            matched = match(mechanisms[layer], call, places.to(call.q.device))
            sums[layer] += float((matched.error if matched.divergence is None else matched.divergence).mean())
    return {layer: total / len(batches) for layer, total in sums.items()}


class Moments:
    """Running means and covariances of a layer's queries and keys, for each head."""

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
        """Mean of the queries and mean of the keys."""
        return [total / self.count for total in self.sums]

    def covariances(self) -> list[Float[Tensor, "h d d"]]:
        """Covariance of the queries and covariance of the keys."""
        return [
            squares / self.count - mean[..., :, None] * mean[..., None, :]
            for squares, mean in zip(self.squares, self.means(), strict=True)
        ]


class Gain:
    """Solves for the gain of a hybrid's far weights, for each head, from exact and actual weights beyond the window."""

    def __init__(self, attend: Any) -> None:
        self.attend = attend
        self.wanted: list[Float[Tensor, "rows h"]] = []
        self.odds: list[Float[Tensor, "rows h"]] = []

    def add(self, call: Call, places: Int[Tensor, "r"]) -> None:
        """Adds the real queries at `places`: the exact share beyond the window, and its log odds with a gain of 1."""
        arguments: Any = {"keep": call.keep, "causal": call.causal, "places": places}
        near, far = self.attend.shares(self.attend.weights(call.q, call.k, **arguments), call.keep, places)
        exact = reference.softmax_weights(call.q, call.k, call.keep, call.causal, places)
        real = torch.ones_like(near[:, 0]) if call.keep is None else call.keep[:, places]
        odds = far.log() - near.log() - self.attend.log_gain[:, None].to(far.dtype)
        for rows, held in ((self.wanted, self.attend.shares(exact, call.keep, places)[1]), (self.odds, odds)):
            rows.append(held.movedim(1, -1)[real > 0].double())

    def solve(self) -> Float[Tensor, "h"]:
        """Log gain with which the mean shares beyond the window are equal. It minimizes KL(exact || weights)."""
        wanted, odds = torch.cat(self.wanted).mean(0), torch.cat(self.odds)
        low, high = (torch.full_like(wanted, end) for end in (-GAINS, GAINS))
        for _ in range(60):
            middle = (low + high) / 2
            enough = torch.sigmoid(odds + middle).mean(0) >= wanted
            low, high = torch.where(enough, low, middle), torch.where(enough, middle, high)
        return (low + high) / 2


def calibrates(attend: nn.Module) -> bool:
    """Whether a mechanism can be calibrated on recorded queries and keys."""
    traits = traits_of(attend)
    return traits is not None and (traits.calibrates or traits.has_gain)


def calibrate(
    original: Convertible, student: nn.Module, batches: Sequence[MaskedBatch], layers: Sequence[int], seed: int
) -> None:
    """Calibrates the student on the teacher's queries and keys: feature maps first, then gains, which depend on them."""
    mechanisms, moments = original.mechanisms(student), {layer: Moments() for layer in layers}
    for batch in batches:
        for layer, call in listen(original, batch, layers).items():
            moments[layer].add(call)
    for layer in layers:
        if isinstance(attend := mechanisms[layer], Mechanism):
            attend.calibrate(*moments[layer].means(), *moments[layer].covariances())
    gains = {
        layer: Gain(attend) for layer in layers if (traits := traits_of(attend := mechanisms[layer])) and traits.has_gain
    }
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
