"""Any prefix of a file of rows is a run: it can be reported, and gone on with to the same end.

A process that is killed leaves such a prefix. The tests cut one run of each kind after every row, and within rows.
"""

import json
import shutil
from pathlib import Path

import pytest

from subquad.cli import main
from subquad.results import Run
from tests.runs.made import MAKERS, cheaply
from tests.runs.states import same_rows, same_weights

RESUMED = ("compare", "grid", "copy", "mlm", "events", "convert", "reproduce")
"""Kinds that can be gone on with."""
WITH_CHECKPOINTS = ("copy", "mlm", "events", "convert")


def cut(run: Path, rows: int, *, more: bytes = b"", like_a_kill: bool = True) -> Path:
    """Cuts a file of rows after some, and takes out the checkpoints that were written after them."""
    path = run / "rows.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:rows]) + more)
    for about in run.glob("checkpoint/step-*/about.json") if like_a_kill else ():
        if json.loads(about.read_text())["rows"] > rows:
            shutil.rmtree(about.parent)
    return run


def half_row(run: Path, row: int) -> bytes:
    lines = (run / "rows.jsonl").read_bytes().splitlines(keepends=True)
    return lines[row][: len(lines[row]) // 2] if row < len(lines) else b""


def count(run: Path) -> int:
    return Run.open(run).count_rows()


def copied(run: Path, folder: Path) -> Path:
    if folder.exists():
        shutil.rmtree(folder)
    return Path(shutil.copytree(run, folder))


def check_report(run: Path, page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It works, or says that there is nothing yet."""
    code = main(["report", str(run), "--out", str(page)])
    said = capsys.readouterr().err
    assert (code, said) == (0, "") or (code == 2 and "has no measurements yet" in said and said.count("\n") == 1), said


def go_on(run: Path) -> int:
    """Gives the command that goes on with a run."""
    about = Run.open(run).about
    words = ["copy", "--scale", "tiny", "--out"] if about["kind"] == "reproduce" else ["--resume"]
    with cheaply():
        return main([about["kind"], *words, str(run)])


def sample(rows: int) -> list[int]:
    """Prefixes to go on with: the first, the last and some between them."""
    return sorted({0, 1, rows // 3, 4 * rows // 5, rows - 1})


@pytest.mark.parametrize("kind", MAKERS)
def test_any_prefix_is_reported(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = MAKERS[kind](tmp_path)
    run = copied(whole, tmp_path / "cut")
    for rows in telling(whole):
        cut(run, rows, more=half_row(whole, rows) if rows % 2 else b"", like_a_kill=False)
        capsys.readouterr()
        with cheaply():
            check_report(run, tmp_path / "page.html", capsys)


def telling(run: Path) -> list[int]:
    """Numbers of rows after which a file is cut, the most first: wherever a row comes that is not like one before it."""
    names = ("metric", "split", "stage", "recipe", "mechanism", "what")
    kinds = [tuple(map(row.get, names)) for row in Run.open(run).rows()]
    return sorted({0, 1, *map(kinds.index, dict.fromkeys(kinds)), len(kinds)}, reverse=True)


@pytest.mark.parametrize("kind", RESUMED[:-1])
def test_any_prefix_goes_on_to_the_same_end(kind: str, tmp_path: Path) -> None:
    whole = MAKERS[kind](tmp_path)
    for rows in sample(count(whole)):
        run = cut(copied(whole, tmp_path / "cut"), rows, more=half_row(whole, rows) if rows % 2 else b"")
        assert go_on(run) == 0
        assert same_rows(run, whole)
        assert same_weights(run, whole)


@pytest.mark.parametrize("kind", WITH_CHECKPOINTS)
def test_rows_that_were_lost_come_again(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The file of rows was cut, and the checkpoints were not."""
    whole = MAKERS[kind](tmp_path)
    for rows in (0, count(whole) - 1):
        run = cut(copied(whole, tmp_path / "cut"), rows, like_a_kill=False)
        capsys.readouterr()
        assert go_on(run) == 0
        assert "lacks rows from before its checkpoint" in capsys.readouterr().err
        assert same_rows(run, whole)
        assert list(run.glob("checkpoint/*.aside"))
        shutil.rmtree(run / "checkpoint")
        shutil.rmtree(run / "best", ignore_errors=True)


def test_a_reproduction_goes_on_from_any_prefix(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Whichever of its trainings and measurements was cut off."""
    whole = MAKERS["reproduce"](tmp_path)
    for inner in ("copy-linear-6-0", "timing"):
        for rows in (0, count(whole / inner) // 2):
            run = copied(whole, tmp_path / "cut")
            cut(run / inner, rows)
            cut(run, 0)  # verdicts come last
            capsys.readouterr()
            check_report(run, tmp_path / "page.html", capsys)
            assert go_on(run) == 0
            assert same_rows(run, whole)
            assert same_weights(run, whole)
