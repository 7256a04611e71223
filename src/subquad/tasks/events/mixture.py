"""A head without an intensity (Shchur et al. 2020): gaps are distributed as a mixture of log-normal distributions."""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.special import log_ndtr, ndtr

from subquad.models.initialising import initialise
from subquad.tasks.events.cells import LEAST, PRECISION, Cells, cells_of, first_cell, log_normal_mass, log_upper_tail
from subquad.tasks.events.competing import Competition, ReturnLaw, join
from subquad.tasks.events.forecasts import Drawn, Forecast
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

SOON = 1e-12
"""Smallest gap whose logarithm is taken, in place of 0."""

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
        return torch.logsumexp(self.log_weights + log_upper_tail(-z), dim=-1)

    def log_above(self, log_gaps: Float[Tensor, "e"]) -> Float[Tensor, "e"]:
        """Log-probability of a longer gap."""
        z = (log_gaps[:, None] - self.means) / self.deviations
        return torch.logsumexp(self.log_weights + log_upper_tail(z), dim=-1)

    def mean(self, horizon: float | Float[Tensor, "e"]) -> Float[Tensor, "e"]:
        """E min(gap, horizon): the sum of exp(m + s^2 / 2) over components, as far as they are below the horizon."""
        weights, means, deviations = self
        far = torch.as_tensor(horizon, dtype=means.dtype, device=means.device).log()[..., None]
        below = means + deviations.square() / 2.0 + log_ndtr((far - means) / deviations - deviations)
        above = far + log_ndtr((means - far) / deviations)
        return (weights + torch.logaddexp(below, above)).exp().sum(-1)

    def quantiles(
        self, levels: Float[Tensor, "q"], horizon: float, returns: ReturnLaw | None = None
    ) -> Float[Tensor, "e q"]:
        """Quantiles of the gap up to the horizon, by repeatedly dividing an interval of log-gaps into parts."""
        if not len(levels):
            return self.means.new_zeros(len(self.means), 0)
        weights, means, deviations = (part[:, :, None, None] for part in self)
        far = math.log(horizon)
        low = (self.means - 12.0 * self.deviations).amin(-1, keepdim=True).expand(-1, len(levels)).clamp(max=far)
        high = torch.full_like(low, far)
        for _ in range(ROUNDS):
            at = torch.lerp(low[..., None], high[..., None], torch.linspace(0.0, 1.0, PARTS + 1, dtype=low.dtype).to(low))
            below = (weights.exp() * ndtr((at[:, None] - means) / deviations)).sum(1)
            if returns is not None:
                below = 1.0 - (1.0 - below) * returns.survival(at.exp().flatten(1)).view(at.shape)
            after = (below < levels[:, None]).sum(-1, keepdim=True).clamp(1, PARTS)
            (low, high), (least, most) = (
                (values.gather(-1, after - 1)[..., 0], values.gather(-1, after)[..., 0]) for values in (at, below)
            )
        share = ((levels - least) / (most - least).clamp(min=1e-12)).clamp(0.0, 1.0)
        return torch.lerp(low, high, share).exp()

    def mean_with(self, returns: ReturnLaw, horizon: float) -> Float[Tensor, "e"]:
        """E min(gap, horizon) beside returns, each as if it came exactly when it is due.

        The integral of the survival function is a sum over the stretches between two returns. In each, the survival of
        returns is constant and the integral of the mixture's is the difference of E min(gap, x) at its ends.
        """
        due = returns.due.clamp(0.0, horizon).sort(-1).values
        points = torch.cat([torch.zeros_like(due[:, :1]), due, torch.full_like(due[:, :1], horizon)], dim=-1)
        means = torch.stack([self.mean(column) for column in points.unbind(-1)], dim=-1)
        left = returns.survival((points[:, 1:] + points[:, :-1]) / 2.0)
        return (left * means.diff()).sum(-1)

    def draw(self, generator: torch.Generator | None) -> Float[Tensor, "e"]:
        """A random gap after each event."""
        part = torch.multinomial(self.log_weights.exp(), 1, generator=generator)
        noise = torch.randn(part.shape, generator=generator, dtype=self.means.dtype).to(self.means)
        return (self.means.gather(-1, part) + self.deviations.gather(-1, part) * noise).exp()[:, 0]


