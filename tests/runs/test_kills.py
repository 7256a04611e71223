"""Runs that are killed at random moments and resumed come to the same end, and leave no processes."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from subquad.results import Run
from tests.runs.killing import differences, problems
from tests.runs.victims import End

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes that are left are found in the way of Linux")


@pytest.mark.first
def test_a_few_kills() -> None:
    """Five, of the commands that are done soonest. The seed is one by which they fall into the middle of the work."""
    _run("compare=1", "copy=2", "events=1", "convert=1", "--seed", "1264", "--jobs", "1")


@pytest.mark.kills
def test_two_hundred_kills() -> None:
    _run()


def _run(*options: str) -> None:
    """In a process of its own, which commands are forked from: it has not computed anything, as this one has."""
    paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    command = [sys.executable, "-m", "tests.runs", *options]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | {"PYTHONPATH": paths}, check=False)
    assert done.returncode == 0


@pytest.mark.parametrize(
    ("code", "said", "left", "problem"),
    [
        (0, "", [], None),
        (-9, "", [], None),
        (-9, "subquad: a note\n", [], None),
        (-9, "", ["python"], "it left a process after code -9: python"),
        (2, "subquad: no\n", [], "it ended with code 2"),
        (-11, "", [], "it ended with code -11"),
        (0, "Traceback\n", [], "it said: Traceback\n"),
        (0, "subquad: a note\nsubquad: another\n", [], "it said: subquad: a note\nsubquad: another\n"),
    ],
)
def test_what_must_not_be_is_seen(code: int, said: str, left: list[str], problem: str | None) -> None:
    found = problems(End(code, said, 1.0, [], 0.0, left), ["subquad: a note"])
    assert found == [] if problem is None else problem in found


def test_other_ends_are_seen(whole_run: Callable[[str], Path], tmp_path: Path) -> None:
    whole = whole_run("copy")
    run = Path(shutil.copytree(whole, tmp_path / "run"))
    assert differences(run, whole) == []
    weights = max(run.glob("checkpoint/step-*")) / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    assert differences(run, whole) == ["it has other weights"]
    Run.open(run).keep_first_rows(3)
    assert differences(run, whole) == ["it has other rows", "it has other weights"]
