"""Children that take turns, and children that fail."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

import psutil
import pytest
import torch

from subquad.measure import workers
from subquad.measure.workers import (
    ERROR,
    OUT_OF_MEMORY,
    TIMEOUT,
    Candidate,
    Limits,
    Work,
    Worker,
    context,
    fewest_turns,
    visit,
)

MEGABYTE = 2**20
LIMITS = Limits(memory_bytes=200 * MEGABYTE, run_seconds=20.0, turn_seconds=0.0)


@pytest.fixture(scope="module", autouse=True)
def _server() -> None:
    context(["torch"])


def nothing() -> Work:
    return Work(lambda: None)


def logged(log: Path, name: str) -> Work:
    def run() -> None:
        with log.open("a") as file:
            file.write(name)
        time.sleep(0.02)  # long enough to be one run a turn

    return Work(run)


def fills(megabytes: int, held: int = 0) -> Work:
    return Work(lambda: torch.ones(megabytes * MEGABYTE, dtype=torch.uint8), held)


def sleeps(seconds: float) -> Work:
    return Work(lambda: time.sleep(seconds))


def raises() -> Work:
    def run() -> None:
        raise RuntimeError("seven is not a number\nand more")

    return Work(run)


def cannot_be_prepared() -> Work:
    raise ValueError("no such mechanism")


def killed() -> Work:
    return Work(lambda: os.kill(os.getpid(), signal.SIGKILL))


def test_turns_are_interleaved(tmp_path: Path) -> None:
    log = tmp_path / "log"
    outcomes = visit({name: Candidate(partial(logged, log, name), nothing) for name in "abc"}, LIMITS)
    assert log.read_text() == "abc" * fewest_turns(0.02)  # the first run counts where runs are not brief
    assert all(len(outcome.seconds) == fewest_turns(0.02) for outcome in outcomes.values())
    assert all(min(outcome.seconds) >= 0.02 for outcome in outcomes.values())


def test_the_peak_and_what_is_held_are_read() -> None:
    outcome = visit({"it": Candidate(partial(fills, 100, 5 * MEGABYTE), partial(fills, 1))}, LIMITS)["it"]
    assert outcome.peak_bytes is not None
    assert abs(outcome.peak_bytes / MEGABYTE - 105) < 8


@pytest.mark.parametrize(
    ("prepare", "failure", "message"),
    [
        (partial(fills, 400), OUT_OF_MEMORY, "memory"),
        (partial(sleeps, 60), TIMEOUT, "longer than 2 s"),
        (raises, ERROR, "RuntimeError: seven is not a number"),
        (cannot_be_prepared, ERROR, "ValueError: no such mechanism"),
        (killed, OUT_OF_MEMORY, "killed"),
    ],
)
def test_a_failure_stays_where_it_is(prepare: partial[Work], failure: str, message: str) -> None:
    """The one that fails says why; the others are measured."""
    candidates = {"good": Candidate(partial(sleeps, 0.01), nothing), "bad": Candidate(prepare, nothing)}
    limits = Limits(memory_bytes=200 * MEGABYTE, run_seconds=2.0, turn_seconds=0.0)
    outcomes = visit(candidates, limits)
    assert outcomes["bad"].failure == failure
    assert message in outcomes["bad"].message
    assert "\n" not in outcomes["bad"].message
    assert not outcomes["good"].failure
    assert outcomes["good"].seconds


def threads() -> Work:
    def run() -> None:
        if torch.get_num_threads() != 2:
            raise RuntimeError(f"{torch.get_num_threads()} threads")

    return Work(run)


def test_the_threads_are_those_that_were_asked_for() -> None:
    assert not visit({"it": Candidate(threads, nothing)}, Limits(threads=2))["it"].failure
    assert visit({"it": Candidate(threads, nothing)}, Limits(threads=1))["it"].message == "RuntimeError: 1 threads"


def test_ctrl_c_waits_while_a_child_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """A child whose parent goes away in that moment prints a traceback."""
    started: list[Worker] = []
    start = Worker.__init__

    def interrupted(self: Worker, candidate: Candidate, limits: Limits) -> None:
        signal.raise_signal(signal.SIGINT)
        start(self, candidate, limits)
        started.append(self)

    monkeypatch.setattr(Worker, "__init__", interrupted)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have made it deaf
    try:
        with pytest.raises(KeyboardInterrupt):
            visit({name: Candidate(nothing, nothing) for name in "ab"}, LIMITS)
    finally:
        signal.signal(signal.SIGINT, before)
    assert [worker.process.is_alive() for worker in started] == [False]


def test_runs_that_wait_for_the_scheduler_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads that share a core at first: a few runs of 8 ms, then of a fifth of one."""
    now, stalled = 0.0, 5

    def run() -> None:
        nonlocal now, stalled
        now += 0.008 if stalled > 0 else 0.0002
        stalled -= 1

    monkeypatch.setattr(time, "perf_counter", lambda: now)
    seconds, known = workers._turn(Work(run), "cpu", shortest=0.0005)
    assert seconds == pytest.approx(0.0002)
    assert known == pytest.approx(0.0002)


def test_what_always_takes_long_is_measured_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """A first run that was short by luck does not make the others wait for its like for ever."""
    now = 0.0

    def run() -> None:
        nonlocal now
        now += 0.008

    monkeypatch.setattr(time, "perf_counter", lambda: now)
    assert workers._turn(Work(run), "cpu", shortest=0.0005)[0] == pytest.approx(0.008)
    assert now < 0.2


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the server notices when it has imported everything")
def test_a_server_that_is_importing_ends_with_its_parent(tmp_path: Path) -> None:
    """Importing PyTorch takes seconds, in which the server hears of nothing."""
    (tmp_path / "endless.py").write_text(
        "import os, time\nfrom pathlib import Path\n"
        "Path(__file__).with_name('new').write_text(str(os.getpid()))\n"
        "Path(__file__).with_name('new').rename(Path(__file__).with_name('server'))\ntime.sleep(600)"
    )
    script = (
        "import os, time; from subquad.measure import workers\n"
        "workers._start_server(workers.context(['endless'])); assert 'SUBQUAD_PARENT' not in os.environ; time.sleep(600)"
    )
    paths = os.pathsep.join((str(tmp_path), *sys.path))
    parent = subprocess.Popen([sys.executable, "-c", script], env=os.environ | {"PYTHONPATH": paths})
    deadline = time.monotonic() + 300  # it may share its cores
    while not (tmp_path / "server").exists():
        assert parent.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    server = psutil.Process(int((tmp_path / "server").read_text()))
    parent.kill()
    parent.wait()
    try:
        server.wait(timeout=5)
    finally:
        with suppress(psutil.NoSuchProcess):
            server.kill()
