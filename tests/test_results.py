"""Rows and runs."""

import errno
import os
from pathlib import Path

import pytest

from subquad.errors import SubquadError
from subquad.files import write_whole
from subquad.results import Row, Run, append_rows, read_rows


def test_rows_come_back_and_are_added_to(tmp_path: Path) -> None:
    path = tmp_path / "run" / "rows.jsonl"
    append_rows(path, [{"metric": "loss", "value": 0.25, "step": 1}])
    append_rows(path, [{"metric": "sample", "value": None, "step": 2}])
    assert read_rows(path) == [{"metric": "loss", "value": 0.25, "step": 1}, {"metric": "sample", "value": None, "step": 2}]


def test_a_half_written_last_row_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    append_rows(path, [{"metric": "loss", "value": 1}, {"metric": "loss", "value": 2}])
    path.write_bytes(path.read_bytes()[:-4])
    assert read_rows(path) == [{"metric": "loss", "value": 1}]


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(SubquadError, match="there is no file of rows at"):
        read_rows(tmp_path / "none.jsonl")
    (tmp_path / "rows.jsonl").symlink_to("rows.jsonl")
    with pytest.raises(SubquadError, match=r"cannot read .*rows\.jsonl: Too many levels"):
        Run(tmp_path, {}).rows()
    (tmp_path / "bad.jsonl").write_text('{"metric": "loss", "value": 1}\nnonsense\n')
    with pytest.raises(SubquadError, match=r"line 2 of .*bad.jsonl is not a JSON row"):
        read_rows(tmp_path / "bad.jsonl")


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ({"metric": "loss", "value": None}, "line 1 of .*: 'loss' has no value: mend the row or take it out"),
        ({"metric": "seconds", "value": 1, "form": "sideways"}, "line 1 of .*: .*form.* must be causal or bidirectional"),
        ({"metric": "loss", "value": 1, "elapsed": "\0"}, "line 1 of .*: .*elapsed.* must be a number"),
        ({"metric": "sample", "value": None, "right": 7}, "line 1 of .*: .*right.* must be a text"),
    ],
)
def test_rows_that_no_page_can_show_are_refused(tmp_path: Path, row: Row, problem: str) -> None:
    append_rows(tmp_path / "rows.jsonl", [row])
    with pytest.raises(SubquadError, match=problem):
        read_rows(tmp_path / "rows.jsonl")


def test_a_verdict_that_is_not_decided_is_read_again(tmp_path: Path) -> None:
    """It once made the rows of a reproduction unreadable."""
    row: Row = {"metric": "held", "value": None, "unit": "truth", "claim": "it is faster", "figures": "1 of 5 runs done"}
    append_rows(tmp_path / "rows.jsonl", [row])
    assert read_rows(tmp_path / "rows.jsonl") == [row]


def test_a_machine_that_is_none_is_refused(tmp_path: Path) -> None:
    Run.create(tmp_path, "compare", {"machine": {"memory_bytes": "much"}})
    with pytest.raises(SubquadError, match=r"memory_bytes.* must be a whole number"):
        Run.open(tmp_path)


def test_rows_go_on_after_a_half_line(tmp_path: Path) -> None:
    """A run that was killed while it wrote, and goes on: the half row is dropped, not joined to the next."""
    path = tmp_path / "rows.jsonl"
    append_rows(path, [{"metric": "loss", "value": 1.0}])
    with path.open("ab") as file:
        file.write(b'{"metric": "lo')
    append_rows(path, [{"metric": "loss", "value": 2.0}])
    assert [row["value"] for row in read_rows(path)] == [1.0, 2.0]


def test_a_run_is_a_folder(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "a" / "run", "compare", {"seed": 3})
    run.append([{"metric": "seconds", "value": 0.5}])
    again = Run.open(run.folder, "compare")
    assert again.about["seed"] == 3
    assert again.rows() == [{"metric": "seconds", "value": 0.5}]


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", "compare", {})
    with pytest.raises(SubquadError, match="holds a run already: continue it with --resume"):
        Run.create(run.folder, "compare", {})
    with pytest.raises(SubquadError, match="is a run of `subquad compare`, not of `subquad train`"):
        Run.open(run.folder, "train")
    with pytest.raises(SubquadError, match=r"is not a run: it has no run\.json"):
        Run.open(tmp_path)
    with pytest.raises(SubquadError, match="is not a run"):
        Run.open(run.folder / "run.json")
    for content, words in (
        ("{", "is not JSON"),
        ("{}", "names no format"),
        ('{"format": 99, "versions": {"subquad": "9.1"}}', r"was made by a newer subquad \(9.1\): update subquad"),
    ):
        (run.folder / "run.json").write_text(content)
        with pytest.raises(SubquadError, match=words):
            Run.open(run.folder)


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SubquadError, match=r"cannot write .*: Not a directory; check the path: a part of it is a file"):
        Run.create(tmp_path / "file" / "run", "compare", {})


def test_a_full_disk_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And what was there stays."""
    path = tmp_path / "rows.jsonl"
    append_rows(path, [{"metric": "loss", "value": 1}])

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(SubquadError, match=r"cannot write .*: No space left on device; make room"):
        append_rows(path, [{"metric": "loss", "value": 2}])
    assert read_rows(path)[0] == {"metric": "loss", "value": 1}


def test_a_file_is_whole_or_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "page.html"
    write_whole(path, "old")

    def fail(self: Path, target: Path) -> None:
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(SubquadError, match="broken"):
        write_whole(path, "new")
    assert path.read_text() == "old"


def test_a_number_beyond_floats_is_refused(tmp_path: Path) -> None:
    """Figures are computed with floats."""
    run = Run.create(tmp_path / "run", "compare", {}, [{"metric": "seconds", "value": 1.0}])
    with run.rows_path.open("a") as file:
        file.write(f'{{"metric": "seconds", "value": {"9" * 1000}}}\n')
    with pytest.raises(SubquadError, match=r"line 2 of .*: 'value' is too large a number: mend the row or take it out"):
        Run.open(tmp_path / "run").rows()
