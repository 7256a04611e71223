"""A distribution of the next event without an intensity (Shchur et al. 2020): gaps as a mixture of log-normal ones."""

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
"""The least standard deviation of a component, in those of all logarithms of gaps: no spikes at rounded times."""

PARTS, ROUNDS = 16, 4
"""A quantile is looked for in so many parts of an interval, and so many times; then by a straight line."""

FARTHEST = 4.0
"""Types depend on the standardised logarithm of the gap up to this far from its mean."""

CELLS = 32
"""Parts of that range over which the types' probabilities are averaged where the gap is not known."""


class Mixture(NamedTuple):
    """A mixture of normal distributions of the logarithm of a gap."""

    log_weights: Float[Tensor, "e m"]
    means: Float[Tensor, "e m"]
    deviations: Float[Tensor, "e m"]

    def log_density(self, log_gaps: Float[Tensor, "e"]) -> Float[Tensor, "e"]:
        """Log-density of the logarithm of a gap."""
        z = (log_gaps[:, None] - self.means) / self.deviations
        each = self.log_weights - self.deviations.log() - z.square() / 2.0
        return torch.logsumexp(each, dim=-1) - math.log(2.0 * math.pi) / 2.0

    def log_below(self, log_gaps: Float[Tensor, "e"]) -> Float[Tensor, "e"]:
        """The logarithm of the chance of a shorter gap."""
        z = (log_gaps[:, None] - self.means) / self.deviations
        return torch.logsumexp(self.log_weights + log_ndtr(z), dim=-1)

    def log_above(self, log_gaps: Float[Tensor, "e"]) -> Float[Tensor, "e"]:
        """That of a longer one."""
        z = (log_gaps[:, None] - self.means) / self.deviations
        return torch.logsumexp(self.log_weights + log_ndtr(-z), dim=-1)

    def mean(self, horizon: float) -> Float[Tensor, "e"]:
        """E min(gap, horizon), in closed form: each component's exp(m + s^2 / 2) as far as it lies below the horizon."""
        weights, means, deviations = self
        far = math.log(horizon)
        below = means + deviations.square() / 2.0 + log_ndtr((far - means) / deviations - deviations)
        above = far + log_ndtr((means - far) / deviations)
        return (weights + torch.logaddexp(below, above)).exp().sum(-1)

    def quantiles(self, levels: Float[Tensor, "q"], horizon: float) -> Float[Tensor, "e q"]:
        """By cutting an interval of logarithms into parts, and the right part again, up to the horizon."""
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
    """log f(gap, type) = log mixture(gap) + log p(type), in closed form.

    Gaps that are no longer than the data's resolution, those of 0 among them, cannot be told from each other: each has
    the probability of all of them, spread evenly, P(gap <= resolution) / resolution. So a gap of 0 has a density, and a
    bounded one.
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
        """Distribution of the gap after each event. Before training it is about as wide as the gaps of the training data."""
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
        """Over all gaps: the probability of each cell times that of the types in its middle. The outer ones have no end."""
        edges = torch.linspace(-FARTHEST, FARTHEST, CELLS + 1, dtype=h.dtype, device=h.device)
        middle, spread = self.scales.log_gap_mean, self.scales.log_gap_deviation
        weights, means, deviations = (part[..., None] for part in mixture)
        below = (weights.exp() * ndtr((middle + spread * edges[1:-1] - means) / deviations)).sum(1)
        ends = torch.zeros_like(below[:, :1])
        chances = torch.cat([ends, below, ends + 1.0], dim=-1).diff()
        centres = middle + spread * (edges[1:] + edges[:-1]) / 2.0
        each = self._log_types(h[:, None], centres.expand(len(h), -1)).exp()
        return (chances[..., None] * each).sum(1)

    def _log_types(self, h: Float[Tensor, "*e w"], log_gaps: Float[Tensor, "*e"]) -> Float[Tensor, "*e k"]:
        rest, slope = self.read(h).chunk(2, dim=-1)
        if self.types_see_gap:
            standardised = (log_gaps - self.scales.log_gap_mean) / self.scales.log_gap_deviation
            rest = rest + slope * standardised.clamp(-FARTHEST, FARTHEST)[..., None]
        logits: Tensor = self.weigh(torch.tanh(rest))
        return logits.log_softmax(-1)
