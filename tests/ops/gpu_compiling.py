"""Compiles every Triton kernel of linear attention to machine code of an A100 or an H100, which needs no GPU.

`TRITON_INTERPRET=0 python -m tests.ops.gpu_compiling 80 elu float32 64` prints each kernel with the shared memory that a
block of threads needs, and fails if the GPU has less.
"""

import sys
from collections.abc import Iterator
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
POINTERS = {torch.float32: "*fp32", torch.bfloat16: "*bf16", torch.float16: "*fp16", torch.uint8: "*u8", torch.bool: "*i1"}


def type_of(argument: Any, place: tuple[int, ...], constants: dict[tuple[int, ...], Any]) -> Any:
    """Returns the type of a kernel's argument as Triton names it; fixed values are collected by their place."""
    import triton.language as tl

    if isinstance(argument, Tensor):
        return POINTERS[argument.dtype]
    if isinstance(argument, tuple):
        types = [type_of(part, (*place, at), constants) for at, part in enumerate(argument)]
        return type(argument)(*types)  # type: ignore[call-arg]
    if isinstance(argument, tl.constexpr):
        constants[place] = argument.value
        return "constexpr"
    return "fp32" if isinstance(argument, float) else "i32"


def launches(name: str, dtype: torch.dtype, head_dim: int) -> Iterator[tuple[Any, tuple[Any, ...], dict[str, Any]]]:
    """Yields each kernel that attention launches, in all forms, with its arguments. Nothing is computed."""
    from subquad.ops.linear.gpu import calls, sides, stepping

    noted: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = []

    def note(_on: Tensor, kernel: Any, _grid: Any, *arguments: Any, **fixed: Any) -> None:
        noted.append((kernel, arguments, fixed))

    phi = MAPS[name].build(heads=2, head_dim=head_dim)
    maps = phi.sides()
    fused = fused_maps(maps)
    q, k, v = (torch.zeros(2, 2, 100, head_dim, dtype=dtype) for _ in range(3))
    with torch.no_grad(), patch.object(sides, "launch", note), patch.object(calls, "launch", note):
        with patch.object(stepping, "launch", note):
            stepping.step(q[:, :, :1], k[:, :, :1], v[:, :, :1], maps, fused, None, False)
        inputs = calls.GpuInputs(q, k, v, fused or maps, torch.ones(2, 100, dtype=torch.bool))
        inverse = inputs.new_inverse()
        back = Back(torch.zeros_like(v), torch.zeros_like(v), inverse)
        _, state = inputs.mix_causal((None, None, None), inverse)
        inputs.back_causal(back, state, state, has_state=True)
        inputs.back(back, inputs.mix(inverse)[1])
    yield from noted


def main(capability: int, name: str, dtype: torch.dtype, head_dim: int) -> None:
    """Compiles each kernel once for each set of types and fixed values."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    compiled = set()
    for kernel, arguments, fixed in launches(name, dtype, head_dim):
        constants: dict[tuple[int, ...], Any] = {}
        types = [type_of(argument, (at,), constants) for at, argument in enumerate(arguments)]
        signature = dict(zip(kernel.arg_names, types, strict=False))
        for key, value in fixed.items():
            signature[key], constants[(kernel.arg_names.index(key),)] = "constexpr", value
        key = (kernel.__name__, str(signature), str(constants))
        if key in compiled:
            continue
        compiled.add(key)
        binary = triton.compile(ASTSource(kernel, signature, constexprs=constants), target=GPUTarget("cuda", capability, 32))
        shared = binary.metadata.shared
        print(f"{kernel.__name__} {shared} bytes of shared memory, {len(binary.asm['cubin'])} bytes of code", flush=True)
        assert shared <= SHARED_BYTES[capability], f"{kernel.__name__} needs more shared memory than there is"
    print(f"{len(compiled)} kernels compiled for compute capability {capability / 10}")


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], getattr(torch, sys.argv[3]), int(sys.argv[4]))
