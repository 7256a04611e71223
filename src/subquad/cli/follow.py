"""`subquad predict RUN --follow`: forecasts for a stream of events as they arrive."""

import json
from collections.abc import Iterable
from typing import Any

from subquad.cli.lines import LeftOut, Line, csv_text
from subquad.cli.streams import say
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
            return stream.take_record(_record(line.text))
        words = line.text.replace(",", " ").split()
        return stream.take(words) if words else None
    except SubquadError as error:
        left_out.add(line, str(error))
        return None


def _record(text: str) -> dict[str, str]:
    """The values of a JSON object as texts; "" for null."""
    try:
        record = json.loads(text)
    except (ValueError, RecursionError):
        raise SubquadError("the line begins with a brace but is no JSON object: check its quotation marks") from None
    return {name: _cell(value) for name, value in record.items()}


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, list):
        return "|".join(map(_cell, value))
    return value if isinstance(value, str) else json.dumps(value)
