"""Lines of input, whatever they hold, and lines of CSV."""

import csv
import io
import os
import sys
import tracemalloc
from pathlib import Path

import pytest

from subquad.cli import lines as module
from subquad.cli.lines import BadLines, LeftOut, Line, csv_text, open_lines
from subquad.errors import SubquadError


def read(content: bytes, tmp_path: Path) -> list[Line]:
    path = tmp_path / "lines.txt"
    path.write_bytes(content)
    with open_lines(path) as found:
        return list(found)


def test_ends_and_marks_are_no_part_of_a_line(tmp_path: Path) -> None:
    found = read("\ufeff1 a\r\n\n2 \u2028 b\n3 c".encode(), tmp_path)
    assert found == [Line(1, "1 a"), Line(2, ""), Line(3, "2 \u2028 b"), Line(4, "3 c")]
    assert read(b"", tmp_path) == []


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"1 \xff a\n", "byte 3 of it is not text in UTF-8"),
        ("1 é".encode("latin-1") + b"\n", "byte 3 of it is not text in UTF-8"),
        (b"1 \0 a\n", "it holds a zero byte: it is not text"),
        ("1 a\n".encode("utf-16"), "byte 1 of it is not text in UTF-8"),
    ],
)
def test_what_is_no_text_is_told(content: bytes, problem: str, tmp_path: Path) -> None:
    (before, bad, after) = read(b"0 a\n" + content.rstrip(b"\0") + b"2 b\n", tmp_path)
    assert (before.problem, bad.problem, after) == ("", problem, Line(3, "2 b"))


def test_a_long_line_is_never_held_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LONGEST_LINE", 1000)
    path = tmp_path / "lines.txt"
    path.write_bytes(b"1 a\n" + b"x" * 5_000_000 + b"\n2 b\n" + b"y" * 999 + b"\n" + b"z" * 1000)
    tracemalloc.start()
    with open_lines(path) as found:
        first, long, second, whole, last = found
    held = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (first, second) == (Line(1, "1 a"), Line(3, "2 b"))
    assert (whole.problem, len(whole.text)) == ("", 999)
    for line in (long, last):
        assert line.problem == "it is longer than 1,000 bytes"
        assert len(line.text) == 100
    assert held < 1_000_000


def test_a_bad_line_stops_or_is_counted(capsys: pytest.CaptureFixture[str]) -> None:
    lines = [
        Line(1, "good"),
        Line(2, "b" * 10**7, "it is bad"),
        Line(3, " "),
        *(Line(n, "x", "also bad") for n in range(4, 8)),
    ]
    stops = LeftOut("stop")
    with pytest.raises(SubquadError, match=r"^line 2: it is bad; --bad-lines skip leaves such lines out$"):
        list(stops.usable(lines))
    skips = LeftOut("skip")
    assert list(skips.usable(lines)) == [Line(1, "good")]
    skips.farewell()
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 4
    assert said[0].startswith("subquad: line 2 is left out: it is bad (it is 'bbbb")
    assert max(map(len, said)) < 200
    assert said[-1] == "subquad: 5 lines were left out, as they could not be used"


@pytest.mark.parametrize("policy", ["stop", "skip"])
def test_nothing_is_said_of_good_lines(policy: BadLines, capsys: pytest.CaptureFixture[str]) -> None:
    left_out = LeftOut(policy)
    assert len(list(left_out.usable([Line(1, "a"), Line(2, "b")]))) == 2
    left_out.farewell()
    assert capsys.readouterr().err == ""


def test_standard_input_may_be_closed_or_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Path(os.devnull).open() as nothing, monkeypatch.context() as patched:
        patched.setattr(sys, "stdin", nothing)
        with pytest.raises(SubquadError, match="standard input is closed: give lines there, or a file"), open_lines(None):
            pass

    class Folder(io.BytesIO):
        def readline(self, size: int | None = -1, /) -> bytes:
            raise IsADirectoryError(21, "Is a directory")

    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(Folder()))
    with pytest.raises(SubquadError, match=r"cannot read standard input: Is a directory"), open_lines(None) as found:
        list(found)


def test_formulas_are_texts_and_numbers_stay_numbers() -> None:
    formulas = ["=1+1", "+a", "-b", "@c", "\tx", "\rx", "=cmd|' /C calc'!A0", "-1,=2"]
    others = ["-5", "+1e3", "-inf", "1.5", "a=b", "", "'", 'say "hi", now', "two\nlines", "a\rb"]
    written = csv_text([formulas, others, ["last", "row"]])
    assert written.endswith("\nlast,row\n")
    first, second, _ = csv.reader(io.StringIO(written, newline=""))
    assert first == [f"'{text}" for text in formulas]
    assert second == others
    assert csv_text([["plain", "-5", "0.5"]]) == "plain,-5,0.5\n"