class MixtureHead(nn.Module):
    """A log-normal mixture for the gap and a categorical distribution for the type: log f = log mixture(gap) + log p(type).

    A gap that is recorded on a grid of width r stands for all gaps from gap - r / 2 to gap + r / 2. Its density is the
    probability of this cell divided by its width, so that no component, however narrow, gives a density above 1 / r, and
    for components much wider than r it is the density of the mixture. Gaps of 0, and others below the shortest one of the
    training sequences, cannot be told apart. They share the cell from 0 to where that of the shortest gap begins.

    If types return after a fixed time (`returns.py`), the mixture is that of all other events, and whatever comes first is
    the next event (`competing.py`). The vectors then end with the time until each return is due.
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
        self.scales, self.types_see_gap, self.model_dim = scales, types_see_gap, model_dim
        self.gaps = nn.Linear(model_dim, 3 * components)
        self.read = nn.Linear(model_dim, 2 * inner)
        self.weigh = nn.Linear(inner, types)
        initialise(self.gaps, self.read, self.weigh, generator=generator)
        self.competition = Competition(model_dim, scales.return_parts, generator) if scales.returns else None
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
        weights, means, deviations = self.gaps(h[:, : self.model_dim]).chunk(3, dim=-1)
        means = self.starts + self.widths * means
        at_mean = means.detach().exp().clamp(min=self.scales.resolution)
        least = LEAST * (self.scales.grid / at_mean).clamp(PRECISION, 1.0)
        deviations = self.widths * (F.softplus(deviations) + self.scales.narrowest) + least
        return Mixture(weights.log_softmax(-1), means, deviations)

    def terms(self, h: Float[Tensor, "e w"], gaps: Float[Tensor, "e"], types: Int[Tensor, "e"]) -> Terms:
        mixture = self.mixture(h)
        if self.competition is None:
            time, log_types = self._log_times(mixture, gaps), self._log_types(h, self._log(gaps))
            return Terms(time, log_types.gather(-1, types[:, None])[:, 0])
        joint = self._joint(h, mixture, gaps)
        time = torch.logsumexp(joint, dim=-1)
        return Terms(time, joint.gather(-1, types[:, None])[:, 0] - time)

    def compensators(self, h: Float[Tensor, "e w"], gaps: Float[Tensor, "e"]) -> Float[Tensor, "e"]:
        returns = self._returns(h)
        passed = -self.mixture(h).log_above(self._log(gaps))
        return passed if returns is None else passed - returns.log_survival(gaps).sum(-1)

    def types_at(self, h: Float[Tensor, "e w"], gaps: Float[Tensor, "e"]) -> Float[Tensor, "e k"]:
        if self.competition is None:
            return self._log_types(h, self._log(gaps)).exp()
        return self._joint(h, self.mixture(h), gaps).softmax(-1)

    def intensities(self, h: Float[Tensor, "e w"], gaps: Float[Tensor, "e"]) -> Float[Tensor, "e k"]:
        mixture, returns = self.mixture(h), self._returns(h)
        if returns is None:
            joint = self._log_times(mixture, gaps)[:, None] + self._log_types(h, self._log(gaps))
        else:
            joint = self._joint(h, mixture, gaps)
        start = self._edges(gaps)[0]
        survival = mixture.log_above(start.clamp(min=SOON).log())
        survival = survival if returns is None else survival + returns.log_survival(start).sum(-1)
        return (joint - survival[:, None]).exp()

    def draw(self, h: Float[Tensor, "e w"], generator: torch.Generator | None = None) -> Drawn:
        gaps, returns = self.mixture(h).draw(generator), self._returns(h)
        recorded = self._recorded(gaps)
        types = torch.multinomial(self._log_types(h, self._log(recorded)).exp(), 1, generator=generator)[:, 0]
        if returns is None:
            return Drawn(recorded.clamp(max=self.scales.horizon), types)
        assert self.competition is not None
        times, kind = returns.draw(generator).min(-1)
        first = times < gaps
        gaps = torch.where(first, self._recorded(times), recorded)
        return Drawn(gaps.clamp(max=self.scales.horizon), torch.where(first, self.competition.kinds[kind], types))

    def forecast(self, h: Float[Tensor, "e w"], levels: Float[Tensor, "q"]) -> Forecast:
        mixture, returns, horizon = self.mixture(h), self._returns(h), self.scales.horizon
        mean = mixture.mean(horizon) if returns is None else mixture.mean_with(returns, horizon)
        return Forecast(mean, mixture.quantiles(levels, horizon, returns), self._mean_types(h, mixture, returns))

    def _log(self, gaps: Float[Tensor, "e"]) -> Float[Tensor, "e"]:
        """Logarithms of gaps, where those that are too short to be told apart are equal."""
        return gaps.clamp(min=self.scales.resolution).log()

    def _returns(self, h: Float[Tensor, "e w"]) -> ReturnLaw | None:
        """Distribution of the time until each type returns; None if no type does."""
        if self.competition is None:
            return None
        law: ReturnLaw = self.competition(h[:, : self.model_dim], h[:, self.model_dim :])
        return law

    def _recorded(self, gaps: Float[Tensor, "e"]) -> Float[Tensor, "e"]:
        """Gaps as they would be recorded: on the grid of the data, if there is one."""
        grid = self.scales.grid
        return (gaps / grid).round() * grid if grid else gaps

    def _log_times(self, mixture: Mixture, gaps: Float[Tensor, "e"]) -> Float[Tensor, "e"]:
        """Log-density of the mixture, as the probability of the cell of each gap divided by the width of the cell."""
        shortest = self.scales.resolution
        first = first_cell(shortest, self.scales.grid)
        cells = cells_of(gaps.clamp(min=shortest), self.scales.grid)
        below = mixture.log_below(torch.full_like(gaps, math.log(first))) - math.log(first)
        return torch.where(gaps > first, mixture.log_mass(cells) - cells.log_widths, below)

    def _edges(self, gaps: Float[Tensor, "e"]) -> tuple[Float[Tensor, "e"], Float[Tensor, "e"]]:
        """Ends of the cell of each gap."""
        first = first_cell(self.scales.resolution, self.scales.grid)
        half = cells_of(gaps.clamp(min=self.scales.resolution), self.scales.grid).log_widths.exp() / 2.0
        is_first = gaps <= first
        return torch.where(is_first, 0.0, gaps - half), torch.where(is_first, first, gaps + half)

    def _joint(self, h: Float[Tensor, "e w"], mixture: Mixture, gaps: Float[Tensor, "e"]) -> Float[Tensor, "e k"]:
        """Log-density of each gap and every type, where returns compete with the mixture."""
        returns = self._returns(h)
        assert returns is not None
        assert self.competition is not None
        low, high = self._edges(gaps)
        by_return, none = returns.log_causes(low, high)
        width = (high - low).log()
        others = self._log_times(mixture, gaps) + none
        by_return = by_return + (mixture.log_above(low.clamp(min=SOON).log()) - width)[:, None]
        return join(others[:, None] + self._log_types(h, self._log(gaps)), by_return, self.competition.kinds)

    def _mean_types(self, h: Tensor, mixture: Mixture, returns: ReturnLaw | None) -> Tensor:
        """Type probabilities averaged over gaps: those at the centre of each cell, weighted by the cell's probability."""
        if returns is None and not self.types_see_gap:
            return self._log_types(h, torch.zeros_like(h[:, 0])).exp()
        edges = torch.linspace(-FARTHEST, FARTHEST, CELLS + 1, dtype=h.dtype, device=h.device)
        middle, spread = self.scales.log_gap_mean, self.scales.log_gap_deviation
        weights, means, deviations = (part[..., None] for part in mixture)
        below = (weights.exp() * ndtr((middle + spread * edges[1:-1] - means) / deviations)).sum(1)
        ends = torch.zeros_like(below[:, :1])
        chances = torch.cat([ends, below, ends + 1.0], dim=-1).diff()
        centres = (middle + spread * (edges[1:] + edges[:-1]) / 2.0).expand(len(h), -1)
        by_cell = self._log_types(h[:, None], centres).exp()
        if returns is None:
            return (chances[..., None] * by_cell).sum(1)
        assert self.competition is not None
        types = ((chances * returns.survival(centres.exp()))[..., None] * by_cell).sum(1)
        types[:, self.competition.kinds] += returns.first(lambda due: mixture.log_above(due.clamp(min=SOON).log()).exp())
        return types / types.sum(-1, keepdim=True)

    def _log_types(self, h: Float[Tensor, "*#e w"], log_gaps: Float[Tensor, "*#e"]) -> Float[Tensor, "*e k"]:
        rest, slope = self.read(h[..., : self.model_dim]).chunk(2, dim=-1)
        if self.types_see_gap:
            standardised = (log_gaps - self.scales.log_gap_mean) / self.scales.log_gap_deviation
            rest = rest + slope * standardised.clamp(-FARTHEST, FARTHEST)[..., None]
        logits: Tensor = self.weigh(torch.tanh(rest))
        return logits.log_softmax(-1)
