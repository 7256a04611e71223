"""Runs that are killed at random moments and resumed come to the same end, and leave no processes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes that are left are found in the way of Linux")


def test_a_few_kills() -> None:
    """One of each kind of run. `make test-kills` kills 200 times."""
    _run("compare=1", "copy=1", "events=1", "convert=1", "reproduce=1", "--jobs", "1")


@pytest.mark.kills
def test_two_hundred_kills() -> None:
    _run()


def _run(*options: str) -> None:
    """In a process of its own, which commands are forked from: it has not computed anything, as this one has."""
    paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    command = [sys.executable, "-m", "tests.runs", *options]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | {"PYTHONPATH": paths}, check=False)
    assert done.returncode == 0
