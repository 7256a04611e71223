"""Sizes of tiles for Triton kernels, and how exactly they multiply."""

from contextlib import nullcontext
from typing import Any

import torch
import triton.language as tl
from torch import Tensor
from triton.runtime.errors import OutOfResources

from subquad.errors import SubquadError
from subquad.ops.autocast import precise
from subquad.ops.linear.fused import FusedMaps
from subquad.ops.linear.gpu.kernels import Plan
from subquad.types import Maps

CHUNK = 64  # positions of a chunk
TILE = 64  # most columns of a tile
NARROW = 32  # most features of a tile of directions of more rows than that; positions of a chunk, if more than TILE
SMALLEST = 16  # what a product of Triton's takes in each dimension
SCAN_BLOCK = 256  # numbers of a state that one program of a scan takes
POSITIVE = 3  # number of the first kind of map with random directions


def blocks_of(size: int, block: int) -> int:
    """Number of blocks that hold `size` numbers."""
    return -(-size // block)


def power_of_2(size: int) -> int:
    """The smallest power of 2 that is not below `size`."""
    return 1 << max(0, size - 1).bit_length()


def tile_of(size: int) -> int:
    """Columns of a tile for a dimension of `size`."""
    return max(SMALLEST, min(TILE, power_of_2(size)))


def scan_block(size: int) -> int:
    """Numbers of a state of `size` that one program of a scan takes."""
    return min(SCAN_BLOCK, power_of_2(size))


def fixed(value: Any) -> Any:
    """A value that a kernel is compiled for."""
    return tl.constexpr(value)


def launch(on: Tensor, kernel: Any, grid: tuple[int, ...], *arguments: Any, **fixed_arguments: Any) -> None:
    """Runs a kernel on the device of a tensor. Raises `SubquadError` if the GPU is too small for its tiles."""
    try:
        with torch.cuda.device(on.device) if on.device.type == "cuda" else nullcontext():
            kernel[grid](*arguments, **fixed_arguments)
    except OutOfResources as error:
        raise SubquadError(
            f"this GPU is too small for a Triton kernel of linear attention ({error}): set SUBQUAD_KERNELS=torch"
        ) from None


def products_as(dtype: torch.dtype) -> str:
    """How kernels multiply: inputs of 16 bits by TF32, which holds them exactly; float32 as PyTorch is told to.

    PyTorch multiplies float32 exactly by default; `torch.set_float32_matmul_precision("high")` allows TF32.
    """
    if dtype in (torch.float16, torch.bfloat16):
        return "tf32"
    return "ieee" if dtype == torch.float64 or torch.get_float32_matmul_precision() == "highest" else "tf32"


def new_plan(q: Tensor, v: Tensor, n: int, m: int, maps: Maps | FusedMaps, *, causal: bool) -> Plan:
    """Sizes of a call for n queries or keys, and of its tiles."""
    directions = maps.keys.omega if isinstance(maps, FusedMaps) else None
    (_, heads, _, d), e, double = q.shape, v.shape[-1], precise(q.dtype) == torch.float64
    width = 0 if directions is None else d  # rows of a tile of directions, which takes shared memory from other tiles
    chunk = min(CHUNK, NARROW) if width > TILE else CHUNK
    return Plan(
        heads=heads,
        n=n,
        d=d,
        e=e,
        m=m,
        r=m if directions is None else directions.shape[-1],
        chunks=blocks_of(n, chunk),
        causal=fixed(causal),
        chunk=fixed(chunk),
        width=fixed(max(SMALLEST, power_of_2(d))),
        feature_tile=fixed(min(NARROW, tile_of(m)) if width > NARROW else tile_of(m)),
        value_tile=fixed(tile_of(e)),
        real=fixed(tl.float64 if double else tl.float32),
        precision=fixed(products_as(q.dtype)),
        nothing=fixed(torch.finfo(precise(q.dtype)).tiny ** 0.8),
    )
