"""Tensors and states as native kernels read them."""

import torch
from jaxtyping import Float
from torch import Tensor

from subquad.types import Features, Fused

Parts = tuple[Tensor | None, Tensor | None, Tensor | None]
"""Parts of a state of linear attention; None for an empty one."""
NO_STATE: Parts = (None, None, None)
NO_VIEW = (0, 0, 0, 0)  # a view of a tensor that is not there
KINDS = {"elu": 1, "relu": 2, "positive": 3, "hyperbolic": 4}
TYPES = {torch.float32: 0, torch.float64: 0, torch.bfloat16: 1, torch.float16: 2}
NUMBERS = {torch.float32: "float", torch.float64: "double"}
NOT_FINITE = 2  # what kernels return if a result is not finite


def part(x: Float[Tensor, "b h n d"], positions: slice) -> Float[Tensor, "b h c d"]:
    """Returns a view of some positions; x itself if they are all, since indexing takes a microsecond or two."""
    return x if positions.stop - positions.start == x.shape[2] else x[:, :, positions]


def dense(x: Tensor) -> Tensor:
    """Returns x with its last dimension contiguous in memory, as kernels read it."""
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()


def are_plain(*tensors: Tensor) -> bool:
    """Whether all are contiguous, hold float32 and are on the CPU."""
    usual = torch.float32
    for x in tensors:  # noqa: SIM110 - a generator takes as long as the checks
        if x.dtype is not usual or not x.is_contiguous() or not x.is_cpu:
            return False
    return True


def contiguous(state: Parts) -> Parts:
    """Returns the parts of a state contiguous in memory, as kernels read them."""
    sums, norms, peak = (None if part is None else part.contiguous() for part in state)
    return sums, norms, peak


def with_type(fused: Fused, dtype: torch.dtype) -> Fused:
    """Returns a fused map whose random directions have a type, and are contiguous."""
    return fused if fused.omega is None else Fused(fused.kind, fused.omega.to(dtype).contiguous())


def dense_features(features: Features) -> Features:
    """Returns features as kernels read them, with contiguous exponents."""
    exponent = None if features.exponent is None else features.exponent.contiguous()
    return Features(dense(features.values), exponent)
