"""`subquad predict RUN --follow`: forecasts for a stream of events as they arrive."""

from collections.abc import Iterable

from subquad.cli.lines import LeftOut, Line, csv_text
from subquad.cli.streams import say
from subquad.data.json_tables import json_cells
from subquad.errors import SubquadError
from subquad.tasks.base import Stream


def follow(stream: Stream, lines: Iterable[Line], left_out: LeftOut, *, every: int, remember: int) -> None:
    """Prints a forecast as a line of CSV after every `every` events, or one for each sequence at the end if it is 0."""
    print(csv_text([stream.columns]), end="", flush=True)
    taken = 0
    for line in left_out.usable(lines):
        name = _take(stream, line, left_out)
        if name is None:
            continue
        taken += 1
        if every and taken % every == 0:
            print(csv_text([stream.forecast(name)]), end="", flush=True)
    if not every:
        print(csv_text(stream.forecast(name) for name in stream.known), end="")
    if stream.forgotten:
        say(
            f"{stream.forgotten:,} times a sequence was forgotten, as more than {remember:,} were active at once: "
            "raise --remember to keep them all"
        )


def _take(stream: Stream, line: Line, left_out: LeftOut) -> str | None:
    """Adds the event in a line to the stream and returns the name of its sequence; None for a line without an event."""
    try:
        if line.text.lstrip().startswith("{"):
            return stream.take_record(json_cells(line.text))
        words = line.text.replace(",", " ").split()
        return stream.take(words) if words else None
    except SubquadError as error:
        left_out.add(line, str(error))
        return None
