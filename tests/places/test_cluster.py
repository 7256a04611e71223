"""A real Ray cluster of two nodes on the loopback address: the same numbers as without Ray, with a node killed half-way.

Run with `make test-cluster`, which installs Ray.
"""

import os
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # without it, Ray replaces 127.0.0.1 by the address of the network
os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112, as local processes

import psutil
import pytest

from subquad.attention import Linear
from subquad.cli import main
from subquad.experiments.base import Scale, Training, Trial
from subquad.experiments.registry import EXPERIMENTS
from subquad.models import ModelOptions
from subquad.results import Run
from subquad.tasks import Copy
from subquad.training import TrainOptions
from tests.experiments.test_registry import PairExperiment
from tests.runs.states import same_rows, same_weights

pytest.importorskip("ray", reason="Ray is not installed: the extra `cluster`")

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]

CLIENT_PORT = 24517
ROOT = Path(__file__).parents[2]
STEPS = 400


@dataclass(frozen=True)
class Seeds(Scale):
    """The same small training with two seeds, which stores a checkpoint now and then."""

    def trials(self) -> Iterator[Trial]:
        for seed in range(2):
            model = ModelOptions(layers=2, heads=2, head_dim=16)
            training = TrainOptions(batch=8, steps=STEPS, checkpoint_every=20, evaluate_every=100)
            yield Trial(f"seed-{seed}", "linear", 16, seed, Training(Copy(length=16), Linear(), model, training))


class SeedsExperiment(PairExperiment):
    scales = {"quick": Seeds(minutes="some seconds")}  # noqa: RUF012


