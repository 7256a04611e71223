"""Jobs on a cluster: files come back, lost ones go on, late ones end. A stand-in takes the place of Ray."""

import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from subquad.cli import main
from subquad.cli.compare_nodes import node_names, passed_on, turns
from subquad.errors import DivergedError, SubquadError
from subquad.places import nodes
from subquad.places.base import Job, do_all
from subquad.places.cluster import Cluster, Terms
from subquad.places.nodes import Node
from subquad.results import Row
from tests.places.standin import KilledError, StandIn

NODES = [Node(f"n{at}", "host", "machine", 1.0, 0.0) for at in range(2)]


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def cluster(folder: Path, ray: StandIn, **terms: Any) -> Cluster:
    return Cluster(ray, NODES, Terms(str(folder / "store"), **terms), tell=lambda sentence: None)


def count(held: object, folder: Path, *, to: int) -> list[Row]:
    """Goes on counting in a file from where it stands."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "count"
    for number in range(int(path.read_text()) if path.exists() else 0, to):
        path.write_text(str(number + 1))
    return [{"metric": "count", "value": to}]


def test_files_and_rows_come_back(directory: Path) -> None:
    ray = StandIn()
    place = cluster(directory, ray)
    jobs = [Job(f"job-{at}", partial(count, to=at + 1), directory / "run" / f"job-{at}") for at in range(5)]
    ends = {ended.job.name: ended for ended in do_all(place, jobs, 0.0)}
    assert [ends[job.name].rows[0]["value"] for job in jobs] == [1, 2, 3, 4, 5]
    assert [(job.folder / "count").read_text() for job in jobs] == ["1", "2", "3", "4", "5"]
    assert len(ray.actors) == 2  # one for each CPU, used again
    place.close()
    assert ray.is_shut_down
    assert all(actor.is_dead for actor in ray.actors)
    assert not list((directory / "store").rglob("*"))  # nothing is left on the way


def test_a_job_goes_on_with_files_that_were_there(directory: Path) -> None:
    folder, start = directory / "run" / "job", directory / "run" / "start"
    for path in (folder, start):
        path.mkdir(parents=True)
        (path / "count").write_text("3")

    def work(held: object, here: Path) -> list[Row]:
        assert here != folder
        return [{"metric": name, "value": int((here.parent / name / "count").read_text())} for name in ("job", "start")]

    place = cluster(directory, StandIn())
    (ended,) = do_all(place, [Job("job", work, folder, needs=(folder, start))], 0.0)
    assert [row["value"] for row in ended.rows] == [3, 3]
    place.close()


def test_a_lost_job_goes_on_from_what_was_stored(directory: Path) -> None:
    ray = StandIn()
    said: list[str] = []
    begun: list[str] = []
    place = Cluster(ray, NODES, Terms(str(directory / "store")), tell=said.append)

    def work(held: object, folder: Path) -> list[Row]:
        begun.append((folder / "count").read_text() if (folder / "count").exists() else "")
        if len(begun) == 1:
            count(held, folder, to=2)
            raise KilledError
        return count(held, folder, to=4)

    job = Job("job", work, directory / "run" / "job")
    (ended,) = do_all(place, [job], 0.0)
    assert (ended.failure, ended.rows) == ("", [{"metric": "count", "value": 4}])
    assert begun == ["", "2"]
    assert (job.folder / "count").read_text() == "4"
    assert [sentence.partition(" on ")[0] for sentence in said] == ["job: the process"]
    assert len(ray.actors) == 2
    place.close()


def test_a_job_that_is_lost_again_and_again_fails(directory: Path) -> None:
    def die(held: object, folder: Path) -> list[Row]:
        raise KilledError

    place = cluster(directory, StandIn())
    (ended,) = do_all(place, [Job("job", die, directory / "run" / "job")], 0.0)
    assert (ended.failure, ended.rows) == ("lost", [])
    assert "lost 3 times" in ended.message
    place.close()


def test_failures_have_reasons_and_keep_files(directory: Path) -> None:
    def diverge(held: object, folder: Path) -> list[Row]:
        count(held, folder, to=2)
        raise DivergedError(f"{folder}: the loss is nan")

    place = cluster(directory, StandIn())
    folder = directory / "run" / "job"
    (ended,) = do_all(place, [Job("job", diverge, folder)], 0.0)
    assert (ended.failure, ended.message) == ("not finite", f"{folder}: the loss is nan")  # not the node's own folder
    assert (folder / "count").read_text() == "2"
    place.close()


def test_a_job_that_takes_too_long_is_ended(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ray = StandIn()
    place = cluster(directory, ray)
    place.begin(Job("job", partial(count, to=1), directory / "run" / "job", limit_seconds=5.0))
    assert place.ended(0.0) == []  # it has started
    monkeypatch.setattr(ray, "wait", lambda answers, **options: ([], answers))
    assert place.ended(0.0) == []
    later = time.monotonic() + 6.0
    monkeypatch.setattr(time, "monotonic", lambda: later)
    (ended,) = place.ended(0.0)
    assert ended.failure == "timeout"
    assert ray.actors[0].is_dead
    place.close()


def test_a_process_that_waits_gets_the_cpus_that_become_free(directory: Path) -> None:
    """On one CPU that is left, a new process would wait for ever for the one that is kept for further jobs."""
    ray = StandIn(cpus=(1.0, 1.0))
    place = cluster(directory, ray)
    for at in range(2):
        place.begin(Job(f"job-{at}", partial(count, to=1), directory / "run" / f"job-{at}"))
    place.ended(0.0)  # the first has started; the second waits
    ray.cpus = (1.0,)
    assert [ended.job.name for ended in place.ended(0.0)] == ["job-0"]
    first, second = ray.actors
    place.ended(0.0)
    assert (first.is_dead, second.is_dead) == (False, True)
    assert place.busy[0].actor is first
    place.close()


def test_the_command_ends_when_no_node_is_left(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = cluster(directory, StandIn(cpus=()))
    assert not place.has_room()
    later = time.monotonic() + 100.0
    monkeypatch.setattr(time, "monotonic", lambda: later)
    with pytest.raises(SubquadError, match="no node of the Ray cluster is left"):
        place.has_room()


def test_resources_decide_how_many_run_side_by_side(directory: Path) -> None:
    assert cluster(directory, StandIn(cpus=(4.0, 2.0)), cpus=2).slots == 3
    assert cluster(directory, StandIn(cpus=(4.0, 2.0)), cpus=2, jobs=1).slots == 1
    assert cluster(directory, StandIn(cpus=(4.0, 1.0)), cpus=2).slots == 2


ALIKE = {"host": "a", "machine": "m", "versions": {"python": "", "subquad": "", "torch": ""}, "store": "", "missing": []}


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"versions": {"subquad": ""}}, r"the node a lacks subquad: install subquad .* there"),
        ({"versions": {"subquad": "9"}}, r"has subquad 9, and this machine .* install the same"),
        ({"versions": {"torch": "1.0"}}, r"has torch 1.0, and this machine .* install the same"),
        ({"versions": {"python": "2.7.1"}}, r"has Python 2.7.1, and this machine .*: use the same"),
        ({"store": "FileNotFoundError: x"}, r"does not share S with this machine \(FileNotFoundError: x\): give --store"),
        ({"missing": ["/data"]}, r"has nothing at /data: put the data at the same path"),
    ],
)
def test_nodes_that_differ_are_refused(change: dict[str, Any], sentence: str) -> None:
    versions = nodes_versions()
    about = ALIKE | {"versions": versions}
    nodes._require_alike(about, "S")
    changed = change | ({"versions": versions | change["versions"]} if "versions" in change else {})
    with pytest.raises(SubquadError, match=sentence):
        nodes._require_alike(about | changed, "S")


def nodes_versions() -> dict[str, str]:
    from subquad.machine import versions

    return {name: versions()[name] for name in ("python", "subquad", "torch")}


@pytest.mark.parametrize(
    ("cpus", "gpus", "sentence"),
    [
        (8, 0, "--cpus 8 is more than any node of the Ray cluster has: give at most 1"),
        (1, 1, "--gpus 1 is more than any node of the Ray cluster has: give at most 0"),
    ],
)
def test_more_than_any_node_has(cpus: int, gpus: int, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(SubquadError, match=sentence):
        nodes.inspect(StandIn(), str(tmp_path), cpus=cpus, gpus=gpus)


COMMANDS = (["reproduce", "copy"], ["choose", "recall"], ["compare"])


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: words[0])
@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--on", "slurm"], "--on must be ray or ray://HOST:PORT, but is 'slurm'"),
        (["--store", "x"], "--store is about the nodes of a cluster: name one with --on, or leave it out"),
        (["--on", "ray://nowhere"], "'ray://nowhere' is not the address of a Ray cluster: give --on ray or"),
        (["--on", "ray://127.0.0.1:9"], "nobody answers at ray://127.0.0.1:9 (Connection refused): check the address"),
        (["--on", "ray"], "this machine belongs to no Ray cluster: start one with `ray start --head`, or give --on"),
    ],
)
def test_bad_addresses(
    words: list[str],
    options: list[str],
    sentence: str,
    directory: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_TMPDIR", str(directory))
    assert main([*words, *options, "--out", "run"]) == 2
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize("words", [["reproduce", "copy"], ["choose", "recall"]], ids=lambda words: words[0])
def test_resources_need_a_cluster(words: list[str], directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*words, "--cpus", "2", "--out", "run"]) == 2
    assert "--cpus is about the nodes of a cluster" in capsys.readouterr().err


def test_ray_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.setitem(sys.modules, "ray.util.scheduling_strategies", None)
    with pytest.raises(SubquadError, match=r"--on needs Ray, which is not installed: pip install 'subquad\[cluster\]'"):
        nodes.import_ray()


def test_nodes_of_one_machine_take_turns() -> None:
    known = [Node("1", "a", "ma", 1, 0), Node("2", "a", "ma", 1, 0), Node("3", "b", "mb", 1, 0)]
    assert node_names(known) == {"1": "a", "2": "a-2", "3": "b"}
    assert [[node.number for node in turn] for turn in turns(known)] == [["1", "3"], ["2"]]


def test_nodes_get_the_options_that_are_theirs() -> None:
    words = ["--on", "ray", "--lengths", "128", "--out=x", "--store", "s", "--causal", "--resume", "r"]
    assert passed_on(words) == ("--lengths", "128", "--causal")
