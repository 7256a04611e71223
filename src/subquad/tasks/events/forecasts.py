"""Forecasts from an intensity: expected gap, quantiles of the gap, and type probabilities.

Gaps are bounded by a horizon, because the tail of a model beyond all gaps in the training data can be so heavy that its
mean is useless. Forecasts give E min(gap, horizon), and the horizon in place of quantiles beyond it.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from subquad.tasks.events.likelihood import LEAST, Intensity

POINTS = 96
"""Number of points between an event and the horizon at which the intensity is evaluated."""


class Forecast(NamedTuple):
    """Forecast of the event that follows each of e events."""

    gap: Float[Tensor, "e"]  # expected gap
    quantiles: Float[Tensor, "e q"]  # quantiles of the gap
    types: Float[Tensor, "e k"]  # probability of each type, regardless of the time


class Drawn(NamedTuple):
    """A random next event after each of e events."""

    gaps: Float[Tensor, "e"]
    types: Int[Tensor, "e"]


def forecast(intensity: Intensity, horizon: float, levels: Float[Tensor, "q"], events: Float[Tensor, "e w"]) -> Forecast:
    """Forecasts by numerical integration of the survival function S(t) = exp(-integral of lambda up to t).

    Points are denser near the event. Between two points the intensity is taken as constant, at the mean of both ends, so
    that S and its integral are exact and probabilities sum to 1.
    """
    at, by_type, reached = _reached(intensity, horizon, events)
    total, widths, passed = by_type.sum(-1), at.diff(), reached.diff()
    survival = torch.exp(-reached)
    here = survival[:, :-1] * -torch.expm1(-passed)  # probability that the event comes between two points
    safe = passed.clamp(min=1e-6)
    mean = (widths * survival[:, :-1] * torch.where(passed > 1e-6, -torch.expm1(-safe) / safe, 1.0)).sum(-1)
    shares = by_type / total[..., None]
    types = torch.einsum("ep,epk->ek", here, (shares[:, 1:] + shares[:, :-1]) / 2.0)
    types = types + survival[:, -1:] * shares[:, -1]
    return Forecast(mean, _cross(reached, at, -torch.log1p(-levels)), types / types.sum(-1, keepdim=True))


def draw_gaps(
    intensity: Intensity, horizon: float, events: Float[Tensor, "e w"], generator: torch.Generator | None = None
) -> Float[Tensor, "e"]:
    """Random gaps by inversion: the integral of the intensity over a gap is exponentially distributed with mean 1."""
    at, _, reached = _reached(intensity, horizon, events)
    uniform = torch.rand(len(events), 1, generator=generator, dtype=events.dtype).to(events)
    return _cross(reached, at, -torch.log1p(-uniform))[:, 0]


def _reached(
    intensity: Intensity, horizon: float, events: Float[Tensor, "e w"]
) -> tuple[Float[Tensor, "p"], Float[Tensor, "e p k"], Float[Tensor, "e p"]]:
    """Points of time after each event, the intensities there, and the integral of their sum up to each point."""
    u = torch.linspace(0.0, 1.0, POINTS, dtype=events.dtype, device=events.device)
    at = horizon * u**4
    by_type = intensity(at.expand(len(events), -1)).clamp(min=LEAST)
    total = by_type.sum(-1)
    passed = at.diff() * (total[:, 1:] + total[:, :-1]) / 2.0
    return at, by_type, torch.cat([torch.zeros_like(passed[:, :1]), passed.cumsum(-1)], dim=-1)


def _cross(reached: Float[Tensor, "e p"], at: Float[Tensor, "p"], levels: Float[Tensor, "*e q"]) -> Float[Tensor, "e q"]:
    """Where a rising, piecewise linear function reaches each level; the last point if it does not."""
    wanted = levels.to(reached.dtype).expand(len(reached), -1).contiguous()
    after = torch.searchsorted(reached.contiguous(), wanted).clamp(1, len(at) - 1)
    low, high = reached.gather(-1, after - 1), reached.gather(-1, after)
    share = ((wanted - low) / (high - low).clamp(min=LEAST)).clamp(0.0, 1.0)
    return at[after - 1] + share * (at[after] - at[after - 1])
