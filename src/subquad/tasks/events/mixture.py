"""A head without an intensity (Shchur et al. 2020): gaps are distributed as a mixture of log-normal distributions."""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.special import log_ndtr, ndtr

from subquad.tasks.events.forecasts import Forecast
from subquad.tasks.events.likelihood import Terms
from subquad.tasks.events.scales import Scales

NARROWEST = 0.05
"""Smallest standard deviation of a component, relative to that of all log-gaps, to avoid spikes at rounded times."""

PARTS, ROUNDS = 16, 4
"""A quantile is searched in `PARTS` parts of an interval, `ROUNDS` times, and then by linear interpolation."""

FARTHEST = 4.0
"""Types depend on the standardized log-gap up to this distance from its mean."""

CELLS = 32
"""Number of parts of the range of log-gaps over which type probabilities are averaged if the gap is not known."""


class Mixture(NamedTuple):
    """A mixture of normal distributions of the logarithm of a gap, for each of e events."""

    log_weights: Float[Tensor, "e m"]
    means: Float[Tensor, "e m"]
    deviations: Float[Tensor, "e m"]

    def log_density(self, log_gaps: Float[Tensor, "e"]) -> Float[Tensor, "e"]:
        """Log-density of the logarithm of a gap."""
        z = (log_gaps[:, None] - self.means) / self.deviations
        by_component = self.log_weights - self.deviations.log() - z.square() / 2.0
        return torch.logsumexp(by_component, dim=-1) - math.log(2.0 * math.pi) / 2.0

    def log_below(self, log_gaps: Float[Tensor, "e"]) -> Float[Tensor, "e"]:
        """Log-probability of a shorter gap."""
        z = (log_gaps[:, None] - self.means) / self.deviations
        return torch.logsumexp(self.log_weights + log_ndtr(z), dim=-1)

    def log_above(self, log_gaps: Float[Tensor, "e"]) -> Float[Tensor, "e"]:
        """Log-probability of a longer gap."""
        z = (log_gaps[:, None] - self.means) / self.deviations
        return torch.logsumexp(self.log_weights + log_ndtr(-z), dim=-1)

    def mean(self, horizon: float) -> Float[Tensor, "e"]:
        """E min(gap, horizon): the sum of exp(m + s^2 / 2) over components, as far as they are below the horizon."""
        weights, means, deviations = self
        far = math.log(horizon)
        below = means + deviations.square() / 2.0 + log_ndtr((far - means) / deviations - deviations)
        above = far + log_ndtr((means - far) / deviations)
        return (weights + torch.logaddexp(below, above)).exp().sum(-1)

    def quantiles(self, levels: Float[Tensor, "q"], horizon: float) -> Float[Tensor, "e q"]:
        """Quantiles of the gap up to the horizon, by repeatedly dividing an interval of log-gaps into parts."""
        weights, means, deviations = (part[:, :, None, None] for part in self)
        far = math.log(horizon)
        low = (self.means - 12.0 * self.deviations).amin(-1, keepdim=True).expand(-1, len(levels)).clamp(max=far)
        high = torch.full_like(low, far)
        for _ in range(ROUNDS):
            at = torch.lerp(low[..., None], high[..., None], torch.linspace(0.0, 1.0, PARTS + 1, dtype=low.dtype).to(low))
            below = (weights.exp() * ndtr((at[:, None] - means) / deviations)).sum(1)
            after = (below < levels[:, None]).sum(-1, keepdim=True).clamp(1, PARTS)
            (low, high), (least, most) = (
                (values.gather(-1, after - 1)[..., 0], values.gather(-1, after)[..., 0]) for values in (at, below)
            )
        share = ((levels - least) / (most - least).clamp(min=1e-12)).clamp(0.0, 1.0)
        return torch.lerp(low, high, share).exp()


