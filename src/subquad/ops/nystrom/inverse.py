"""An iteration towards the pseudo-inverse of many small matrices at once."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from subquad.ops.autocast import needs_gradient, outside_autocast


def pseudo_inverse(a: Float[Tensor, "b h m m"], iterations: int) -> Float[Tensor, "b h m m"]:
    """Equation 11 of Xiong et al. 2021: Z <- Z (13 I - A Z (15 I - A Z (7 I - A Z))) / 4, from A^T / (|A|_1 |A|_inf).

    The matrices hold weights, none of them negative. Rows and columns of zeros stay zeros and do not count. The paper's
    code divides by the largest norms in the batch, so that sequences depend on each other; here each matrix has its own.
    """
    norms = a.sum(-2).amax(-1) * a.sum(-1).amax(-1)
    z = a.mT / norms.clamp(min=torch.finfo(a.dtype).tiny)[..., None, None]
    a, z, shape = a.flatten(0, 1), z.flatten(0, 1), a.shape
    by_hand = needs_gradient(a, z) and not torch.compiler.is_compiling()
    for _ in range(iterations):
        z = _Step.apply(a, z) if by_hand else _step(a, z)[0]  # type: ignore[no-untyped-call]
    return z.view(shape)


def _step(a: Tensor, z: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Returns the next Z, and y = A Z, p = y (7 I - y) and r = y (15 I - p), of which Z (13 I - r) / 4 is made."""
    y = torch.bmm(a, z)
    p = torch.baddbmm(y, y, y, beta=7, alpha=-1)
    r = torch.baddbmm(y, y, p, beta=15, alpha=-1)
    return torch.baddbmm(z, z, r, beta=13 / 4, alpha=-1 / 4), y, p, r


class _Step(torch.autograd.Function):
    """One step of the iteration. The gradient of a product x y is G y^T for x and x^T G for y, in the opposite order."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, z: Tensor) -> Tensor:
        better, *parts = _step(a, z)
        ctx.save_for_backward(a, z, *parts)
        return better

    @staticmethod
    @outside_autocast
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        a, z, y, p, r = ctx.saved_tensors
        dr = torch.bmm(z.mT, gradient).mul_(-1 / 4)
        dp = torch.bmm(y.mT, dr).neg_()
        dy = torch.baddbmm(dr, dr, p.mT, beta=15, alpha=-1).add_(dp, alpha=7)
        dy.baddbmm_(dp, y.mT, alpha=-1).baddbmm_(y.mT, dp, alpha=-1)
        dz = torch.baddbmm(gradient, gradient, r.mT, beta=13 / 4, alpha=-1 / 4)
        return torch.bmm(dy, z.mT), dz.baddbmm_(a.mT, dy)
