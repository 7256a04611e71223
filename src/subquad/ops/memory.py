"""A signal over [0, 1] as a sum of Gaussian basis functions, and its expectation under Gaussian densities.

Equation numbers refer to Martins et al. 2022, *Infinity-former: Infinite Memory Transformer*. The basis functions are
psi_j(t) = N(t; mu_j, sigma_j^2); each width has equally many, with centres evenly spaced over [0, 1].
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from subquad.ops.autocast import outside_autocast

HALF_LOG2_E = 0.5 / math.log(2.0)  # exp(-x / 2) = 2**(-x HALF_LOG2_E), and exp2 is faster on a CPU


class Basis(NamedTuple):
    """Gaussian basis functions in groups of equal width, one group after the other."""

    centres: Float[Tensor, "p"]  # centres within each group
    widths: Float[Tensor, "g"]  # width of each group

    def to(self, **where: Any) -> "Basis":
        """Returns the basis on another device or in another dtype."""
        return Basis(self.centres.to(**where), self.widths.to(**where))


class Factors(NamedTuple):
    """Solved ridge regressions that write a segment into the signal. They depend on lengths only."""

    first: Float[Tensor, "m s"]  # from the first segment to coefficients
    new: Float[Tensor, "m s"]  # from a later segment to coefficients
    points: Float[Tensor, "m p"]  # from the old signal's values at the points to coefficients
    past: Float[Tensor, "m m"]  # from the old coefficients, read at evenly spaced points, to new ones


def make_basis(number: int, widths: Sequence[float]) -> Basis:
    """Returns a basis of `number` functions in total."""
    centres = torch.linspace(0, 1, number // len(widths), dtype=torch.float64)
    return Basis(centres, torch.tensor(list(widths), dtype=torch.float64))


def even(number: int, low: float = 0.0, high: float = 1.0) -> Float[Tensor, "n"]:
    """Returns the midpoints of `number` equal intervals between `low` and `high`."""
    return low + (high - low) * (torch.arange(number, dtype=torch.float64) + 0.5) / number


def expected_basis(basis: Basis, mean: Float[Tensor, "*x"], variance: Float[Tensor, "*x"]) -> Float[Tensor, "*x m"]:
    """Returns E[psi(t)] for t ~ N(mean, variance), which is N(mean; mu_j, variance + sigma_j^2)."""
    spread = variance[..., None] + basis.widths.square()
    away = (mean[..., None, None] - basis.centres).square()
    bumps = torch.exp2(away * (-HALF_LOG2_E / spread)[..., None])
    return (bumps * (2 * math.pi * spread).rsqrt()[..., None]).flatten(-2)


def evaluate_basis(basis: Basis, t: Float[Tensor, "*x"]) -> Float[Tensor, "*x m"]:
    """Returns psi(t), the values of all basis functions at t."""
    return expected_basis(basis, t, torch.zeros_like(t))


def ridge(basis: Basis, t: Float[Tensor, "*b n"], penalty: float) -> Float[Tensor, "*b m n"]:
    """Equation 3: the matrix (F F^T + penalty I)^-1 F that turns values at the points t into coefficients.

    Points that are NaN are ignored.
    """
    real = ~t.isnan()
    bumps = evaluate_basis(basis, torch.where(real, t, 0.0)) * real[..., None]  # F^T
    gram = bumps.mT @ bumps
    gram = gram + penalty * torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
    return torch.linalg.solve(gram, bumps.mT)


def factors(basis: Basis, segment: int, points: int, tau: float, penalty: float) -> Factors:
    """Solves the regressions, with `points` evenly spaced over [0, tau] and the new segment over [tau, 1]."""
    both = ridge(basis, torch.cat([even(points, 0.0, tau), even(segment, tau, 1.0)]), penalty)
    old, new = both.split([points, segment], dim=1)
    return Factors(ridge(basis, even(segment), penalty), new, old, old @ evaluate_basis(basis, even(points)))


class _Read(torch.autograd.Function):
    """Expectation of a signal. The backward recomputes the basis functions, which are much larger than their inputs.

    The derivative of log N(mean; mu_j, s) by the mean is -(mean - mu_j) / s, and by s ((mean - mu_j)^2 / s - 1) / (2 s).
    """

    @staticmethod
    def forward(ctx: Any, mean: Tensor, variance: Tensor, signal: Tensor, centres: Tensor, widths: Tensor) -> Tensor:
        ctx.save_for_backward(mean, variance, signal, centres, widths)
        return expected_basis(Basis(centres, widths), mean, variance) @ signal

    @staticmethod
    @outside_autocast
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        mean, variance, signal, centres, widths = ctx.saved_tensors
        (gradient,) = gradients
        bumps = expected_basis(Basis(centres, widths), mean, variance)
        of_signal = bumps.mT @ gradient
        inner = (gradient @ signal.mT).mul(bumps).unflatten(-1, (len(widths), len(centres)))
        spread = variance[..., None] + widths.square()
        away = mean[..., None] - centres
        whole = inner.sum(-1)
        by_away = (inner @ away[..., None])[..., 0]
        by_square = (inner @ away.square()[..., None])[..., 0]
        of_mean = -(by_away / spread).sum(-1)
        of_variance = ((by_square / spread - whole) / (2 * spread)).sum(-1)
        return of_mean, of_variance, of_signal, None, None


def read(
    basis: Basis, signal: Float[Tensor, "b h m e"], mean: Float[Tensor, "b h n"], variance: Float[Tensor, "b h n"]
) -> Float[Tensor, "b h n e"]:
    """Equation 8: the expectation of a signal under a density for each query."""
    if torch.compiler.is_compiling():  # the compiler decides what to recompute
        return expected_basis(basis, mean, variance) @ signal
    mixed: Tensor = _Read.apply(mean, variance, signal, *basis)  # type: ignore[no-untyped-call]
    return mixed


def shares(
    mean: Float[Tensor, "b h n"], variance: Float[Tensor, "b h n"], real: Tensor | None, bins: int
) -> Float[Tensor, "b bins"]:
    """Mass of the queries' densities in each of `bins` intervals of [0, 1], summed over queries and heads."""
    edges = torch.linspace(0, 1, bins + 1, dtype=mean.dtype, device=mean.device)
    tiny = torch.finfo(mean.dtype).tiny
    below = torch.special.erf((edges - mean[..., None]) * (2 * variance + tiny).rsqrt()[..., None])
    if real is not None:
        below = below * real[:, None, :, None]
    return 0.5 * below.sum((1, 2)).diff(dim=-1)


def draw(histogram: Float[Tensor, "b bins"], places: Float[Tensor, "p"], within: Float[Tensor, "p"]) -> Float[Tensor, "b p"]:
    """Draws points of [0, 1] by inverting the histogram's distribution at `places`; `within` is the position in the bin.

    For an empty histogram the points are evenly spaced.
    """
    bins = histogram.shape[-1]
    total = histogram.sum(-1, keepdim=True)
    reached = (histogram / torch.where(total > 0, total, 1.0)).cumsum(-1)
    bin_index = torch.searchsorted(reached, places.expand(len(histogram), -1).contiguous()).clamp(max=bins - 1)
    drawn = ((bin_index + within) / bins).sort(-1).values
    return torch.where(total > 0, drawn, even(len(places)).to(drawn))


def divergence(variance: Float[Tensor, "*x"], prior_width: float) -> Float[Tensor, "*x"]:
    """KL divergence of N(mean, variance) from N(mean, prior_width^2): 1/2 (s - ln s - 1), s = variance / prior_width^2."""
    s = variance / prior_width**2
    return 0.5 * (s - torch.log(s.clamp_min(torch.finfo(s.dtype).tiny)) - 1)
