"""Exponentials, conversions of half precision, and the builds for different processors."""

import ctypes
import os
import platform
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from subquad import native
from subquad.native.build import MACHINES, TARGETS
from subquad.ops.linear import native as native_form
from tests.native.forms import TOLERANCES, assert_as_close_as_rounding, maps_of

ORDER = ("avx512", "avx2", "sse2")


def runnable_targets() -> list[str]:
    """Builds that this processor runs: the fastest one and those for fewer instructions."""
    if not native.is_there():
        return []
    fastest = native.target()
    return list(ORDER[ORDER.index(fastest) :]) if fastest in ORDER else [fastest]


def exponentials(x: Tensor, target: str, *, negative: bool = False) -> tuple[Tensor, Tensor]:
    """2^x and e^x by a build of the kernels; the faster ones for numbers of at most 0 if `negative`."""
    number = {torch.float32: "float", torch.float64: "double"}[x.dtype]
    function = ctypes.CDLL(str(native.LIBRARY))[f"subquad_exponentials_{target}_{number}"]
    function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64]
    powers = torch.empty_like(x), torch.empty_like(x)
    function(x.data_ptr(), powers[0].data_ptr(), powers[1].data_ptr(), x.numel(), int(negative))
    return powers


def units_in_the_last_place(result: Tensor, wanted: Tensor) -> float:
    """Largest distance from the value in double precision, in steps between neighbouring float32 numbers."""
    spacing = np.spacing(np.maximum(np.abs(wanted.numpy()), np.finfo(np.float32).tiny).astype(np.float32)).astype(np.float64)
    return float((np.abs(result.double().numpy() - wanted.numpy()) / spacing).max())


@pytest.mark.parametrize("target", runnable_targets())
def test_exponentials_are_within_two_units_in_the_last_place(target: str) -> None:
    """Over the whole range of float32, dense around zero. Results below the smallest normal number may be zero."""
    for base, (low, high) in ((2, (-149.0, 127.0)), (0, (-103.0, 88.0))):
        even = torch.linspace(low, high, 1 << 20)
        near = torch.cat([torch.logspace(-30, 0, 1 << 15), -torch.logspace(-30, 0, 1 << 15)])
        halves = torch.arange(int(low), int(high), dtype=torch.float32) + 0.5  # where rounding changes sides
        edges = torch.cat([halves, torch.nextafter(halves, halves + 1), torch.nextafter(halves, halves - 1)])
        x = torch.cat([even, near, edges, torch.zeros(-len(edges) % 16)])
        powers_of_2, powers_of_e = exponentials(x, target)
        exact = torch.exp2(x.double()) if base == 2 else torch.exp(x.double())
        powers = powers_of_2 if base == 2 else powers_of_e
        is_normal = exact >= torch.finfo(torch.float32).tiny
        assert units_in_the_last_place(powers[is_normal], exact[is_normal]) <= 2
        is_quick = (x <= 0) & (x >= (-126 if base == 2 else -87.3))
        quick = exponentials(torch.where(is_quick, x, 0.0), target, negative=True)[base != 2]
        assert units_in_the_last_place(quick[is_quick], exact[is_quick]) <= 2
        assert ((powers[~is_normal] >= 0) & (powers[~is_normal] <= torch.finfo(torch.float32).tiny)).all()


@pytest.mark.parametrize("target", runnable_targets())
def test_exponentials_beyond_the_range(target: str) -> None:
    low = torch.tensor([-torch.inf, -1e30, -1000.0, -200.0] * 4)
    for powers in exponentials(low, target):
        assert powers.tolist() == [0.0] * 16
    for powers in exponentials(torch.full((16,), torch.nan), target):
        assert powers.isnan().all()
    for powers in exponentials(torch.zeros(16), target):
        assert powers.tolist() == [1.0] * 16


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_every_half_precision_number_is_read_as_pytorch_reads_it(dtype: torch.dtype) -> None:
    """Bit for bit. One key whose weight is 1 makes the result its value."""
    values = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(dtype).view(1, 1, 1, -1)
    q = torch.ones(1, 1, 1, 1, dtype=dtype)
    mixed = native_form.attend(q, q, values, maps_of("relu", 1, 1, torch.float32))
    assert torch.equal(mixed.isnan(), values.isnan())
    wanted = values + 0.0  # a sum that starts from zero has no negative zero
    assert torch.equal(bits(mixed[~values.isnan()]), bits(wanted[~values.isnan()]))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_results_are_rounded_to_half_precision_as_pytorch_rounds(dtype: torch.dtype) -> None:
    """Means of two neighbours lie halfway between them and must go to the even one; all exponents and signs are tried."""
    low = torch.arange((1 << 16) - 1, dtype=torch.int32).to(torch.int16).view(dtype)
    high = torch.arange(1, 1 << 16, dtype=torch.int32).to(torch.int16).view(dtype)
    wanted = ((low.float() + high.float()) * 0.5).to(dtype)
    small = low.float().isfinite() & high.float().isfinite() & (low.float() + high.float()).isfinite()
    values = torch.stack([low, high])[:, small].view(1, 1, 2, -1)
    one = torch.ones(1, 1, 2, 1, dtype=dtype)
    mixed = native_form.attend(one[:, :, :1], one, values, maps_of("relu", 1, 1, torch.float32))
    assert torch.equal(bits(mixed.flatten()), bits(wanted[small]))


def bits(x: Tensor) -> Tensor:
    return x.contiguous().view(torch.int16)


COMPARED = """
import sys, torch
from subquad import native
from tests.native.forms import MAPS, bidirectional, causal, inputs, maps_of, some_keep
torch.set_num_threads(1)
results = [native.target()]
for name in MAPS:
    for dtype in (torch.float64, torch.float32):
        x, maps = inputs(83, 83, 17, 7, dtype), maps_of(name, 17, dtype=dtype)
        results.append([*bidirectional(x, maps, is_native=True), *causal(x, maps, some_keep(2, 83), is_native=True)])
torch.save(results, sys.argv[1])
"""


def test_every_build_gives_the_same_numbers(tmp_path: Path) -> None:
    """Each build that this processor runs, chosen by SUBQUAD_TARGET, in a process of its own."""
    results = []
    for target in runnable_targets():
        path = tmp_path / f"{target}.pt"
        subprocess.run([sys.executable, "-c", COMPARED, str(path)], env={**os.environ, "SUBQUAD_TARGET": target}, check=True)
        used, *tensors = torch.load(path)
        assert used == target
        results.append(tensors)
    for other in results[1:]:
        for ours, theirs in zip(results[0], other, strict=True):
            assert_as_close_as_rounding(ours, theirs, TOLERANCES[ours[0].dtype])


def test_the_chosen_build_is_one_of_this_processor() -> None:
    machine = platform.machine().lower()
    assert native.target() in [target.name for target in TARGETS[MACHINES.get(machine, machine)]]
