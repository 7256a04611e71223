"""The likelihood of events under an intensity: of any, so that a model's and the true one go through the same code.

With lambda_k the intensity of type k after an event, lambda its sum over all types, and g the gap to the next event, of
type l::

    log f(g, l) = [log lambda(g) - integral from 0 to g of lambda] + [log lambda_l(g) - log lambda(g)]

the first bracket for the time, the second for the type. Both are kept.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

Intensity = Callable[[Float[Tensor, "e p"]], Float[Tensor, "e p k"]]
"""From times since each of e events to the intensities of all k types then, if nothing has happened in between."""

Integral = Literal["monte-carlo", "trapezoid"]

LEAST = 1e-30
"""An intensity below counts as this much: its logarithm stays finite."""


class Terms(NamedTuple):
    """The log-likelihood of each event given those before it, in nats."""

    time: Float[Tensor, "e"]
    type: Float[Tensor, "e"]


class Rule(NamedTuple):
    """The integral from 0 to g of a function is about g times the sum over points of weight function(g at)."""

    at: Float[Tensor, "*e p"]  # between 0 and 1: the same for all events, or drawn for each
    weights: Float[Tensor, "*e p"]


def trapezoid(points: int, like: Tensor) -> Rule:
    """The trapezoid rule at the cubes of even places: closer where intensities move most, right after an event."""
    at = torch.linspace(0.0, 1.0, points, dtype=like.dtype, device=like.device) ** 3
    halves = at.diff() / 2.0
    return Rule(at, F.pad(halves, (1, 0)) + F.pad(halves, (0, 1)))


def monte_carlo(points: int, like: Float[Tensor, "e"]) -> Rule:
    """With t = g u^3, the integral of 3 g u^2 lambda(t) over u from 0 to 1, by a point drawn from each of equal parts.

    Unbiased, and fresh each time: the points come from PyTorch's generator, which the training loop seeds in each step.
    """
    drawn = torch.rand(*like.shape, points, dtype=like.dtype, device=like.device)
    u = (torch.arange(points, dtype=like.dtype, device=like.device) + drawn) / points
    return Rule(u**3, 3.0 * u.square() / points)


def compensators(intensity: Intensity, gaps: Float[Tensor, "e"], rule: Rule) -> Float[Tensor, "e"]:
    """The integral over each gap of the intensity of all types together."""
    total = intensity(gaps[:, None] * rule.at).sum(-1)
    return gaps * (rule.weights * total).sum(-1)


def log_likelihood(intensity: Intensity, gaps: Float[Tensor, "e"], types: Int[Tensor, "e"], rule: Rule) -> Terms:
    """Log-likelihood of the event that ends each gap."""
    at_end, own = log_intensities(intensity, gaps, types)
    return Terms(at_end - compensators(intensity, gaps, rule), own - at_end)


def log_intensities(
    intensity: Intensity, gaps: Float[Tensor, "e"], types: Int[Tensor, "e"]
) -> tuple[Float[Tensor, "e"], Float[Tensor, "e"]]:
    """At the end of each gap: of all types together, and of the event's own."""
    each = intensity(gaps[:, None])[:, 0].clamp(min=LEAST)
    return each.sum(-1).log(), each.gather(-1, types[:, None])[:, 0].log()
