"""What a race saw of the data before it started: numbers and lengths of sequences, and what the task knows of them."""

from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np
from jaxtyping import Int
from numpy import ndarray

from subquad.choose.standings import LONGEST, READ_AT
from subquad.results import Row

QUANTILES = (0.0, 0.1, 0.25, 0.5, 0.75, READ_AT, 0.99, LONGEST)
"""Levels of the quantiles of lengths."""
BINS = 24
"""Number of bars of the histogram of lengths."""


class Seen(Protocol):
    """Data with lengths, such as a task has."""

    @property
    def complaints(self) -> tuple[str, ...]:
        """Sentences about what was left out of the data."""
        ...

    def lengths(self) -> dict[str, Int[ndarray, "sequences"]]:
        """Number of positions of the sequences of each split."""
        ...

    def data_rows(self) -> list[Row]:
        """Further rows about the data."""
        ...


def seen_rows(task: Seen) -> list[Row]:
    """Rows about the data: sequences of each split, quantiles and a histogram of all lengths, complaints, further facts."""
    lengths = task.lengths()
    together = np.concatenate(list(lengths.values()))
    rows: list[Row] = [
        {"metric": "sequences", "value": len(some), "unit": "1", "part": part, "positions": int(some.sum())}
        for part, some in lengths.items()
    ]
    rows += [
        {"metric": "seen", "value": float(np.quantile(together, at)), "unit": "positions", "quantile": at}
        for at in QUANTILES
    ]
    rows += [{"metric": "complaint", "value": 1, "unit": "1", "message": complaint} for complaint in task.complaints]
    return [*rows, *_histogram(together), *task.data_rows()]


def _histogram(lengths: Int[ndarray, "sequences"]) -> Iterator[Row]:
    """Yields a bar for each range of lengths, with ranges in equal ratios if lengths differ much."""
    low, high = int(lengths.min()), int(lengths.max())
    spread = high > 8 * max(1, low)
    edges = (
        np.geomspace(max(1, low), high + 1, BINS + 1)
        if spread
        else np.linspace(low, high + 1, min(BINS, high - low + 1) + 1)
    )
    edges = np.unique(np.round(edges))
    counts, _ = np.histogram(lengths, edges)
    for count, start, end in zip(counts.tolist(), edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        yield {"metric": "length_bin", "value": count, "unit": "sequences", "low": start, "high": end}


def seen_sentences(rows: Sequence[Row]) -> list[str]:
    """What the rows say of the data, in sentences."""
    numbers = {row["part"]: row["value"] for row in rows if row["metric"] == "sequences"}
    at = {row["quantile"]: row["value"] for row in rows if row["metric"] == "seen"}
    classes = {row["type"]: row["value"] for row in rows if row["metric"] == "data" and row.get("what") == "class"}
    said = ", ".join(f"{number:,} {part}" for part, number in numbers.items())
    sentences = [f"Sequences: {said}."]
    if at:
        sentences.append(
            f"Lengths: {at[0.0]:,.0f} to {at[LONGEST]:,.0f} positions, half of them at most {at[0.5]:,.0f}, nine of ten at "
            f"most {at[READ_AT]:,.0f}."
        )
    if classes:
        named = ", ".join(f"{name} {share:.0%}" for name, share in list(classes.items())[:6])
        sentences.append(f"Classes: {named}{', ...' if len(classes) > 6 else ''}.")
    return [*sentences, *(row["message"] for row in rows if row["metric"] == "complaint")]
