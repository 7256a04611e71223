"""Returns in competition with all other events: whichever comes first is the next event.

With T the gap of the mixture and T_k the time until type k returns, which may never happen, the next gap is the least of
them. Thus the probability that nothing comes before g is the product of S(g) = P(T > g) and of all S_k(g) = P(T_k > g).
For a cell from a to b, the probabilities that the event in it is a return of type k, or none, are::

    [S_k(a) - S_k(b)] S(a) (product of S_j(b) over j < k) (product of S_j(a) over j > k)
    [S(a) - S(b)] (product of all S_j(b))

Their sum telescopes to the probability of the cell, whatever its width.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.special import log_ndtr, ndtr

from subquad.models.initialising import initialise
from subquad.tasks.events.cells import log_normal_mass
from subquad.tasks.events.returns import Return

LATEST = -8.0
"""Smallest time until a return, in its deviations, that is told apart: later than this, the return does not happen."""

FARTHEST = 100.0
"""Largest distance of a gap from a return, in its deviations, beyond which densities no longer change."""

SURVIVAL = 1e-6
"""Smallest probability that a type does not return, so that logarithms stay finite."""

SMALLER = 0.1
"""Factor of the initial weights by which the history changes the shares."""


class ReturnLaw(NamedTuple):
    """Time until each of k types returns after each of e events: a mixture of c truncated normal distributions, or never."""

    log_weights: Float[Tensor, "e k c"]  # -inf where a distribution is not of the type
    due: Float[Tensor, "e c"]
    deviations: Float[Tensor, "c"]

    def log_survival(self, gaps: Float[Tensor, "e"]) -> Float[Tensor, "e k"]:
        """Log-probability that a type does not return before a gap has passed."""
        later = ((self.due - gaps[:, None]) / self.deviations).clamp(2.0 * LATEST, -LATEST)
        chances = -torch.expm1((log_ndtr(later) - log_ndtr(self._z())).clamp(max=0.0))
        returned = (self.log_weights.exp() * chances[:, None]).sum(-1)
        return torch.log1p(-returned.clamp(max=1.0 - SURVIVAL))

    def survival(self, gaps: Float[Tensor, "e p"]) -> Float[Tensor, "e p"]:
        """Probability that no type returns before each of p gaps has passed."""
        return torch.stack([self.log_survival(column).sum(-1).exp() for column in gaps.unbind(-1)], dim=-1)

    def first(self, others: Callable[[Float[Tensor, "e"]], Float[Tensor, "e"]]) -> Float[Tensor, "e k"]:
        """Probability that the next event is a return of each type, where `others` is the survival of all other events.

        Each return is taken to come exactly when it is due.
        """
        chances = []
        for column in self.due.unbind(-1):
            log_survival = self.log_survival(column)
            chances.append(others(column)[:, None] * (log_survival.sum(-1, keepdim=True) - log_survival).exp())
        return (self.log_weights.exp() * torch.stack(chances, dim=-1)).sum(-1)

    def log_mass(self, low: Float[Tensor, "e"], high: Float[Tensor, "e"]) -> Float[Tensor, "e k"]:
        """Log-probability that a type returns between two gaps."""
        centres = (((low + high)[:, None] / 2.0 - self.due) / self.deviations).clamp(-FARTHEST, FARTHEST)
        halves = ((high - low)[:, None] / 2.0 / self.deviations).clamp(min=1e-30)
        by_part = log_normal_mass(centres, halves) - log_ndtr(self._z())
        return torch.logsumexp(self.log_weights + by_part[:, None], dim=-1)

    def log_causes(self, low: Float[Tensor, "e"], high: Float[Tensor, "e"]) -> tuple[Tensor, Tensor]:
        """Log-probabilities of a return of each type in a cell, and of no return up to its end, but for the mixture's."""
        start, end = self.log_survival(low), self.log_survival(high)
        none = torch.zeros_like(start[:, :1])
        before = torch.cat([none, end.cumsum(-1)[:, :-1]], dim=-1)
        after = start.sum(-1, keepdim=True) - start.cumsum(-1)
        return self.log_mass(low, high) + before + after, end.sum(-1)

    def draw(self, generator: torch.Generator | None) -> Float[Tensor, "e k"]:
        """A random time until each type returns; infinite if it does not."""
        weights = self.log_weights.exp()
        shares = torch.cat([weights, (1.0 - weights.sum(-1, keepdim=True)).clamp(min=0.0)], dim=-1)
        part = torch.multinomial(shares.flatten(0, 1), 1, generator=generator).view(shares.shape[:2])
        never = part == weights.shape[-1]
        part = part.clamp(max=weights.shape[-1] - 1)
        due, deviations = self.due.gather(-1, part), self.deviations[part]
        below = ndtr(-due / deviations)
        level = below + (1.0 - below) * torch.rand(below.shape, generator=generator, dtype=due.dtype).to(due)
        times = due + deviations * torch.special.ndtri(level.clamp(1e-12, 1.0 - 1e-7))
        return torch.where(never, torch.inf, times.clamp(min=0.0))

    def _z(self) -> Float[Tensor, "e c"]:
        """Time until each return in its deviations."""
        return (self.due / self.deviations).clamp(LATEST, -LATEST)


class Competition(nn.Module):
    """Turns vectors of events into the distribution of returns: shares as in the training data, changed by the history."""

    kinds: Tensor  # types that return
    members: Tensor  # k c, whether a distribution is of a type
    log_shares: Tensor  # share of the events of its type that return by each distribution
    log_others: Tensor  # share of the events of each type that do not return
    deviations: Tensor

    def __init__(self, model_dim: int, returns: Sequence[Return], generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.change = nn.Linear(model_dim, len(returns))
        initialise(self.change, generator=generator)
        with torch.no_grad():
            self.change.weight.mul_(SMALLER)
        kinds = list(dict.fromkeys(each.type for each in returns))
        members = torch.tensor([[each.type == kind for each in returns] for kind in kinds])
        shares = torch.tensor([each.share for each in returns])
        totals = (members * shares).sum(-1).clamp(max=0.99)
        self.register_buffer("kinds", torch.tensor(kinds), persistent=False)
        self.register_buffer("members", members, persistent=False)
        self.register_buffer("log_shares", shares.log(), persistent=False)
        self.register_buffer("log_others", torch.log1p(-totals), persistent=False)
        self.register_buffer("deviations", torch.tensor([each.deviation for each in returns]), persistent=False)

    def forward(self, h: Float[Tensor, "e w"], due: Float[Tensor, "e c"]) -> ReturnLaw:
        """The distribution after each event. Returns that should have come long before have no weight."""
        alive = log_ndtr((due / self.deviations).clamp(2.0 * LATEST, -LATEST))
        logits = self.log_shares + alive + self.change(h)
        by_type = logits[:, None].masked_fill(~self.members, -torch.inf)
        total = torch.logaddexp(torch.logsumexp(by_type, -1), self.log_others.expand(len(h), -1))
        return ReturnLaw(by_type - total[..., None], due, self.deviations)


def join(
    log_types: Float[Tensor, "e types"], log_returns: Float[Tensor, "e k"], kinds: Int[Tensor, "k"]
) -> Float[Tensor, "e types"]:
    """Adds the log-probabilities of returns to those of the types that return."""
    joined = log_types.clone()
    joined[:, kinds] = torch.logaddexp(log_types[:, kinds], log_returns)
    return joined
