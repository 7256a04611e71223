"""Which kernels compare measures on a device, and what it prints of a GPU's roofline."""

import json
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from subquad import native
from subquad.attention import Favor, Linear, Softmax
from subquad.cli.kernels import kernels_on, tell_kernels, tell_roofline
from subquad.compare.cells import Setting
from subquad.compare.plan import Plan
from subquad.compare.roofline import work_of
from subquad.compare.views import View
from subquad.errors import SubquadError
from subquad.measure.roofline import Device
from subquad.ops.linear import gpu
from subquad.report.compare import load
from subquad.results import Run
from tests.compare.rows import rows

GPU = Device(bytes_per_second=1e9, float32_per_second=1e12, tf32_per_second=8e12, source="made up")
ON_GPU = Setting(device="cuda", threads=1, kernels="native")


def plan(setting: Setting) -> Plan:
    return Plan(
        variants={"softmax": Softmax(), "linear": Linear(), "favor": Favor()},
        lengths=[128],
        forms=["causal"],
        whats=["training"],
        settings=[setting],
    )


def view(what: str, dtype: str = "float32") -> View:
    return View("causal", what, (2, 8, 64, 1, dtype, "cuda", "native"))


def test_kernels_that_are_not_there_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "is_there", lambda: False)
    assert kernels_on("cuda", ()) == ("torch",)
    assert kernels_on("mps", ()) == kernels_on("xpu:1", ()) == ("torch",)
    with pytest.raises(SubquadError, match=r"--kernels native: Triton is not installed.*'subquad\[gpu\]'"):
        kernels_on("cuda", ("torch", "native"))
    with pytest.raises(SubquadError, match="there are none for mps"):
        kernels_on("mps", ("native",))
    with pytest.raises(SubquadError, match="--kernels fla is for --device cuda, but the device is cpu"):
        kernels_on("cpu", ("fla",))
    monkeypatch.setattr(gpu, "is_there", lambda: True)
    assert kernels_on("cuda", ()) == ("native",)
    assert kernels_on("cuda", ("torch", "native")) == ("torch", "native")
    for wanted in ("torch", "fla"):
        with native.using(wanted):
            assert kernels_on("cuda", ()) == (wanted,)


def test_work_is_bytes_and_operations_of_all_heads() -> None:
    numbers = 2 * 8 * 1024 * 64  # of q
    forward = work_of(Linear(), view("forward"), 1024)
    training = work_of(Linear(), view("training", "bfloat16"), 1024)
    assert forward == (4 * 4 * numbers, 4 * 64 * numbers)
    assert training == (2 * 12 * numbers, 3 * 4 * 64 * numbers)
    favor = work_of(Favor(features=128), view("forward"), 1024)
    assert favor == (4 * 4 * numbers, 8 * 128 * numbers)
    step = work_of(Linear(), view("step"), 1024)
    assert step == (16 * (4 * 2 * 64 * 64 + 4 * 4 * 64), 16 * 4 * 64 * 64)
    assert work_of(Softmax(), view("forward"), 1024) is None
    assert work_of(Linear(), view("layer"), 1024) is None


def measured_on(folder: Path, name: str) -> Run:
    """A run on a GPU with the rows of a stand-in, as one was measured."""
    run = Run.create(folder, "compare", {"devices": {"cuda": name}, "mechanisms": {}, "seed": 0})
    made = [row | {"device": "cuda", "kernels": "native"} for row in rows(noise=0.0)]
    run.append(made)
    return run


def test_the_share_of_the_roofline_is_printed(tmp_path: Path) -> None:
    run = measured_on(tmp_path / "run", "Fake GPU 9000")
    measured = load([run.folder])[0]
    console = Console(width=200, record=True, file=StringIO())
    tell_kernels(plan(ON_GPU), console)
    tell_roofline(plan(ON_GPU), measured, console, {"GPU 9000": GPU})
    printed = console.export_text()
    comparison, telling = (
        measured.comparison,
        next(v for v in measured.comparison.views if (v.form, v.what) == ("causal", "training")),
    )
    length = max(comparison.lengths(telling, "linear"))
    work = work_of(Linear(), telling, length)
    assert work is not None
    share = work.bytes / 1e9 / comparison.middle(telling, "linear", length)
    assert "Kernels: Triton's." in printed
    assert f"linear {100 * share:.3g}% at {length} tokens" in printed
    assert "Share of the roofline (attention, forward and backward, causal)" in printed
    assert "softmax" not in printed


def test_a_gpu_without_published_figures_is_said(tmp_path: Path) -> None:
    run = measured_on(tmp_path / "run", "Fake GPU 1")
    console = Console(width=200, record=True, file=StringIO())
    tell_roofline(plan(ON_GPU), load([run.folder])[0], console, {"GPU 9000": GPU})
    assert console.export_text() == "No published figures of Fake GPU 1 are known here, so that no roofline is shown.\n"
    assert json.loads((run.folder / "run.json").read_text())["devices"] == {"cuda": "Fake GPU 1"}