class Loopback:
    """A head without CPUs, and nodes with one CPU each, all on 127.0.0.1, in a process of its own."""

    def __init__(self) -> None:
        self.process = self.start()
        self.address = self.process.stdout.readline().strip()
        self.nodes: list[str] = []
        self.started = 0

    def start(self) -> Any:
        words = [sys.executable, "-m", "tests.places.loopback", str(CLIENT_PORT)]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        return subprocess.Popen(words, cwd=ROOT, text=True, **pipes)

    def tell(self, words: str) -> None:
        self.process.stdin.write(f"{words}\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "done\n"

    def make(self, count: int) -> None:
        """Adds nodes until there are so many."""
        while len(self.nodes) < count:
            self.add()

    def add(self, path: str = "") -> str:
        self.started += 1
        self.nodes.append(f"node-{self.started}")
        self.tell(f"add {self.nodes[-1]} {path}")
        return self.nodes[-1]

    def kill(self) -> None:
        """Ends the node that was added last."""
        self.tell(f"kill {self.nodes.pop()}")

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait(60)


@pytest.fixture(scope="module")
def loopback() -> Iterator[Loopback]:
    made = Loopback()
    yield made
    made.close()


@pytest.fixture(autouse=True)
def _two_nodes(loopback: Loopback, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loopback.make(2)
    monkeypatch.setenv("RAY_ADDRESS", loopback.address)
    monkeypatch.setitem(EXPERIMENTS, "seeds", SeedsExperiment())
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The experiment in processes of this machine, without Ray."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(EXPERIMENTS, "seeds", SeedsExperiment())
        folder = tmp_path_factory.mktemp("alone") / "run"
        assert main(["reproduce", "seeds", "--out", str(folder)]) == 0
    return folder


def when(is_time: Callable[[], bool], act: Callable[[], object]) -> threading.Thread:
    """Waits for a condition in a thread, and then acts."""

    def wait() -> None:
        while not is_time():
            time.sleep(0.05)
        act()

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    return thread


def check_same(one: Path, other: Path) -> None:
    for seed in range(2):
        assert same_rows(one / f"seed-{seed}", other / f"seed-{seed}")
        assert same_weights(one / f"seed-{seed}", other / f"seed-{seed}")
        ours, theirs = (Run.open(run / f"seed-{seed}").about for run in (one, other))
        assert ours["options"] == theirs["options"]
        assert ours["command"].replace(str(one), "") == theirs["command"].replace(str(other), "")
        names = [sorted(path.name for path in (run / f"seed-{seed}").rglob("*")) for run in (one, other)]
        assert [name for name in names[0] if name != ".lock"] == names[1]


def test_a_node_is_killed_and_the_numbers_are_the_same(
    alone: Path, loopback: Loopback, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its training goes on from the checkpoint that came through the store, on the node that is left."""
    folder = tmp_path / "run"
    seen: list[str] = []

    def has_checkpoints() -> bool:
        return all(list((folder / f"seed-{seed}" / "checkpoint").glob("step-*")) for seed in range(2))

    def kill() -> None:
        seen.extend(path.name for path in folder.glob("seed-?/checkpoint/step-*"))
        loopback.kill()

    thread = when(has_checkpoints, kill)
    assert main(["reproduce", "seeds", "--out", str(folder), "--on", "ray"]) == 0
    thread.join()
    assert max(seen) < f"step-{STEPS:09d}"
    assert "was lost; it goes on from what it stored" in capsys.readouterr().err
    check_same(alone, folder)
    assert not (folder / ".relay").exists()


def test_a_client_from_outside_and_a_store_that_is_given(alone: Path, tmp_path: Path) -> None:
    """Rows come back while a training runs, and nothing is left in the store."""
    folder, store = tmp_path / "run", tmp_path / "store"
    rows = folder / "seed-0" / "rows.jsonl"
    early: list[int] = []
    thread = when(
        lambda: rows.exists() and rows.stat().st_size > 0, lambda: early.append(len(rows.read_text().splitlines()))
    )
    address = f"ray://127.0.0.1:{CLIENT_PORT}"
    words = ["reproduce", "seeds", "--out", str(folder), "--on", address, "--store", f"file://{store}"]
    assert main(words) == 0
    thread.join()
    assert 0 < early[0] < len(rows.read_text().splitlines())
    check_same(alone, folder)
    assert not list(store.iterdir())


def test_a_race_on_nodes(tmp_path: Path) -> None:
    """The kept model is trained again alone, by the command that the race names, to the same rows."""
    words = ["choose", "recall", "--length", "24", "--mechanisms", "softmax", "linear", "--budget", "40s", "--on", "ray"]
    assert main([*words, "--out", "race"]) == 0
    race = Run.open(Path("race"), "choose")
    scores = [row for row in race.rows() if row["metric"] == "score"]
    assert {row["stage"] for row in scores} >= {"search", "final"}
    assert all("failure" not in row for row in scores)
    assert (race.folder / "rivals.jsonl").exists()
    best = Run.open(race.folder / "best", "train")
    assert main([*shlex.split(best.about["command"])[1:], "--out", "again", "--no-page"]) == 0
    curves = [[row for row in Run.open(run).rows() if row["metric"] == "loss"] for run in (best.folder, Path("again"))]
    assert curves[0] == curves[1]


def test_machines_side_by_side() -> None:
    words = ["--mechanisms", "linear", "--lengths", "64", "--what", "forward", "--budget", "3"]
    assert main(["compare", *words, "--on", "ray", "--out", "run"]) == 0
    host = os.uname().nodename
    assert sorted(path.parent.name for path in Path("run").glob("*/run.json")) == [host, f"{host}-2"]
    for name in (host, f"{host}-2"):
        run = Run.open(Path("run") / name, "compare")
        assert any(row["metric"] == "seconds" for row in run.rows())
        assert f"--out {Path('run').resolve() / name}" in run.about["command"]
    assert f"{host}-2: " in Path("run/report.html").read_text()
    assert main(["compare", "--resume", "run", "--budget", "3", "--on", "ray"]) == 0
    assert main(["compare", *words, "--on", "ray", "--out", "run"]) == 2  # it holds runs already


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--store", "memory://there"], "does not share memory://there"),
        (["--cpus", "8"], "--cpus 8 is more than any node of the Ray cluster has: give at most 1"),
        (["--gpus", "1"], "--gpus 1 is more than any node of the Ray cluster has: give at most 0"),
    ],
)
def test_what_nodes_do_not_have(options: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "seeds", "--on", "ray", "--out", "run", *options]) == 2
    assert sentence in capsys.readouterr().err


def test_a_node_with_another_version(loopback: Loopback, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    about = tmp_path / "packages" / "torch-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 1.0\n")
    path = os.pathsep.join([str(about.parent), *os.environ.get("PYTHONPATH", "").split(os.pathsep)])
    loopback.add(path)
    try:
        assert main(["reproduce", "seeds", "--on", "ray", "--out", "run"]) == 2
    finally:
        loopback.kill()
    assert "has torch 1.0, and this machine" in capsys.readouterr().err


def test_only_the_loopback_address_is_listened_at(loopback: Loopback) -> None:
    family = psutil.Process(loopback.process.pid).children(recursive=True)
    addresses = {
        connection.laddr.ip
        for process in family
        for connection in process.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    }
    assert addresses
    assert all(address.removeprefix("::ffff:").startswith("127.") or address == "::1" for address in addresses)
