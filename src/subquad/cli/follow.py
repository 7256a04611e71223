"""`subquad predict RUN --follow`: forecasts of a stream, as it comes."""

import csv
import sys
from collections.abc import Iterable
from typing import Any

from torch import nn

from subquad.errors import SubquadError


def follow(task: Any, model: nn.Module, lines: Iterable[str], *, every: int, remember: int) -> int:
    """A line of the table that --data gives after each so many events, or at the end one for each sequence."""
    if not hasattr(task, "follow"):
        raise SubquadError(f"a model of {task.kind} follows no stream: --follow is for runs on events")
    follower = task.follow(model, remember)
    table = csv.writer(sys.stdout, lineterminator="\n")
    table.writerow(follower.columns)
    taken = 0
    for number, words in _split(lines):
        try:
            name = follower.take(words)
        except SubquadError as error:
            raise SubquadError(f"line {number}: {error}") from None
        if name is None:
            continue
        taken += 1
        if every and taken % every == 0:
            table.writerow(follower.forecast(name))
            sys.stdout.flush()
    if not every:
        table.writerows(follower.forecast(name) for name in follower.known)
    if follower.forgotten:
        print(
            f"subquad: {follower.forgotten:,} times a sequence was forgotten for another, as more than {remember:,} "
            "went on at once: raise --remember to keep them apart",
            file=sys.stderr,
        )
    return 0


def _split(lines: Iterable[str]) -> Iterable[tuple[int, list[str]]]:
    for number, text in enumerate(lines, start=1):
        if words := text.replace(",", " ").split():
            yield number, words
