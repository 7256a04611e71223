"""Any number of threads gives the same numbers: the kernels' own, several Python threads at once, a process that forks."""

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor

from subquad.ops.linear import native as native_form
from subquad.types import Maps
from tests.native.forms import (
    QKV,
    TOLERANCES,
    assert_as_close_as_rounding,
    bidirectional,
    causal,
    each,
    inputs,
    maps_of,
    some_keep,
)


@pytest.fixture
def _threads_restored() -> Iterator[None]:
    count = torch.get_num_threads()
    yield
    torch.set_num_threads(count)


def both_forms(name: str, dtype: torch.dtype, length: int, d: int, heads: int) -> list[Tensor]:
    """Values and gradients of both forms, of one sequence with some padding."""
    x = inputs(length, length, d, d, dtype, batch=1, heads=heads)
    maps, keep = maps_of(name, d, heads, dtype), some_keep(1, length)
    return [*bidirectional(x, maps, keep, is_native=True), *causal(x, maps, keep, is_native=True)]


@pytest.mark.usefixtures("_threads_restored")
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", ["elu", "positive", "calibrated"])
def test_any_number_of_threads_gives_the_same_numbers(name: str, dtype: torch.dtype) -> None:
    """Three heads among 2 or 5 threads: sequences are cut into segments, whose sums are then joined."""
    torch.set_num_threads(1)
    wanted = both_forms(name, dtype, 1100, 32, 3)
    for threads in (2, 3, 5):
        torch.set_num_threads(threads)
        assert_as_close_as_rounding(both_forms(name, dtype, 1100, 32, 3), wanted, TOLERANCES[dtype])


@pytest.mark.usefixtures("_threads_restored")
def test_eight_python_threads_at_once() -> None:
    """Each gets, bit for bit, what it gets alone; the kernels start threads of their own meanwhile."""
    torch.set_num_threads(2)
    lengths = [300 + 17 * index for index in range(8)]
    alone = [both_forms("positive", torch.float32, length, 16, 3) for length in lengths]
    with ThreadPoolExecutor(8) as pool:
        for _ in range(3):
            together = list(pool.map(lambda length: both_forms("positive", torch.float32, length, 16, 3), lengths))
            for ours, theirs in zip(together, alone, strict=True):
                assert all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True))


FORKING = """
import faulthandler, os, sys, threading, torch
from tests.native.test_threads import forward_of_both, made_inputs
torch.set_num_threads(1)  # PyTorch's own threads do not survive a fork: it must not start any
x, maps = made_inputs()
torch.get_num_threads = lambda: 2  # for the kernels
wanted = forward_of_both(x, maps)
stop = threading.Event()

def go_on():
    while not stop.is_set():
        forward_of_both(x, maps)

busy = threading.Thread(target=go_on)
busy.start()  # kernels are running in another thread at the time of the fork
children = []
for _ in range(5):
    child = os.fork()
    if child == 0:
        faulthandler.dump_traceback_later(60, exit=True)
        same = all(torch.equal(x, y) for x, y in zip(forward_of_both(x, maps), wanted))
        os._exit(0 if same else 3)
    children.append(child)
codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
stop.set()
busy.join()
sys.exit(max(map(abs, codes)))
"""


def made_inputs() -> tuple[QKV, Maps]:
    x = each(Tensor.detach, inputs(900, 900, 32, 32, torch.float32, batch=1, heads=3))
    return x, maps_of("positive", 32, 3, torch.float32)


def forward_of_both(x: QKV, maps: Maps) -> list[Tensor]:
    """Values only: PyTorch's engine for gradients does not work in a forked process."""
    mixed, state = native_form.attend_causal(*x, maps)
    return [native_form.attend(*x, maps), mixed, *state]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_process_computes_the_same() -> None:
    subprocess.run([sys.executable, "-W", "ignore", "-c", FORKING], check=True, timeout=120)


FORKING_WITH_SHARED_THREADS = """
import faulthandler, os, sys
import torch
import subquad as sq
faulthandler.dump_traceback_later(60, exit=True)
torch.set_num_threads(2)
attend = sq.Linear().build(heads=4, head_dim=32)
q = torch.randn(1, 4, 200, 32)  # few enough numbers for PyTorch itself to use one thread
with torch.no_grad():
    wanted = attend.causal(q, q, q)[0]
    child = os.fork()
    mixed = attend.causal(q, q, q)[0]
    same = torch.allclose(mixed, wanted, rtol=1e-5, atol=1e-6)
if child == 0:
    os._exit(0 if same else 3)
_, status = os.waitpid(child, 0)
sys.exit(os.waitstatus_to_exitcode(status) or (0 if same else 4))
"""


def test_a_fork_loses_no_thread_that_kernels_wait_for() -> None:
    """Kernels share the threads of OpenMP with PyTorch, which a forked process does not have."""
    done = subprocess.run([sys.executable, "-c", FORKING_WITH_SHARED_THREADS], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
