"""Reads lines from a file or standard input, and formats lines of CSV."""

import csv
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import BinaryIO, Literal, NamedTuple

from subquad.checking import excerpt
from subquad.cli.streams import is_stdin_closed, say
from subquad.errors import SubquadError
from subquad.files import because, open_plain

LONGEST_LINE = 2**24
"""Largest number of bytes of a line. Longer lines are read in pieces of this size and left out."""
BOM = b"\xef\xbb\xbf"
SHOWN = 3
"""Number of unusable lines that are shown; the others are only counted."""
FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""First characters of texts that a spreadsheet would interpret as a formula."""

BadLines = Literal["stop", "skip"]


class Line(NamedTuple):
    """A line of input without its end."""

    number: int
    text: str
    problem: str = ""  # why the line cannot be used; empty if it can


@contextmanager
def open_lines(path: Path | None) -> Iterator[Iterator[Line]]:
    """Opens the lines of a file, or of standard input if `path` is None."""
    if path is not None:
        with open_plain(path) as file:
            yield _read(file, str(path))
        return
    if is_stdin_closed():
        raise SubquadError("standard input is closed: give lines there, or a file")
    yield _read(sys.stdin.buffer, "standard input")


def _read(stream: BinaryIO, name: str) -> Iterator[Line]:
    """Yields the lines of a stream as they arrive."""
    number = 0
    try:
        while piece := stream.readline(LONGEST_LINE):
            number += 1
            is_whole = piece.endswith(b"\n") or len(piece) < LONGEST_LINE
            yield _line(number, piece.removeprefix(BOM) if number == 1 else piece, is_whole=is_whole)
            while not is_whole:
                piece = stream.readline(LONGEST_LINE)
                is_whole = piece.endswith(b"\n") or not piece
    except OSError as error:
        raise SubquadError(f"cannot read {name}: {because(error)}") from None


def _line(number: int, content: bytes, *, is_whole: bool) -> Line:
    if not is_whole:
        problem = f"it is longer than {LONGEST_LINE:,} bytes"
        return Line(number, content[:100].decode(errors="replace"), problem)
    try:
        text = content.decode().rstrip("\r\n")
    except UnicodeDecodeError as error:
        return Line(number, content[:100].decode(errors="replace"), f"byte {error.start + 1} of it is not text in UTF-8")
    return Line(number, text, "it holds a zero byte: it is not text" if "\0" in text else "")


class LeftOut:
    """Handles lines that cannot be used: the first one ends the command, or all are skipped and counted."""

    def __init__(self, policy: BadLines) -> None:
        self.policy, self.count = policy, 0

    def add(self, line: Line, problem: str) -> None:
        """Reports a line that cannot be used, or raises `SubquadError` if the policy is "stop"."""
        if self.policy == "stop":
            raise SubquadError(f"line {line.number}: {problem}; --bad-lines skip leaves such lines out")
        self.count += 1
        if self.count <= SHOWN:
            say(f"line {line.number} is left out: {problem} (it is {excerpt(line.text)})")

    def usable(self, lines: Iterable[Line]) -> Iterator[Line]:
        """Returns the lines with text; reports unusable ones and skips empty ones."""
        return (line for line in self.whole(lines) if line.text.strip())

    def whole(self, lines: Iterable[Line]) -> Iterator[Line]:
        """Yields all lines of a text, empty ones too; reports unusable ones."""
        for line in lines:
            if line.problem:
                self.add(line, line.problem)
            else:
                yield line

    def farewell(self) -> None:
        """Prints how many lines were left out."""
        if self.count:
            say(f"{self.count:,} {'line was' if self.count == 1 else 'lines were'} left out, as they could not be used")


def csv_text(rows: Iterable[Sequence[str]]) -> str:
    """Returns rows as CSV. Texts that a spreadsheet would interpret as a formula get a leading apostrophe."""
    lines: list[str] = []
    writer = csv.writer(
        SimpleNamespace(write=lines.append), lineterminator="\r\n"
    )  # so that cells with either character are quoted
    writer.writerows([_plain(cell) for cell in row] for row in rows)
    return "".join(line.removesuffix("\r\n") + "\n" for line in lines)


def _plain(cell: str) -> str:
    return f"'{cell}" if cell.startswith(FORMULA) and not _is_number(cell) else cell


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True
