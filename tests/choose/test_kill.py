"""A race whose process is killed goes on: with the runs that it planned, and with what was known before."""

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import psutil
import pytest

from subquad.results import Row, Run, holds_run

SMALL = ("--length", "12", "--pairs", "2", "--keys", "4", "--values", "3", "--held-out", "16", "--tested", "32")
MODEL = ("--layers", "1", "--heads", "1", "--head-dim", "8", "--batch", "4")
WORDS = ("choose", "recall", *SMALL, *MODEL, "--mechanisms", "softmax", "linear", "--jobs", "2")


def start(*words: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "subquad", *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=os.environ
    )


def scores(folder: Path) -> list[Row]:
    return [row for row in Run.open(folder).rows() if row["metric"] == "score"] if holds_run(folder) else []


@pytest.mark.slow  # two minutes
def test_a_killed_race_ends_with_the_runs_that_it_planned(tmp_path: Path) -> None:
    folder = tmp_path / "race"
    process = start(*WORDS, "--budget", "60s", "--out", str(folder))
    deadline = time.monotonic() + 60
    while len(scores(folder)) < 3:
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    workers = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert workers
    assert psutil.wait_procs(workers, timeout=20)[1] == []
    before = scores(folder)
    assert start("choose", "--resume", str(folder), "--budget", "120s").wait(timeout=200) == 0
    after = scores(folder)
    assert after[: len(before)] == before
    plan = next(row for row in Run.open(folder).rows() if row["metric"] == "plan")
    counts = Counter((row["mechanism"], row["stage"]) for row in after)
    assert counts == {
        (name, stage): count
        for name in ("softmax", "linear")
        for stage, count in (("search", plan["value"]), ("semifinal", plan["semifinalists"]), ("final", plan["seeds"]))
        if stage != "semifinal" or count > 1
    }
    assert len({row["trial"] for row in after}) == len(after)
    assert (folder / "best").is_dir()
