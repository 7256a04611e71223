"""Copies of folders: what is stored is what comes out, whoever was killed in between."""

import json
from pathlib import Path

import pytest

from subquad.errors import SubquadError
from subquad.places.relay import Relay, open_store


def fill(folder: Path, **files: str) -> None:
    for name, content in files.items():
        path = folder / name.replace("__", "/").replace("_json", ".json")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)


def contents(folder: Path) -> dict[str, str]:
    return {path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(params=["folder", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "store") if request.param == "folder" else f"memory://{tmp_path.name}"


def test_a_folder_comes_out_as_it_was(store: str, tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    writer, reader = Relay(store, "some"), Relay(store, "some")
    assert not reader.pull(theirs)
    fill(ours, run_json="{}", checkpoint__step_1__weights="one")
    assert writer.push(ours)
    assert not writer.push(ours)  # nothing has changed
    assert reader.pull(theirs)
    assert contents(theirs) == contents(ours)
    assert not reader.pull(theirs)
    (ours / "checkpoint/step_1/weights").unlink()
    (ours / "checkpoint/step_1").rmdir()
    fill(ours, checkpoint__step_2__weights="two")
    fill(theirs, mine="stays")
    assert writer.push(ours)
    assert reader.pull(theirs)
    assert contents(theirs) == contents(ours) | {"mine": "stays"}
    assert not (theirs / "checkpoint/step_1").exists()
    writer.clear()
    assert not Relay(store, "some").pull(tmp_path / "new")


def test_what_is_being_written_is_left_out(store: str, tmp_path: Path) -> None:
    ours = tmp_path / "ours"
    fill(ours, run_json="{}")
    for name in (".lock", "checkpoint/step-000000002.part/weights", "checkpoint/step-000000001.old/weights"):
        (ours / name).parent.mkdir(parents=True, exist_ok=True)
        (ours / name).write_text("x")
    Relay(store, "some").push(ours)
    Relay(store, "some").pull(tmp_path / "theirs")
    assert contents(tmp_path / "theirs") == {"run.json": "{}"}


def test_a_killed_writer_leaves_the_state_before(store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, writer = tmp_path / "ours", Relay(store, "some")
    fill(ours, weights="one")
    writer.push(ours)
    fill(ours, weights="two, which is longer")
    with monkeypatch.context() as patch:
        patch.setattr("subquad.places.relay.json.dumps", lambda stored: 1 / 0)  # after the files, before the manifest
        with pytest.raises(ZeroDivisionError):
            writer.push(ours)
    system, root = open_store(store)
    system.pipe_file(f"{root}/some/manifest-000001-000000009.json", b'{"weights": "00')  # half a manifest
    Relay(store, "some").pull(tmp_path / "theirs")
    assert contents(tmp_path / "theirs") == {"weights": "one"}


def test_a_later_writer_wins_over_one_that_was_given_up(store: str, tmp_path: Path) -> None:
    first, second = Relay(store, "some"), Relay(store, "some")
    fill(tmp_path / "first", weights="one")
    first.push(tmp_path / "first")
    second.pull(tmp_path / "second")
    fill(tmp_path / "second", weights="two, by the second")
    second.push(tmp_path / "second")
    fill(tmp_path / "first", weights="three, by the first, which only had lost its connection")
    first.push(tmp_path / "first")
    Relay(store, "some").pull(tmp_path / "out")
    assert contents(tmp_path / "out") == {"weights": "two, by the second"}


def test_paths_in_a_run_are_those_of_each_machine(store: str, tmp_path: Path) -> None:
    node, driver = tmp_path / 'no"de', tmp_path / "driver"
    fill(node / "run", run_json=json.dumps({"command": f"subquad train --out {node}/run"}), other=f"{node}")
    Relay(store, "run", here=str(node), there=str(driver)).push(node / "run")
    Relay(store, "run").pull(driver / "run")
    assert json.loads((driver / "run/run.json").read_text())["command"] == f"subquad train --out {driver}/run"
    assert (driver / "run/other").read_text() == f"{node}"
    again = tmp_path / "again"
    Relay(store, "run", here=str(again), there=str(driver)).pull(again / "run")
    assert json.loads((again / "run/run.json").read_text())["command"] == f"subquad train --out {again}/run"


def test_rows_are_never_older_than_checkpoints(store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are stored with rows last, and fetched with rows first."""
    order: list[str] = []
    ours, writer, reader = tmp_path / "ours", Relay(store, "some"), Relay(store, "some")
    fill(ours, rows_jsonl="", run_json="{}", zzz="")
    kept = writer._store

    def store_in_order(path: Path) -> str:
        order.append(path.name)
        return kept(path)

    monkeypatch.setattr(writer, "_store", store_in_order)
    writer.push(ours)
    assert order[-1] == "rows.jsonl"
    fetched: list[str] = []
    place = Path.replace

    def replace(part: Path, target: Path) -> Path:
        fetched.append(target.name)
        return place(part, target)

    monkeypatch.setattr(Path, "replace", replace)
    reader.pull(tmp_path / "theirs")
    assert fetched[0] == "rows.jsonl"


def test_names_that_lead_out_of_the_folder_are_refused(store: str, tmp_path: Path) -> None:
    system, root = open_store(store)
    system.makedirs(f"{root}/some", exist_ok=True)
    system.pipe_file(f"{root}/some/000001-000000001", b"bad")
    system.pipe_file(f"{root}/some/manifest-000001-000000001.json", b'{"../outside": "000001-000000001"}')
    with pytest.raises(SubquadError, match="outside of its folder"):
        Relay(store, "some").pull(tmp_path / "theirs")
    assert not (tmp_path / "outside").exists()


@pytest.mark.parametrize("url", ["nonsense://there", "gdrive://x"])
def test_a_store_that_cannot_be_opened(url: str) -> None:
    with pytest.raises(SubquadError, match="--store"):
        Relay(url, "some")
