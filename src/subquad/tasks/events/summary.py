"""Rows about the data and about predicted types: what the sequences are like, which types are confused, and how surely.

Names of types come from the data, so all but the most frequent ones are joined.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int
from numpy import ndarray

from subquad.results import Row
from subquad.statistics import divide
from subquad.tasks.events.loading import EventSplits
from subquad.tasks.events.scales import Scales
from subquad.tasks.events.scoring import Scored

QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)
"""Levels of the quantiles of lengths and gaps."""

MOST_TYPES = 12
"""Number of types that are shown by name; all others are joined."""

OTHERS = "all others"
"""Name of the joined types."""

BINS = 10
"""Number of ranges of probability in which predicted types are compared with what came."""


def data_rows(splits: EventSplits, scales: Scales) -> list[Row]:
    """Rows about each split: sequences, events, quantiles of lengths and of gaps, ties, and shares of types."""
    rows = []
    for part, sequences in splits._asdict().items():
        gaps = sequences.gaps[~sequences.first]
        values: list[tuple[str, float, str, float | None]] = [
            ("sequences", len(sequences.names), "1", None),
            ("events", len(sequences.times), "1", None),
            ("gaps of 0", float((gaps == 0).mean()) if len(gaps) else 0.0, "share", None),
        ]
        for at in QUANTILES:
            values.append(("events of a sequence", float(np.quantile(sequences.lengths, at)), "1", at))
            if len(gaps):
                values.append(("gap", float(np.quantile(gaps, at)), "seconds" if sequences.dated else "time", at))
        for what, value, unit, level in values:
            quantile = {} if level is None else {"quantile": level}
            rows.append({"metric": "data", "value": value, "unit": unit, "part": part, "what": what, **quantile})
        rows += _type_rows(part, scales.types(sequences), scales.type_names)
    return rows + _learned_rows(scales)


def _type_rows(part: str, types: Int[ndarray, "events"], names: Sequence[str]) -> list[Row]:
    counts = np.bincount(types, minlength=len(names))
    shown = np.argsort(-counts, kind="stable")[:MOST_TYPES]
    shares = {names[at]: float(counts[at]) for at in shown}
    if len(names) > MOST_TYPES:
        shares[OTHERS] = float(counts.sum() - counts[shown].sum())
    total = max(1, len(types))
    return [
        {"metric": "data", "value": count / total, "unit": "share", "part": part, "what": "type", "type": name}
        for name, count in shares.items()
    ]


def _learned_rows(scales: Scales) -> list[Row]:
    """Rows about the grid of times and about types that come again after a fixed time, in the data's unit."""
    unit = scales.mean_gap
    rows: list[Row] = [
        {"metric": "data", "value": scales.grid * unit, "unit": "time", "part": "train", "what": "grid of times"}
    ]
    for part in scales.return_parts:
        about = {"type": scales.type_names[part.type], "share": part.share, "deviation": part.deviation * unit}
        rows.append({"metric": "data", "value": part.lag * unit, "unit": "time", "part": "train", "what": "return", **about})
    return rows


def confusion_rows(scored: Scored, names: Sequence[str]) -> list[Row]:
    """Rows with the number of events of each type that were predicted as each type, given their times."""
    counts = np.bincount(scored.types, minlength=len(names))
    shown = np.argsort(-counts, kind="stable")[:MOST_TYPES]
    place = np.full(len(names), len(shown))
    place[shown] = np.arange(len(shown))
    labels = [*(names[at] for at in shown), OTHERS]
    pairs = np.bincount(place[scored.types] * len(labels) + place[scored.likeliest], minlength=len(labels) ** 2)
    return [
        {"metric": "type_confusion", "value": int(count), "unit": "1", "actual": actual, "predicted": predicted}
        for actual, line in zip(labels, pairs.reshape(len(labels), -1).tolist(), strict=True)
        for predicted, count in zip(labels, line, strict=True)
        if count
    ]


def calibration_rows(scored: Scored) -> list[Row]:
    """Rows with the share of right types by the probability that they had, and the mean distance of the two."""
    right = (scored.types == scored.likeliest).astype(float)
    bins = np.minimum((scored.confidence * BINS).astype(int), BINS - 1)
    counts = np.bincount(bins, minlength=BINS).astype(float)
    shares, chances = (divide(np.bincount(bins, values, minlength=BINS), counts) for values in (right, scored.confidence))
    rows: list[Row] = [
        {"metric": "type_calibration", "value": share, "unit": "share", "confidence": chance, "events": int(count)}
        for share, chance, count in zip(shares.tolist(), chances.tolist(), counts, strict=True)
        if count
    ]
    error = float(np.nansum(counts * np.abs(shares - chances)) / max(1.0, counts.sum()))
    return [*rows, {"metric": "type_calibration_error", "value": error, "unit": "share", "split": "test"}]
