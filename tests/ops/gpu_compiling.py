"""Compiles every Triton kernel of linear attention to machine code of an A100 or an H100, which needs no GPU.

`TRITON_INTERPRET=0 python -m tests.ops.gpu_compiling 80 elu float32 64` prints each kernel with the shared memory that a
block of threads needs, and fails if the GPU has less. Arguments go the way that they go on a GPU, to the launch.
"""

import sys
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from subquad.feature_maps import Elu, Learned, Random
from subquad.ops.linear.fused import Back, fused_maps

SHARED_BYTES = {80: 163 * 1024, 90: 227 * 1024}  # most of a block, by compute capability (CUDA C++ Programming Guide)
MAPS: dict[str, Any] = {
    "elu": Elu(),
    "positive": Random(features=256),
    "hyperbolic": Random(features=256, kernel="hyperbolic"),
    "learned": Learned(),
}


class AbsentGpu:
    """A driver that tells what Triton asks before it compiles, of a GPU that is not there."""

    def __init__(self, capability: int) -> None:
        self.capability = capability

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", self.capability, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int = 0) -> int:
        return 0


def attend_in_all_forms(name: str, dtype: torch.dtype, head_dim: int) -> None:
    """Calls for a step, and for both forms forward and backward, with padding and a state. Results are not used."""
    from subquad.ops.linear.gpu import calls, stepping

    maps = MAPS[name].build(heads=2, head_dim=head_dim).sides()
    fused = fused_maps(maps)
    q, k, v = (torch.zeros(2, 2, 100, head_dim, dtype=dtype) for _ in range(3))
    stepping.step(q[:, :, :1], k[:, :, :1], v[:, :, :1], maps, fused, None, False)
    inputs = calls.GpuInputs(q, k, v, fused or maps, torch.ones(2, 100, dtype=torch.bool))
    inverse = inputs.new_inverse()
    back = Back(torch.zeros_like(v), torch.zeros_like(v), inverse)
    _, state = inputs.mix_causal((None, None, None), inverse)
    inputs.back_causal(back, state, state, has_state=True)
    inputs.back(back, inputs.mix(inverse)[1])


def main(capability: int, name: str, dtype: torch.dtype, head_dim: int) -> None:
    """Compiles each kernel once for each set of types and fixed values."""
    from triton.runtime import driver

    from subquad.ops.linear.gpu import calls, sides, stepping

    driver.set_active(AbsentGpu(capability))
    compiled: set[str] = set()

    def compile_only(_on: Tensor, kernel: Any, grid: tuple[int, ...], *arguments: Any, **fixed: Any) -> None:
        binary = kernel.warmup(*arguments, grid=grid, **fixed)
        if binary.hash not in compiled:
            compiled.add(binary.hash)
            print(f"{kernel.__name__}: {binary.metadata.shared} bytes of shared memory", flush=True)
            assert binary.metadata.shared <= SHARED_BYTES[capability], "that is more than there is"

    with (
        torch.no_grad(),
        patch.object(sides, "launch", compile_only),
        patch.object(calls, "launch", compile_only),
        patch.object(stepping, "launch", compile_only),
    ):
        attend_in_all_forms(name, dtype, head_dim)
    print(f"{len(compiled)} kernels compiled for compute capability {capability / 10}")


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], getattr(torch, sys.argv[3]), int(sys.argv[4]))
