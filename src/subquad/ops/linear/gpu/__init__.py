"""Linear attention by Triton kernels, for CUDA (the extra `gpu`).

`kernels`, `back_kernels` and `step_kernel` have the kernels; `sides`, `calls` and `stepping` launch them; `plans` chooses
sizes of tiles. Triton is imported when the first tensor on a GPU arrives, and only there.
"""

from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from subquad import native
from subquad.ops.linear.fused import FusedMaps
from subquad.ops.linear.sums import LinearState
from subquad.types import Maps

if TYPE_CHECKING:
    from subquad.ops.linear.gpu.calls import GpuInputs

DEVICES = ("cuda",)  # types of devices that Triton compiles for
DTYPES = (torch.float32, torch.bfloat16, torch.float16)  # float64 is left to PyTorch
WIDEST = 128  # most numbers of a query from which kernels compute random features: a tile has them all
MISSING = "Triton is not installed, with which linear attention runs on a GPU: `pip install 'subquad[gpu]'`"
"""What is missed where Triton is not there, and what to do."""


@cache
def is_there() -> bool:
    """Whether Triton is installed."""
    return find_spec("triton") is not None


def is_chosen() -> bool:
    """Whether Triton kernels are used on a GPU: Triton is there, and neither SUBQUAD_KERNELS nor `using` says torch."""
    return native.wanted() != "torch" and is_there()


def takes(q: Tensor) -> bool:
    """Whether there are Triton kernels for tensors like this one."""
    return q.device.type in DEVICES and q.dtype in DTYPES


def serves(q: Tensor) -> bool:
    """Whether Triton kernels process these queries."""
    return is_chosen() and takes(q)


def computes(q: Tensor, maps: FusedMaps) -> bool:
    """Whether Triton kernels compute these features themselves; PyTorch computes those of wide heads along directions."""
    return q.shape[-1] <= WIDEST or (maps.queries.omega is None and maps.keys.omega is None)


def new_inputs(q: Tensor, k: Tensor, v: Tensor, maps: Maps | FusedMaps, keep: Tensor | None) -> "GpuInputs":
    """Returns the calls of kernels on these queries, keys and values."""
    from subquad.ops.linear.gpu.calls import GpuInputs

    return GpuInputs(q, k, v, maps, keep)


def step(
    q: Tensor, k: Tensor, v: Tensor, maps: Maps, fused: FusedMaps | None, state: LinearState | None, reuse: bool
) -> tuple[Tensor, LinearState]:
    """Attends from one position, without gradients. With `reuse`, the new state overwrites the old one."""
    from subquad.ops.linear.gpu import stepping

    return stepping.step(q, k, v, maps, fused, state, reuse)
