"""Errors of random features beside the exponential that they estimate, measured and by published formulas.

For a query q and a key k let x = q / d^(1/4) and y = k / d^(1/4), so that exp(x . y) = exp(q . k / sqrt d). The mean squared
errors for independent directions are those of Choromanski et al. 2021, lemma 2 and theorem 2. Everything is computed from
logarithms in float64, because the exponentials of loud inputs do not fit into a float.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from subquad.types import Features


class Pairs(NamedTuple):
    """Logarithms that the formulas consist of, for each pair of a query and a key."""

    score: Float[Tensor, "... n s"]
    """x . y, the logarithm of the exponential that is estimated."""
    plus: Float[Tensor, "... n s"]
    """|x + y|^2."""
    minus: Float[Tensor, "... n s"]
    """|x - y|^2."""


def pairs(q: Float[Tensor, "... n d"], k: Float[Tensor, "... s d"]) -> Pairs:
    """Returns the logarithms for all pairs of queries and keys."""
    x, y = (part.double() * part.shape[-1] ** -0.25 for part in (q, k))
    squares = torch.linalg.vecdot(x, x)[..., :, None] + torch.linalg.vecdot(y, y)[..., None, :]
    score = x @ y.mT
    return Pairs(score, (squares + 2 * score).clamp(min=0), (squares - 2 * score).clamp(min=0))


def relative_error(approximate: Float[Tensor, "..."], exact: Float[Tensor, "..."]) -> float:
    """Root of the summed squared differences, divided by the root of the summed squares of `exact`."""
    difference, size = (float(part.double().norm()) for part in (approximate - exact, exact))
    return difference / size if size > 0 else difference


def estimate_error(
    phi_q: Features, phi_k: Features, q: Float[Tensor, "b h n d"], k: Float[Tensor, "b h s d"]
) -> Float[Tensor, "b h"]:
    """Squared error of phi(q) . phi(k) as an estimate of exp(q . k / sqrt d), summed over pairs, over the summed squares."""
    score = pairs(q, k).score
    peak = score.amax((-2, -1), keepdim=True)
    truth = (score - peak).exp()
    assert phi_q.exponent is not None  # the features of every kernel of softmax have one
    assert phi_k.exponent is not None
    scale = phi_q.exponent.double() + phi_k.exponent.double().mT - peak / math.log(2)
    estimate = (phi_q.values.double() @ phi_k.values.double().mT) * scale.exp2()
    return (estimate - truth).square().sum((-2, -1)) / truth.square().sum((-2, -1))


def expected_error(
    kernel: str, q: Float[Tensor, "b h n d"], k: Float[Tensor, "b h s d"], directions: int
) -> Float[Tensor, "b h"]:
    """Expectation of `estimate_error` by the published formula for that many independent directions."""
    between = pairs(q, k)
    error, truth = FORMULAS[kernel](between), 2 * between.score
    return (error.flatten(-2).logsumexp(-1) - truth.flatten(-2).logsumexp(-1)).exp() / directions


def orthogonal_error(q: Float[Tensor, "b h n d"], k: Float[Tensor, "b h s d"], directions: int) -> Float[Tensor, "b h"]:
    """Upper bound on the expectation of `estimate_error` for positive features along orthogonal directions.

    For m <= d directions it is 2 (m - 1) / (m (d + 2)) (exp(x . y) - exp(-(|x|^2 + |y|^2) / 2))^2 below the error of
    independent ones (theorem 2). More directions are drawn in independent blocks of d, and only pairs within a block gain.
    """
    between, d = pairs(q, k), q.shape[-1]
    blocks, rest = divmod(directions, d)
    within = blocks * d * (d - 1) + rest * (rest - 1)
    gap = 2 * (between.score + _log_complement(between.plus / 2))  # exp(-(|x|^2 + |y|^2) / 2) is exp(x . y - |x + y|^2 / 2)
    gain = (gap.flatten(-2).logsumexp(-1) - (2 * between.score).flatten(-2).logsumexp(-1)).exp()
    return expected_error("positive", q, k, directions) - gain * 2 * within / (directions**2 * (d + 2))


def _positive(between: Pairs) -> Tensor:
    """log of e^(|x + y|^2) SM^2 (1 - e^(-|x + y|^2))."""
    return between.plus + 2 * between.score + _log_complement(between.plus)


def _hyperbolic(between: Pairs) -> Tensor:
    """log of (1 - e^(-|x + y|^2)) / 2 times the error of a positive feature."""
    return _positive(between) + _log_complement(between.plus) - math.log(2)


def _trigonometric(between: Pairs) -> Tensor:
    """log of e^(|x + y|^2) SM^-2 (1 - e^(-|x - y|^2))^2 / 2."""
    return between.plus - 2 * between.score + 2 * _log_complement(between.minus) - math.log(2)


def _log_complement(squared: Tensor) -> Tensor:
    """log(1 - e^(-squared))."""
    return torch.log(-torch.expm1(-squared))


FORMULAS: dict[str, Callable[[Pairs], Tensor]] = {
    "positive": _positive,
    "hyperbolic": _hyperbolic,
    "trigonometric": _trigonometric,
}
"""Logarithm of the mean squared error of one direction's estimate of exp(x . y), by kernel."""
