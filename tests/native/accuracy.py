"""Errors of native kernels and of PyTorch's operations in float32, against float64: `python -m tests.native.accuracy`.

For values and for each gradient it prints the largest and the mean error of both kernels, relative to the root mean square
of the exact numbers, and the ratio of native to PyTorch. Inputs are standard normal, or ten times as large.
"""

import argparse
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from subquad.feature_maps import Elu, Random
from subquad.ops.linear import attend_in_blocks, attend_in_chunks
from subquad.ops.linear import native as native_form
from subquad.types import Maps
from tests.native.forms import QKV, each

HEAD_DIM = 64
MAPS: dict[str, Any] = {"linear": Elu(), "favor": Random(features=256)}
RESULTS = ("values", "dq", "dk", "dv")


class Case(NamedTuple):
    """What is measured: a mechanism and the size of its inputs."""

    mechanism: str
    is_causal: bool
    scale: float
    length: int
    heads: int


class Errors(NamedTuple):
    """Errors of one result, relative to the root mean square of the exact one."""

    largest: float
    mean: float


def cases(lengths: list[int]) -> Iterator[Case]:
    """Yields all combinations, with fewer heads for long sequences."""
    for length in lengths:
        for mechanism in MAPS:
            for is_causal in (False, True):
                for scale in (1.0, 10.0):
                    yield Case(mechanism, is_causal, scale, length, max(1, min(8, 8192 // length)))


def maps_of(case: Case, dtype: torch.dtype) -> Maps:
    """Feature maps, the same at every call: directions are rounded to float32 for float64 too."""
    generator = torch.Generator().manual_seed(0)
    maps: Maps = MAPS[case.mechanism].build(heads=case.heads, head_dim=HEAD_DIM, generator=generator).to(dtype).sides()
    return maps


def run(case: Case, x: QKV, weights: Tensor, *, is_native: bool) -> list[Tensor]:
    """Returns the values and the gradients of their sum with these weights."""
    maps = maps_of(case, x[0].dtype)
    if case.is_causal:
        mixed = (native_form.attend_causal if is_native else attend_in_chunks)(*x, maps)[0]
    else:
        mixed = (native_form.attend if is_native else attend_in_blocks)(*x, maps)
    return [mixed.detach(), *torch.autograd.grad(mixed, x, weights.to(mixed.dtype))]


def measure(case: Case, seed: int = 0) -> dict[str, dict[str, Errors]]:
    """Returns the errors of each result by each kind of kernels."""
    generator = torch.Generator().manual_seed(seed)
    shape = (1, case.heads, case.length, HEAD_DIM)
    q, k, v = (case.scale * torch.randn(shape, generator=generator) for _ in range(3))
    weights = torch.randn(shape, generator=generator)
    exact = run(case, each(lambda x: x.double().requires_grad_(), (q, k, v)), weights, is_native=False)
    errors: dict[str, dict[str, Errors]] = {}
    for kernels in ("native", "torch"):
        results = run(case, each(lambda x: x.clone().requires_grad_(), (q, k, v)), weights, is_native=kernels == "native")
        errors[kernels] = {
            name: errors_of(result, wanted) for name, result, wanted in zip(RESULTS, results, exact, strict=True)
        }
    return errors


def errors_of(result: Tensor, wanted: Tensor) -> Errors:
    """Returns the largest and the mean distance from the exact numbers."""
    size = wanted.square().mean().sqrt().item() or 1.0
    error = (result.double() - wanted).abs()
    return Errors(error.max().item() / size, error.mean().item() / size)


def main() -> None:
    """Prints a line for each case and result, and the worst ratios at the end."""
    parser = argparse.ArgumentParser(description="Errors of native kernels and of PyTorch's operations against float64.")
    parser.add_argument("--lengths", type=int, nargs="+", default=[128, 1024, 8192, 65536])
    lengths: list[int] = parser.parse_args().lengths
    worst = {"largest": 0.0, "mean": 0.0}
    for case in cases(lengths):
        errors = measure(case)
        for name in RESULTS:
            ours, theirs = errors["native"][name], errors["torch"][name]
            ratios = [x / y if y else 1.0 for x, y in zip(ours, theirs, strict=True)]
            worst = {kind: max(old, new) for (kind, old), new in zip(worst.items(), ratios, strict=True)}
            form = "causal" if case.is_causal else "bidirectional"
            print(
                f"{case.mechanism:6} {form:13} x{case.scale:<4g} {case.length:6} {name:6} "
                f"largest {ours.largest:.1e} / {theirs.largest:.1e} = {ratios[0]:5.2f}   "
                f"mean {ours.mean:.1e} / {theirs.mean:.1e} = {ratios[1]:5.2f}",
                flush=True,
            )
    print(f"worst ratio of native to PyTorch: largest error {worst['largest']:.2f}, mean error {worst['mean']:.2f}")


if __name__ == "__main__":
    main()
