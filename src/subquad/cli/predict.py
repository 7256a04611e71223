"""`subquad predict`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from subquad.checking import Checked, Count, FilePath, Whole
from subquad.cli.follow import follow
from subquad.cli.lines import BadLines, LeftOut, Line, csv_text, open_lines
from subquad.cli.parsing import parse
from subquad.cli.streams import say
from subquad.errors import SubquadError
from subquad.files import write_whole
from subquad.runs import TrainedModel, load


@dataclass(frozen=True)
class Predict(Checked):
    """Gives a trained model a sequence and prints its answer: `subquad predict RUN 3 1 4 1 5`.

    One of the task mlm fills in what is missing: `subquad predict RUN "the cat [MASK] on the mat"`.
    """

    run: Annotated[FilePath, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """The folder of a `subquad train` run."""
    sequence: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="[SEQUENCE ...]")] = ()
    """The sequence, word by word. Without one, and without --file, lines are read from standard input."""
    file: FilePath | None = None
    """A file with a sequence in each line."""
    data: FilePath | None = None
    """For a run on transactions or events: a file or folder like the one it was trained on; labels are not needed."""
    output: FilePath | None = None
    """Where the answers for --data go, a CSV line for each client or sequence: standard output unless told. An apostrophe
    goes before a name that begins with = + - @ and is no number: a spreadsheet would take it for a formula."""
    follow: bool = False
    """For a run on events: read them from standard input as they come, `time type` or `sequence time type` in a line, with
    spaces or commas, and print what is to be expected after each. A line with a sequence's name only ends it."""
    every: Whole = 1
    """With --follow: print after each so many events only; 0 for the end, a line for each sequence."""
    remember: Count = 1000
    """With --follow: sequences that are remembered; beyond, the one that was silent for longest begins anew."""
    bad_lines: BadLines = "stop"
    """What is done about a line, of --file or of standard input, that cannot be used: stop there, or skip it. Skipped lines
    are counted at the end, and the first are shown."""


def main(arguments: Sequence[str]) -> int:
    """Answers each sequence with a line."""
    options = parse(Predict, arguments, prog="subquad predict")
    if options.sequence and options.file:
        raise SubquadError("give a sequence or --file, not both")
    if options.data and (options.sequence or options.file):
        raise SubquadError("give --data, or a sequence or --file, not both")
    if options.output and not options.data:
        raise SubquadError("--output is for the scores of --data: give both")
    if options.follow and (options.data or options.sequence or options.file):
        raise SubquadError("--follow reads standard input: give it without a sequence, --file or --data")
    trained = load(options.run, say=say)
    if options.data is not None:
        _score(trained, options.data, options.output)
    elif options.sequence:
        print(trained.reply(options.sequence))
    else:
        _answer_lines(trained, options)
    return 0


def _score(trained: TrainedModel, data: Path, output: Path | None) -> None:
    """A line for each client or sequence."""
    scored = trained.predict(data)
    for complaint in scored.complaints:
        say(complaint)
    table = csv_text([scored.columns, *scored.lines])
    if output is None:
        print(table, end="")
    else:
        write_whole(output, table)


def _answer_lines(trained: TrainedModel, options: Predict) -> None:
    """Answers line by line, and says at the end how many lines could not be used."""
    if not options.follow:
        trained.task.require_reply()
    left_out = LeftOut(options.bad_lines)
    try:
        with open_lines(options.file) as lines:
            if options.follow:
                follow(trained.follow(options.remember), lines, left_out, every=options.every, remember=options.remember)
            else:
                for line in left_out.usable(lines):
                    _answer(trained, line, left_out)
    finally:
        left_out.farewell()


def _answer(trained: TrainedModel, line: Line, left_out: LeftOut) -> None:
    try:
        print(trained.reply(line.text), flush=True)
    except SubquadError as error:
        left_out.add(line, str(error))