class MixtureHead(nn.Module):
    """A log-normal mixture for the gap and a categorical distribution for the type: log f = log mixture(gap) + log p(type).

    Gaps up to the resolution of the data, including gaps of 0, cannot be told apart. Each has the same share of their common
    probability, P(gap <= resolution) / resolution, so that a gap of 0 has a finite density.
    """

    def __init__(
        self,
        model_dim: int,
        types: int,
        scales: Scales,
        *,
        components: int,
        inner: int,
        types_see_gap: bool,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.scales, self.types_see_gap = scales, types_see_gap
        self.gaps = nn.Linear(model_dim, 3 * components)
        self.read = nn.Linear(model_dim, 2 * inner)
        self.weigh = nn.Linear(inner, types)
        for layer in (self.gaps, self.read, self.weigh):
            nn.init.xavier_uniform_(layer.weight, generator=generator)
            nn.init.zeros_(layer.bias)
        with torch.no_grad():
            self.gaps.bias[components : 2 * components] = torch.linspace(-1.5, 1.5, components)

    def mixture(self, h: Float[Tensor, "e w"]) -> Mixture:
        """Distribution of the gap after each event. Initially it is about as wide as the distribution of training gaps."""
        weights, means, deviations = self.gaps(h).chunk(3, dim=-1)
        middle, spread = self.scales.log_gap_mean, self.scales.log_gap_deviation
        deviations = spread * (F.softplus(deviations) + NARROWEST)
        return Mixture(weights.log_softmax(-1), middle + spread * means, deviations)

    def terms(self, h: Float[Tensor, "e w"], gaps: Float[Tensor, "e"], types: Int[Tensor, "e"]) -> Terms:
        mixture, least = self.mixture(h), self.scales.resolution
        log_gaps = gaps.clamp(min=least).log()
        time = torch.where(
            gaps > least, mixture.log_density(log_gaps) - log_gaps, mixture.log_below(log_gaps) - math.log(least)
        )
        return Terms(time, self._log_types(h, log_gaps).gather(-1, types[:, None])[:, 0])

    def compensators(self, h: Float[Tensor, "e w"], gaps: Float[Tensor, "e"]) -> Float[Tensor, "e"]:
        return -self.mixture(h).log_above(gaps.clamp(min=self.scales.resolution).log())

    def types_at(self, h: Float[Tensor, "e w"], gaps: Float[Tensor, "e"]) -> Float[Tensor, "e k"]:
        return self._log_types(h, gaps.clamp(min=self.scales.resolution).log()).exp()

    def forecast(self, h: Float[Tensor, "e w"], levels: Float[Tensor, "q"]) -> Forecast:
        mixture, horizon = self.mixture(h), self.scales.horizon
        if not self.types_see_gap:
            types = self._log_types(h, torch.zeros_like(h[:, 0])).exp()
            return Forecast(mixture.mean(horizon), mixture.quantiles(levels, horizon), types)
        return Forecast(mixture.mean(horizon), mixture.quantiles(levels, horizon), self._mean_types(h, mixture))

    def _mean_types(self, h: Tensor, mixture: Mixture) -> Tensor:
        """Type probabilities averaged over gaps: those at the centre of each cell, weighted by the cell's probability."""
        edges = torch.linspace(-FARTHEST, FARTHEST, CELLS + 1, dtype=h.dtype, device=h.device)
        middle, spread = self.scales.log_gap_mean, self.scales.log_gap_deviation
        weights, means, deviations = (part[..., None] for part in mixture)
        below = (weights.exp() * ndtr((middle + spread * edges[1:-1] - means) / deviations)).sum(1)
        ends = torch.zeros_like(below[:, :1])
        chances = torch.cat([ends, below, ends + 1.0], dim=-1).diff()
        centres = middle + spread * (edges[1:] + edges[:-1]) / 2.0
        by_cell = self._log_types(h[:, None], centres.expand(len(h), -1)).exp()
        return (chances[..., None] * by_cell).sum(1)

    def _log_types(self, h: Float[Tensor, "*#e w"], log_gaps: Float[Tensor, "*#e"]) -> Float[Tensor, "*e k"]:
        rest, slope = self.read(h).chunk(2, dim=-1)
        if self.types_see_gap:
            standardised = (log_gaps - self.scales.log_gap_mean) / self.scales.log_gap_deviation
            rest = rest + slope * standardised.clamp(-FARTHEST, FARTHEST)[..., None]
        logits: Tensor = self.weigh(torch.tanh(rest))
        return logits.log_softmax(-1)
