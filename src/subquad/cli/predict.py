"""`subquad predict`."""

import csv
import io
import sys
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
from torch import nn

from subquad.checking import Checked, Count, Whole
from subquad.cli.follow import follow
from subquad.cli.parsing import parse
from subquad.cli.train import load
from subquad.errors import SubquadError
from subquad.files import write_whole


@dataclass(frozen=True)
class Predict(Checked):
    """Gives a trained model a sequence and prints its answer: `subquad predict RUN 3 1 4 1 5`.

    One of the task mlm fills in what is missing: `subquad predict RUN "the cat [MASK] on the mat"`.
    """

    run: Annotated[Path, tyro.conf.Positional]
    """The folder of a `subquad train` run."""
    sequence: Annotated[tuple[str, ...], tyro.conf.Positional] = ()
    """The sequence, word by word. Without one, and without --file, lines are read from standard input."""
    file: Path | None = None
    """A file with a sequence in each line."""
    data: Path | None = None
    """For a run on transactions or events: a file or folder like the one it was trained on; labels are not needed."""
    output: Path | None = None
    """Where the answers for --data go, a CSV line for each client or sequence: standard output unless told."""
    follow: bool = False
    """For a run on events: read them from standard input as they come, `time type` or `sequence time type` in a line, with
    spaces or commas, and print what is to be expected after each. A line with a sequence's name only ends it."""
    every: Whole = 1
    """With --follow: print after each so many events only; 0 for the end, a line for each sequence."""
    remember: Count = 1000
    """With --follow: sequences that are remembered; beyond, the one that was silent for longest begins anew."""


def main(arguments: Sequence[str]) -> int:
    """Answers each sequence with a line."""
    given = parse(Predict, arguments, prog="subquad predict")
    if given.sequence and given.file:
        raise SubquadError("give a sequence or --file, not both")
    if given.data and (given.sequence or given.file):
        raise SubquadError("give --data, or a sequence or --file, not both")
    if given.output and not given.data:
        raise SubquadError("--output is for the scores of --data: give both")
    if given.follow and (given.data or given.sequence or given.file):
        raise SubquadError("--follow reads standard input: give it without a sequence, --file or --data")
    task, model, _ = load(given.run)
    if given.data is not None:
        return _score(task, model, given.data, given.output)
    if given.follow:
        return follow(task, model, sys.stdin, every=given.every, remember=given.remember)
    if not hasattr(task, "reply"):
        raise SubquadError(f"a model of {task.kind} {task.takes}")
    for number, words in enumerate(_lines(given, as_they_are=hasattr(task, "takes_text")), start=1):
        try:
            print(task.reply(model, words), flush=True)
        except SubquadError as error:
            where = "" if given.sequence else f"line {number}: "
            raise SubquadError(f"{where}{error}") from None
    return 0


def _score(task: Any, model: nn.Module, data: Path, output: Path | None) -> int:
    """A line for each client or sequence."""
    if not hasattr(task, "predict"):
        raise SubquadError(f"a model of {task.kind} answers sequences and gives no scores: give a sequence, not --data")
    scored = task.predict(model, data)
    for complaint in scored.complaints:
        print(f"subquad: {complaint}", file=sys.stderr)
    written = io.StringIO()
    lines = csv.writer(written, lineterminator="\n")
    lines.writerow(scored.columns)
    lines.writerows(scored.lines)
    if output is None:
        print(written.getvalue(), end="")
    else:
        write_whole(output, written.getvalue())
    return 0


def _lines(given: Predict, *, as_they_are: bool) -> Iterator[list[str]]:
    """Words with spaces or commas between them; in a text a comma is a part of it."""
    if given.sequence:
        yield list(given.sequence)
        return
    try:
        text = nullcontext(sys.stdin) if given.file is None else given.file.open()
    except OSError as error:
        raise SubquadError(f"cannot read {given.file}: {error.strerror}") from None
    with text as lines:
        for line in lines:
            if words := (line if as_they_are else line.replace(",", " ")).split():
                yield words
