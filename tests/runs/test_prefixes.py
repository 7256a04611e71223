"""Any prefix of a file of rows is a run: it can be reported, and gone on with to the same end.

A process that is killed leaves such a prefix. The tests cut one run of each kind after rows and within rows: after some in
the suite, after every one by `make test-slow`.
"""

import json
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from subquad.cli import main
from subquad.results import Run
from tests.runs.made import MAKERS, cheaply
from tests.runs.states import same_rows, same_weights

RESUMED = ("compare", "grid", "copy", "mlm", "events", "convert", "error", "reproduce")
"""Kinds that can be gone on with."""
WITH_CHECKPOINTS = ("copy", "mlm", "events", "convert")
REPORTED = 8
"""Prefixes of a run that are reported in the suite. `make test-slow` reports all of them."""
WholeRun = Callable[[str], Path]
"""Gives a run of a kind that came to its end."""


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


def check_end(whole: Path, rows: int, folder: Path) -> None:
    """Cuts a copy of a run after some rows, in the middle of the next row if their number is odd, and goes on with it."""
    run = cut(copied(whole, folder), rows, more=half_row(whole, rows) if rows % 2 else b"")
    assert go_on(run) == 0
    assert same_rows(run, whole)
    assert same_weights(run, whole)


def telling(run: Path) -> list[int]:
    """Numbers of rows after which a file is cut: wherever a row comes that is not like one before it."""
    names = ("metric", "split", "stage", "recipe", "mechanism", "what")
    kinds = [tuple(map(row.get, names)) for row in Run.open(run).rows()]
    return sorted({0, 1, *map(kinds.index, dict.fromkeys(kinds)), len(kinds)})


def few(numbers: list[int]) -> list[int]:
    """Some of the numbers, from the first to the last."""
    return sorted({numbers[place * (len(numbers) - 1) // (REPORTED - 1)] for place in range(REPORTED)})


@pytest.mark.parametrize("kind", MAKERS)
def test_any_prefix_is_reported(kind: str, whole_run: WholeRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    check_reports(whole_run(kind), few(telling(whole_run(kind))), tmp_path, capsys)


@pytest.mark.slow
@pytest.mark.parametrize("kind", MAKERS)
def test_every_prefix_is_reported(
    kind: str, whole_run: WholeRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    check_reports(whole_run(kind), range(count(whole_run(kind)) + 1), tmp_path, capsys)


def check_reports(whole: Path, numbers: Iterable[int], folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = copied(whole, folder / "cut")
    for rows in sorted(numbers, reverse=True):
        cut(run, rows, more=half_row(whole, rows) if rows % 2 else b"", like_a_kill=False)
        capsys.readouterr()
        with cheaply():
            check_report(run, folder / "page.html", capsys)


@pytest.mark.parametrize("kind", RESUMED[:-1])
def test_any_prefix_goes_on_to_the_same_end(kind: str, whole_run: WholeRun, tmp_path: Path) -> None:
    whole = whole_run(kind)
    rows = count(whole)
    for number in (0, rows // 3 | 1, rows - 1):
        check_end(whole, number, tmp_path / "cut")


@pytest.mark.slow
@pytest.mark.parametrize("kind", RESUMED[:-1])
def test_every_prefix_goes_on_to_the_same_end(kind: str, whole_run: WholeRun, tmp_path: Path) -> None:
    for number in range(count(whole_run(kind))):
        check_end(whole_run(kind), number, tmp_path / "cut")


@pytest.mark.parametrize("kind", WITH_CHECKPOINTS)
def test_rows_that_were_lost_come_again(
    kind: str, whole_run: WholeRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The file of rows was cut, and the checkpoints were not."""
    whole = whole_run(kind)
    for rows in (0, count(whole) - 1):
        run = cut(copied(whole, tmp_path / "cut"), rows, like_a_kill=False)
        capsys.readouterr()
        assert go_on(run) == 0
        assert "lacks rows from before its checkpoint" in "".join(capsys.readouterr())
        assert same_rows(run, whole)
        assert list(run.glob("checkpoint/*.aside"))


@pytest.mark.parametrize("inner", ["copy-linear-6-0", "timing"])
def test_a_reproduction_goes_on_from_any_prefix(
    inner: str, whole_run: WholeRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whichever of its trainings and measurements was cut off."""
    whole = whole_run("reproduce")
    run = copied(whole, tmp_path / "cut")
    cut(run / inner, count(whole / inner) // 2)
    cut(run, 0)  # verdicts come last
    capsys.readouterr()
    check_report(run, tmp_path / "page.html", capsys)
    assert go_on(run) == 0
    assert same_rows(run, whole)
    assert same_weights(run, whole)
