"""The likelihood of events under any intensity, that of a model or of the true process.

With lambda_k the intensity of type k after an event, lambda its sum over all types, and g the gap to the next event, of
type l::

    log f(g, l) = [log lambda(g) - integral from 0 to g of lambda] + [log lambda_l(g) - log lambda(g)]

The first bracket is the term of the time, the second that of the type.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

Intensity = Callable[[Float[Tensor, "e p"]], Float[Tensor, "e p k"]]
"""Maps times since each of e events to the intensities of all k types, given that no event came in between."""

Integral = Literal["monte-carlo", "trapezoid"]

LEAST = 1e-30
"""Smallest intensity: lower ones are raised to it, so that logarithms stay finite."""


class Terms(NamedTuple):
    """Log-likelihood of each event given those before it, in nats: the terms of the time and of the type."""

    time: Float[Tensor, "e"]
    type: Float[Tensor, "e"]


class Rule(NamedTuple):
    """A quadrature rule: the integral of f from 0 to g is approximately g times the sum of weight * f(g * at)."""

    at: Float[Tensor, "*e p"]  # points between 0 and 1, the same for all events or drawn for each
    weights: Float[Tensor, "*e p"]


def trapezoid(points: int, like: Tensor) -> Rule:
    """The trapezoid rule at cubes of evenly spaced points, which are denser right after an event."""
    at = torch.linspace(0.0, 1.0, points, dtype=like.dtype, device=like.device) ** 3
    halves = at.diff() / 2.0
    return Rule(at, F.pad(halves, (1, 0)) + F.pad(halves, (0, 1)))


def monte_carlo(points: int, like: Float[Tensor, "e"]) -> Rule:
    """Integrates over u with t = g u^3, at one random point in each of `points` equal parts of [0, 1].

    The estimate is unbiased. The points come from PyTorch's global generator, which the training loop seeds in each step.
    """
    drawn = torch.rand(*like.shape, points, dtype=like.dtype, device=like.device)
    u = (torch.arange(points, dtype=like.dtype, device=like.device) + drawn) / points
    return Rule(u**3, 3.0 * u.square() / points)


def compensators(intensity: Intensity, gaps: Float[Tensor, "e"], rule: Rule) -> Float[Tensor, "e"]:
    """Integral over each gap of the intensity of all types together."""
    total = intensity(gaps[:, None] * rule.at).sum(-1)
    return gaps * (rule.weights * total).sum(-1)


def log_likelihood(intensity: Intensity, gaps: Float[Tensor, "e"], types: Int[Tensor, "e"], rule: Rule) -> Terms:
    """Log-likelihood of the event that ends each gap."""
    at_end, of_its_type = log_intensities(intensity, gaps, types)
    return Terms(at_end - compensators(intensity, gaps, rule), of_its_type - at_end)


def log_intensities(
    intensity: Intensity, gaps: Float[Tensor, "e"], types: Int[Tensor, "e"]
) -> tuple[Float[Tensor, "e"], Float[Tensor, "e"]]:
    """Log-intensities at the end of each gap: of all types together, and of the type of the event."""
    by_type = intensity(gaps[:, None])[:, 0].clamp(min=LEAST)
    return by_type.sum(-1).log(), by_type.gather(-1, types[:, None])[:, 0].log()
