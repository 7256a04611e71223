"""`subquad predict RUN --follow`: forecasts of a stream, as it comes."""

from collections.abc import Iterable
from typing import Any

from torch import nn

from subquad.cli.lines import LeftOut, Line, csv_text
from subquad.cli.streams import say
from subquad.errors import SubquadError
from subquad.tasks.base import Stream, Task


def follow(
    task: Task[Any], model: nn.Module, lines: Iterable[Line], left_out: LeftOut, *, every: int, remember: int
) -> None:
    """A line of the table that --data gives after each so many events, or at the end one for each sequence."""
    follower = task.follow(model, remember)
    print(csv_text([follower.columns]), end="", flush=True)
    taken = 0
    for line in left_out.usable(lines):
        name = _take(follower, line, left_out)
        if name is None:
            continue
        taken += 1
        if every and taken % every == 0:
            print(csv_text([follower.forecast(name)]), end="", flush=True)
    if not every:
        print(csv_text(follower.forecast(name) for name in follower.known), end="")
    if follower.forgotten:
        say(
            f"{follower.forgotten:,} times a sequence was forgotten for another, as more than {remember:,} went on at once: "
            "raise --remember to keep them apart"
        )


def _take(follower: Stream, line: Line, left_out: LeftOut) -> str | None:
    """The name of the sequence that the event in a line belongs to; None for a line without an event."""
    words = line.text.replace(",", " ").split()
    try:
        return follower.take(words) if words else None
    except SubquadError as error:
        left_out.add(line, str(error))
        return None
