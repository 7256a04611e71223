"""The process that kills: it kills when it should, and overlooks nothing."""

import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from subquad.measure.memory import in_fresh_process
from tests.runs import victims
from tests.runs.victims import End, Moment, adopt_orphans, execute

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes that are left are found in the way of Linux")


def observe(command: Callable[[], int], folder: Path, moment: Moment) -> End:
    """What comes of a command, in a process that has no other children."""
    return in_fresh_process(_observe, command, folder, moment)


def _observe(command: Callable[[], int], folder: Path, moment: Moment) -> End:
    victims.LINGER_SECONDS = 0.5
    adopt_orphans()
    return execute(command, folder / "run", folder, moment)


def write(folder: Path) -> int:
    run = folder / "run"
    run.mkdir()
    for name in ("first", "second", "third"):
        (run / name).write_text(name)
    (folder / "beside").write_text("no change to the run")
    return 0


def sleep() -> int:
    time.sleep(600)
    return 0


def leave_a_process() -> int:
    subprocess.Popen(["sleep", "601"], start_new_session=True)
    return 0


def fail() -> int:
    raise RuntimeError("a bug")


def test_it_is_killed_before_a_change(tmp_path: Path) -> None:
    end = observe(partial(write, tmp_path), tmp_path, Moment(change=3))
    assert end.was_killed
    assert end.changes == ["open first", "open second", "open third"]
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["first", "second"]


def test_it_comes_to_its_end(tmp_path: Path) -> None:
    end = observe(partial(write, tmp_path), tmp_path, Moment(change=4))
    assert (end.code, end.said, end.left, len(end.changes)) == (0, "", [], 3)
    assert 0 < end.first_seconds < end.seconds


def test_it_is_killed_after_some_seconds(tmp_path: Path) -> None:
    end = observe(sleep, tmp_path, Moment(seconds=0.2))
    assert end.was_killed
    assert 0.2 <= end.seconds < 60


def test_processes_that_are_left_are_found(tmp_path: Path) -> None:
    assert observe(leave_a_process, tmp_path, Moment()).left == ["sleep 601"]


def test_a_bug_is_heard_of(tmp_path: Path) -> None:
    end = observe(fail, tmp_path, Moment())
    assert end.code == 70
    assert "RuntimeError: a bug" in end.said
