"""From the rows of a file to sequences: invalid events are refused with their place, or repaired as asked and counted."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy import ndarray

from subquad.checking import excerpt
from subquad.data.column_values import ColumnValues
from subquad.data.columns import Column
from subquad.data.ragged import offsets_of
from subquad.data.tables import LARGEST_NUMBER, listed
from subquad.data.times import as_text
from subquad.errors import SubquadError
from subquad.tasks.events.sequences import EventSequences

Ties = Literal["keep", "refuse", "spread", "drop"]
Backwards = Literal["refuse", "sort"]
Broken = Literal["refuse", "drop"]


@dataclass(frozen=True)
class Repairs:
    """What to do with events that are not valid."""

    ties: Ties = "keep"
    """What to do with events at the time of the previous event, which are frequent in data with a coarse clock.

    "spread" distributes the events of one time evenly over half of the smallest gap in the file (half a unit if there is no
    gap), beginning with that time, so that they keep their order. "drop" keeps only the first of them.
    """

    backwards: Backwards = "refuse"  # what to do with events that are earlier than the previous one
    broken: Broken = "refuse"  # what to do with events without a valid time or type

    @property
    def for_forecasts(self) -> "Repairs":
        """What to do in files to forecast from: nothing is refused, so that no event keeps the others from a forecast."""
        return Repairs("keep" if self.ties == "refuse" else self.ties, "sort", "drop")


class Rows(NamedTuple):
    """The events of one file in the order of the file, not yet checked."""

    file: str
    names: list[str]  # names of all sequences, including those without events
    sequences: Int[ndarray, "rows"]
    times: Float[ndarray, "rows"]  # NaN for a missing time
    types: Int[ndarray, "rows"]
    written: list[str]  # types as text
    places: Int[ndarray, "rows"]  # number of the line of each event
    place: str = "line"  # "line", "row" or "record"
    shared: bool = False  # whether a sequence is on one line, so that messages name the event too
    dated: bool = False  # whether times are dates, which may be before 1970
    time_form: str = "auto"  # how times are written, by a name in times.WRITTEN; "auto" if that does not matter
    complaints: tuple[str, ...] = ()  # sentences about rows that were left out in reading
    columns: tuple[ColumnValues, ...] = ()  # further columns of the table
    unused: tuple[Column, ...] = ()  # further columns that are not used, with the reason

    def written_time(self, row: int) -> str:
        """The time of an event as text, for messages."""
        return as_text(float(self.times[row]), is_date=self.dated)

    def where(self, row: int) -> str:
        """The sequence and the place in the file of an event, for messages."""
        name = f"sequence {excerpt(self.names[self.sequences[row]])}, {self.place} {self.places[row]}"
        if not self.shared:
            return name
        return f"{name}, event {1 + int((self.sequences[:row] == self.sequences[row]).sum())}"


def assemble(rows: Rows, type_names: Sequence[str], repairs: Repairs, *, next_events: bool = False) -> EventSequences:
    """Checks and repairs rows, and returns sequences with events in the order of time.

    `next_events` says that the event after the last of each sequence is to be predicted, so that a single event will do.
    """
    complaints = list(rows.complaints)
    numbers = {name: number for number, name in enumerate(type_names)}
    renumbered = np.array([numbers.get(name, -1) for name in rows.written] or [-1], np.int64)
    kept = np.flatnonzero(~_broken(rows, renumbered, type_names, repairs, complaints))
    kept = kept[np.argsort(rows.sequences[kept], kind="stable")]
    kept = _in_order(rows, kept, repairs, complaints)
    kept, times = _untied(rows, kept, repairs, complaints)
    lengths = np.bincount(rows.sequences[kept], minlength=len(rows.names))
    _empty(rows, lengths, repairs, complaints)
    present = lengths > 0
    names = [rows.names[at] for at in np.flatnonzero(present)]
    if not names:
        left_out = complaints[len(rows.complaints) :] or [*rows.complaints, "there are none"]
        raise SubquadError(f"{rows.file} has no event that can be used: {left_out[0].removeprefix(f'{rows.file}: ')}")
    offsets = offsets_of(lengths[present])
    single = np.flatnonzero(lengths[present] == 1)
    if len(single) and not next_events:
        count = "1 sequence has" if len(single) == 1 else f"{len(single):,} sequences have"
        complaints.append(f"{rows.file}: {count} a single event, which leaves nothing to predict: {_first(names, single)}")
    types = renumbered[rows.types[kept]]
    starts, ends = times[offsets[:-1]], times[offsets[1:] - 1]
    columns = tuple(column.take(kept) for column in rows.columns)
    parts = (names, offsets, times, types, list(type_names), starts, ends, tuple(complaints))
    return EventSequences(*parts, columns=columns, unused=rows.unused, dated=rows.dated, time_form=rows.time_form)


def _broken(
    rows: Rows, renumbered: Int[ndarray, "written"], type_names: Sequence[str], repairs: Repairs, complaints: list[str]
) -> Bool[ndarray, "rows"]:
    """Mask of the events that cannot be used. `renumbered` is -1 for unknown types."""
    blank = np.array([name == "" for name in rows.written] or [True])[rows.types]
    of_none = (renumbered[rows.types] < 0) & ~blank
    first = rows.written[rows.types[of_none.argmax()]] if of_none.any() else ""
    bad = {
        "a time that is missing or neither a number nor a date": ~np.isfinite(rows.times),
        f"a time beyond {LARGEST_NUMBER:g}": np.abs(rows.times) > LARGEST_NUMBER,
        "a negative time": (rows.times < 0) & (not rows.dated),
        "no type": blank,
        f"the type {excerpt(first)}, which is none of the {len(type_names)} known ({listed(type_names)})": of_none,
    }
    broken = np.zeros(len(rows.times), bool)
    for problem, where in bad.items():
        if (new := np.flatnonzero(where & ~broken)).size:
            if repairs.broken == "refuse":
                raise SubquadError(
                    f"{rows.file}: an event has {problem}: {rows.where(new[0])}; mend it, or leave such events out "
                    "by --broken drop"
                )
            complaints.append(_counted(rows, new, f"left out, with {problem}"))
            broken |= where
    return broken


def _in_order(rows: Rows, kept: Int[ndarray, "kept"], repairs: Repairs, complaints: list[str]) -> Int[ndarray, "kept"]:
    """Sorts events by time within their sequence. Events at the same time keep their order."""
    back = 1 + np.flatnonzero((np.diff(rows.times[kept]) < 0) & (np.diff(rows.sequences[kept]) == 0))
    if not len(back):
        return kept
    if repairs.backwards == "refuse":
        at = kept[back[0]]
        raise SubquadError(
            f"{rows.file}: time goes backwards, from {rows.written_time(kept[back[0] - 1])} to {rows.written_time(at)}: "
            f"{rows.where(at)}; mend it, or sort the events by --backwards sort"
        )
    complaints.append(_counted(rows, kept[back], "before the one before, which is mended by sorting"))
    return kept[np.lexsort((rows.times[kept], rows.sequences[kept]))]


def _untied(
    rows: Rows, kept: Int[ndarray, "kept"], repairs: Repairs, complaints: list[str]
) -> tuple[Int[ndarray, "left"], Float[ndarray, "left"]]:
    """Returns the indices of the remaining events, and their times."""
    times = rows.times[kept]
    inner = np.diff(rows.sequences[kept], prepend=-1) == 0
    tied = inner & (np.diff(times, prepend=np.nan) == 0)
    if not tied.any():
        return kept, times
    at = kept[tied]
    if repairs.ties == "refuse":
        raise SubquadError(
            f"{rows.file}: an event comes at the time of the one before, {rows.written_time(at[0])}: {rows.where(at[0])}; "
            "mend it, or choose --ties keep, spread or drop"
        )
    done = {"keep": "kept there (--ties spread or drop does otherwise)", "spread": "moved apart", "drop": "left out"}
    complaints.append(_counted(rows, at, f"at the time of the one before and {done[repairs.ties]}"))
    if repairs.ties == "drop":
        return kept[~tied], times[~tied]
    return kept, _spread(rows, kept, times, tied, inner) if repairs.ties == "spread" else times


def _spread(
    rows: Rows,
    kept: Int[ndarray, "kept"],
    times: Float[ndarray, "kept"],
    tied: Bool[ndarray, "kept"],
    inner: Bool[ndarray, "kept"],
) -> Float[ndarray, "kept"]:
    """Moves the j-th of m events at one time later by j / m of half the smallest gap."""
    gaps = np.diff(times, prepend=np.nan)[inner & ~tied]
    half_gap = 0.5 * float(gaps.min(initial=np.inf)) if len(gaps) else 0.5
    group = np.cumsum(~tied) - 1
    first, size = np.flatnonzero(~tied), np.bincount(group)
    moved = times + half_gap * (np.arange(len(times)) - first[group]) / size[group]
    still = np.flatnonzero(inner & (np.diff(moved, prepend=np.nan) <= 0))
    if len(still):
        raise SubquadError(
            f"{rows.file}: times as large as {times[still[0]]:.15g} cannot be moved apart by less than half the smallest "
            f"gap: {rows.where(kept[still[0]])}; count them from a later start, or choose --ties keep or drop"
        )
    return moved


def _empty(rows: Rows, lengths: Int[ndarray, "sequences"], repairs: Repairs, complaints: list[str]) -> None:
    """Refuses sequences without events, or adds a complaint about them."""
    empty = np.flatnonzero(lengths == 0)
    if not len(empty) or len(empty) == len(lengths):
        return
    if repairs.broken == "refuse":
        raise SubquadError(
            f"{rows.file}: sequence {excerpt(rows.names[empty[0]])} has no events: take it out of the file, or leave such "
            "sequences out by --broken drop"
        )
    count = "1 sequence is" if len(empty) == 1 else f"{len(empty):,} sequences are"
    complaints.append(f"{rows.file}: {count} left out, without events: {_first(rows.names, empty)}")


def _counted(rows: Rows, events: Int[ndarray, "some"], what: str) -> str:
    count, at = ("1 event is", "in") if len(events) == 1 else (f"{len(events):,} events are", "the first in")
    return f"{rows.file}: {count} {what}: {at} {rows.where(events[0])}"


def _first(names: list[str], indices: Int[ndarray, "some"]) -> str:
    first = excerpt(names[indices[0]])
    return first if len(indices) == 1 else f"the first is {first}"
