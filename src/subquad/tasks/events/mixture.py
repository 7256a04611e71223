"""A head without an intensity (Shchur et al. 2020): gaps are distributed as a mixture of log-normal distributions."""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.special import log_ndtr, ndtr

from subquad.models.initialising import initialise
from subquad.tasks.events.cells import LEAST, PRECISION, Cells, cells_of, first_cell, log_normal_mass
from subquad.tasks.events.forecasts import Forecast
from subquad.tasks.events.likelihood import Terms
from subquad.tasks.events.scales import Scales

ONE = math.log(math.e - 1.0)
"""Number whose softplus is 1."""

SMALLER = 0.1
"""Factor of the initial weights of a mixture that starts as a static one, which large weights would disturb."""

PARTS, ROUNDS = 16, 6
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

    def log_mass(self, cells: Cells) -> Float[Tensor, "e"]:
        """Log-probability of the cell of each gap."""
        z, halves = (cells.centres[:, None] - self.means) / self.deviations, cells.halves[:, None] / self.deviations
        return torch.logsumexp(self.log_weights + log_normal_mass(z, halves), dim=-1)

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

    A gap that is recorded on a grid of width r stands for all gaps from gap - r / 2 to gap + r / 2. Its density is the
    probability of this cell divided by its width, so that no component, however narrow, gives a density above 1 / r, and
    for components much wider than r it is the density of the mixture. Gaps of 0, and others below the shortest one of the
    training sequences, cannot be told apart. They share the cell from 0 to where that of the shortest gap begins.
    """

    starts: Tensor  # mean log-gap of each component at the start
    widths: Tensor  # standard deviation of each component at the start

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
        initialise(self.gaps, self.read, self.weigh, generator=generator)
        self._start(components)

    def _start(self, components: int) -> None:
        """Lets the mixture start as the static one of the scales, or spread over all log-gaps if they have none.

        The outputs of `gaps` shift each component in units of its width at the start, so that narrow ones stay in place.
        """
        weights, means, widths = torch.tensor(self.scales.renewal or [(1.0, 0.0, 1.0)] * components).T.contiguous()
        biases = [weights.log(), torch.zeros(components), torch.full((components,), ONE)]
        if not self.scales.renewal:
            means, widths = (torch.full_like(means, at) for at in (self.scales.log_gap_mean, self.scales.log_gap_deviation))
            biases = [torch.zeros(components), torch.linspace(-1.5, 1.5, components), torch.zeros(components)]
        self.register_buffer("starts", means, persistent=False)
        self.register_buffer("widths", widths, persistent=False)
        with torch.no_grad():
            self.gaps.bias.copy_(torch.cat(biases))
            if self.scales.renewal:
                self.gaps.weight.mul_(SMALLER)

    def mixture(self, h: Float[Tensor, "e w"]) -> Mixture:
        """Distribution of the gap after each event."""
        weights, means, deviations = self.gaps(h).chunk(3, dim=-1)
        means = self.starts + self.widths * means
        at_mean = means.detach().exp().clamp(min=self.scales.resolution)
        least = LEAST * (self.scales.grid / at_mean).clamp(PRECISION, 1.0)
        deviations = self.widths * (F.softplus(deviations) + self.scales.narrowest) + least
        return Mixture(weights.log_softmax(-1), means, deviations)

    def terms(self, h: Float[Tensor, "e w"], gaps: Float[Tensor, "e"], types: Int[Tensor, "e"]) -> Terms:
        mixture, shortest = self.mixture(h), self.scales.resolution
        first = first_cell(shortest, self.scales.grid)
        cells = cells_of(gaps.clamp(min=shortest), self.scales.grid)
        below = mixture.log_below(torch.full_like(gaps, math.log(first))) - math.log(first)
        time = torch.where(gaps > first, mixture.log_mass(cells) - cells.log_widths, below)
        log_gaps = gaps.clamp(min=shortest).log()
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
