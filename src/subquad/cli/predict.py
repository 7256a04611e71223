"""`subquad predict`."""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from subquad.cli.train import load
from subquad.errors import SubquadError


@dataclass(frozen=True)
class Predict:
    """Gives a trained model a sequence and prints its answer: `subquad predict RUN 3 1 4 1 5`."""

    run: Annotated[Path, tyro.conf.Positional]
    """The folder of a `subquad train` run."""
    sequence: Annotated[tuple[str, ...], tyro.conf.Positional] = ()
    """The sequence, word by word. Without one, and without --file, lines are read from standard input."""
    file: Path | None = None
    """A file with a sequence in each line."""


def main(arguments: Sequence[str]) -> int:
    """Answers each sequence with a line."""
    given = tyro.cli(Predict, args=list(arguments), prog="subquad predict")
    if given.sequence and given.file:
        raise SubquadError("give a sequence or --file, not both")
    task, model, _ = load(given.run)
    for number, words in enumerate(_lines(given), start=1):
        try:
            print(task.reply(model, words), flush=True)
        except SubquadError as error:
            where = "" if given.sequence else f"line {number}: "
            raise SubquadError(f"{where}{error}") from None
    return 0


def _lines(given: Predict) -> Iterator[list[str]]:
    if given.sequence:
        yield list(given.sequence)
        return
    try:
        text = sys.stdin if given.file is None else given.file.open()
    except OSError as error:
        raise SubquadError(f"cannot read {given.file}: {error.strerror}") from None
    for line in text:
        if words := line.replace(",", " ").split():
            yield words
