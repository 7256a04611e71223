"""Final metrics of an event model: rows about the test sequences, with intervals and baselines."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from subquad.results import Row
from subquad.statistics import Interval, grouped_mean, grouped_sums
from subquad.tasks.events import truth
from subquad.tasks.events.baselines import Likelihoods
from subquad.tasks.events.metrics import (
    Baselines,
    accuracy,
    accuracy_interval,
    join_ends,
    macro_f1,
    macro_f1_interval,
    mae,
    mae_interval,
    residuals,
    rmse,
    rmse_interval,
)
from subquad.tasks.events.scoring import LEVELS, Scored
from subquad.tasks.events.sequences import EventSequences
from subquad.tasks.events.simulator import Process

UNITS = {"nll": "nats", "nll_time": "nats", "nll_type": "nats", "rmse": "time", "mae": "time", "crps": "time"}
COVERAGE = (0.5, 0.8, 0.95)
"""Levels of the central intervals of the gap whose coverage is measured, beside the 90% of forecasts."""
MOST_GROUPS = 2000
"""Largest number of rows about single test sequences."""


def metric_rows(scored: Scored, baselines: Baselines, *, type_head: bool, time_head: bool) -> list[Row]:
    """Rows of all metrics with 95% intervals over sequences, and of the baselines.

    `accuracy` and `macro_f1` judge the most probable type given the time of the event, as is usual. `accuracy_foreseen`
    judges the most probable type before that time is known. `rmse` judges the expected gap and `mae` the median, which
    minimize them. `crps` judges the whole distribution of the gap. `coverage_80` is the share of gaps in the central 80% of
    their distribution; `within_interval` is the same for 90%. Metrics of the heads that only predict end in `by_head`.
    """
    types, gaps, lengths = scored.types, scored.gaps, scored.lengths
    median = scored.quantiles[:, LEVELS.index(0.5)]
    within = (scored.quantiles[:, 0] <= gaps) & (gaps <= scored.quantiles[:, -1])
    intervals: dict[str, Interval] = {
        "nll": grouped_mean(-scored.time - scored.type, lengths),
        "nll_time": grouped_mean(-scored.time, lengths),
        "nll_type": grouped_mean(-scored.type, lengths),
        "accuracy": accuracy_interval(types, scored.likeliest, lengths),
        "macro_f1": macro_f1_interval(types, scored.likeliest, lengths),
        "accuracy_foreseen": accuracy_interval(types, scored.foreseen, lengths),
        "rmse": rmse_interval(gaps, scored.expected, lengths),
        "mae": mae_interval(gaps, median, lengths),
        "within_interval": grouped_mean(within.astype(float), lengths),
        "crps": grouped_mean(scored.crps, lengths),
    }
    passed = -np.expm1(-scored.rescaled)  # probability of a shorter gap
    for level in COVERAGE:
        inside = np.abs(passed - 0.5) <= level / 2.0
        intervals[f"coverage_{level:.0%}".rstrip("%")] = grouped_mean(inside.astype(float), lengths)
    if type_head:
        intervals["accuracy_by_head"] = accuracy_interval(types, scored.headed, lengths)
        intervals["macro_f1_by_head"] = macro_f1_interval(types, scored.headed, lengths)
    if time_head:
        intervals["rmse_by_head"] = rmse_interval(gaps, scored.headed_gaps, lengths)
    rows = [_row(name, **interval._asdict()) for name, interval in intervals.items()]
    always = np.full(len(types), baselines.type)
    rows.append(_row("accuracy_of_most_frequent", accuracy(types, always)))
    rows.append(_row("macro_f1_of_most_frequent", macro_f1(types, always)))
    rows.append(_row("rmse_of_mean_gap", rmse(gaps, np.full(len(gaps), baselines.mean_gap))))
    rows.append(_row("mae_of_median_gap", mae(gaps, np.full(len(gaps), baselines.median_gap))))
    return rows


def baseline_rows(scored: Scored, judged: Mapping[str, Likelihoods]) -> list[Row]:
    """Rows of the negative log-likelihood of each baseline, and of how far the model's is above it on the same events.

    `time` and `type` are the parts of a baseline's value. The field `baseline` marks rows in which a value above 0 means
    that the model loses.
    """
    rows = []
    ours = scored.time + scored.type
    for name, theirs in judged.items():
        total = grouped_mean(-theirs.time - theirs.type, scored.lengths)
        parts = {"time": float(-theirs.time.mean()), "type": float(-theirs.type.mean())}
        rows.append(_row(f"nll_of_{name}", unit="nats", **total._asdict(), **parts))
    for name, theirs in judged.items():
        above = grouped_mean(theirs.time + theirs.type - ours, scored.lengths)
        rows.append(_row(f"nll_above_{name}", unit="nats", **above._asdict(), baseline=name))
    return rows


def sequence_rows(scored: Scored) -> list[Row]:
    """Rows of the summed negative log-likelihood of each test sequence, by which two runs are compared sequence by sequence.

    If there are more than `MOST_GROUPS` sequences, neighbouring ones are added up to so many groups.
    """
    parts = np.stack([grouped_sums(-scored.time - scored.type, scored.lengths), scored.lengths.astype(float)], axis=1)
    groups = np.array_split(parts, min(len(parts), MOST_GROUPS))
    sums = [group.sum(0).tolist() for group in groups]
    return [
        {"metric": "sequence_nll", "value": total, "unit": "nats", "sequence": number, "events": int(events)}
        for number, (total, events) in enumerate(sums)
    ]


def truth_rows(scored: Scored, process: Process, sequences: EventSequences) -> list[Row]:
    """Rows of the likelihood of the true process on the same events, and of the model's distance from it."""
    known, later = truth.log_likelihood(process, sequences), ~sequences.first
    best = (known.time + known.type)[later]
    short = grouped_mean(best - scored.time - scored.type, scored.lengths)
    return [
        _row("nll_of_truth", float(-best.mean()), unit="nats"),
        _row("nll_above_truth", unit="nats", **short._asdict()),
    ]


def residual_rows(scored: Scored) -> list[Row]:
    """Rows of the error of the integral, of the Kolmogorov-Smirnov test of the residuals, and of points of a QQ plot.

    `integral_error` is the mean absolute difference when the number of points is doubled.
    """
    tested = residuals(join_ends(scored.rescaled, scored.lengths, scored.ends))
    rows = [
        _row("integral_error", float(np.abs(scored.doubled - scored.rescaled).mean()), unit="nats"),
        _row("residual_distance", tested.statistic),
        _row("residual_p_value", tested.p_value),
    ]
    points = zip(tested.expected, tested.observed, strict=True)
    return rows + [
        {"metric": "residual_quantile", "value": float(here), "unit": "1", "exponential": float(there)}
        for there, here in points
    ]


def _row(metric: str, value: float, *, unit: str = "", **more: Any) -> Row:
    name = metric.split("_of_")[0].split("_by_")[0]
    return {"metric": metric, "split": "test", "value": value, "unit": unit or UNITS.get(name, "share"), **more}
