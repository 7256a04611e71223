"""Card transactions (Baikalov et al.): which attention tells two classes of clients apart best, at what cost?

Softmax, the Performer and the infinity-former were to be compared in quality, speed and memory; here with linear attention,
Linformer and gradient boosting on aggregates beside them, on the same clients, fold by fold.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy import ndarray

from subquad.experiments.base import Trial, finished
from subquad.measure.machine import describe, versions
from subquad.results import Row, Run
from subquad.statistics import Interval, Verdict, at_most, is_positive, percentile_interval
from subquad.words import between

CLAIM = "efficient attentions tell clients apart by their transactions as well as softmax, for less (after Baikalov et al.)"
ATTENTIONS = ("softmax", "linear", "favor", "infinity", "linformer")
BASELINE, BOOSTING = "softmax", "boosting"
SCORE, BEST_POSSIBLE = "score", "best_possible_auroc"
NEAR = 0.02
"""How far from the best possible AUROC counts as having learned the task."""
QUARTER = 0.25
"""The share of softmax's time that a training step may take at the long length."""
LONG = 8192


@dataclass(frozen=True)
class Grid:
    """What a scale runs."""

    folds: int
    arguments: tuple[str, ...]
    own: Mapping[str, tuple[str, ...]]
    minutes: str
    data: str = ""
    """Where the data are; simulated clients unless told."""

    @property
    def labels(self) -> tuple[str, ...]:
        """Berka's clients have two."""
        return ("age", "gender") if self.data and (Path(self.data) / "trans.asc").exists() else ("",)

    def trials(self) -> Iterator[Trial]:
        """In an order in which every attention gets its first results early."""
        for label, fold, attention in product(self.labels, range(self.folds), ATTENTIONS):
            given = ("--attention", attention, "--fold", str(fold), "--folds", str(self.folds), "--seed", str(fold))
            data = ("--data", self.data, *(("--label", label) if label else ())) if self.data else ()
            arguments = ("transactions", *given, *self.arguments, *self.own.get(attention, ()), *data)
            name = "-".join(filter(None, ("transactions", label, attention, str(fold))))
            yield Trial(name, attention, 0, fold, arguments)


SCALES: dict[str, Grid] = {
    "quick": Grid(
        folds=5,
        arguments=(
            *("--layers", "1", "--heads", "4", "--head-dim", "16", "--batch", "32", "--steps", "300"),
            *("--learning-rate", "1e-2", "--schedule", "cosine", "--warm-up", "20"),
            *("--evaluate-every", "300", "--checkpoint-every", "300"),
        ),
        own={"favor": ("--features", "64"), "infinity": ("--segment", "128", "--basis", "64"), "linformer": ("--k", "64")},
        minutes="under 10 minutes on two cores with simulated clients",
    ),
    "paper": Grid(
        folds=5,
        arguments=(
            "--layers",
            "4",
            "--heads",
            "8",
            "--head-dim",
            "16",
            "--batch",
            "64",
            "--steps",
            "5000",
            "--dropout",
            "0.1",
        ),
        own={"favor": ("--features", "128")},
        minutes="hours on two cores; with --data for Sberbank's clients",
    ),
}


class Scores(NamedTuple):
    """The test clients of one fold, and what a model says of them."""

    labels: ndarray
    values: ndarray


def measure(folder: Path, scale: str) -> None:
    """Scores of every model's test clients, boosting on the same folds, and what steps cost."""
    from subquad.experiments.transactions.costs import costs, score

    own = folder / "scores"
    about = {"versions": versions(), "machine": describe(), "command": f"subquad reproduce transactions --scale {scale}"}
    run = Run.open(own, "scores") if (own / "run.json").exists() else Run.create(own, "scores", about)
    trained = [Run.open(path, "train") for path in sorted(folder.glob("transactions-*")) if finished(path)]
    options = {found.about["options"]["mechanism"]["kind"]: found.about["options"] for found in trained}
    is_costed = options.keys() <= {row["mechanism"] for row in run.rows() if _is_last_cost(row)}
    _forget_unfinished(run, is_costed=is_costed)
    run.append(score(trained, {_scored(row) for row in run.rows() if row["metric"] in (SCORE, BEST_POSSIBLE)}))
    if not is_costed:
        run.append(costs(options))


def _scored(row: Row) -> tuple[str, str, int]:
    """What a score is of: the label, the mechanism (or that it is the best possible one), and the fold."""
    return row["label"], BEST_POSSIBLE if row["metric"] == BEST_POSSIBLE else row["mechanism"], row["fold"]


def _is_last_cost(row: Row) -> bool:
    return row["metric"] == "peak_bytes" and row["length"] == LONG


def _forget_unfinished(run: Run, *, is_costed: bool) -> None:
    """Takes out costs that were not measured to the end, and the scores that were written last, if nothing came after."""
    if not is_costed:
        run.keep_rows(lambda row: "work" not in row)
    rows = run.rows()
    if rows and rows[-1]["metric"] == SCORE:
        run.keep_rows(lambda row: row["metric"] != SCORE or _scored(row) != _scored(rows[-1]))


def gather(rows: Sequence[Row]) -> dict[str, dict[str, dict[int, Scores]]]:
    """Scores by label, mechanism and fold."""
    found: dict[str, dict[str, dict[int, list[Row]]]] = {}
    for row in rows:
        if row["metric"] == SCORE:
            found.setdefault(row["label"], {}).setdefault(row["mechanism"], {}).setdefault(row["fold"], []).append(row)
    return {
        label: {
            name: {
                fold: Scores(np.array([row["class"] for row in own]), np.array([row["value"] for row in own]))
                for fold, own in folds.items()
            }
            for name, folds in by_name.items()
        }
        for label, by_name in found.items()
    }


def quality(folds: Mapping[int, Scores]) -> Interval:
    """The mean AUROC over folds, and its interval by drawing the clients of each fold again."""
    return _interval(_draws(folds))


def difference(first: Mapping[int, Scores], second: Mapping[int, Scores]) -> Interval:
    """How much higher the first's mean AUROC is, on the same clients, drawn again together."""
    return _interval(_draws(first) - _draws(second))


def _draws(folds: Mapping[int, Scores]) -> ndarray:
    """The mean over folds as it is, then for each drawing."""
    from subquad.tasks.transactions.metrics import auroc, resampled_aurocs

    each = [
        np.concatenate([[auroc(found.labels, found.values)], resampled_aurocs(found.labels, found.values, seed=fold)])
        for fold, found in sorted(folds.items())
    ]
    drawn: ndarray = np.mean(each, axis=0)
    return drawn


def _interval(draws: ndarray) -> Interval:
    return percentile_interval(float(draws[0]), draws[1:])


def best_possible(rows: Sequence[Row]) -> float | None:
    """The mean over folds of what the best of all classifiers reaches, where it is known."""
    found = {row["fold"]: row["value"] for row in rows if row["metric"] == BEST_POSSIBLE}
    return float(np.mean(list(found.values()))) if found else None


def judge(folder: Path, scale: str) -> list[Verdict]:
    """Verdicts on quality and on cost."""
    if not (folder / "scores" / "run.json").exists():
        return []
    rows = Run.open(folder / "scores", "scores").rows()
    found: list[Verdict] = []
    for label, by_name in gather(rows).items():
        found += compared(label, by_name, best_possible(rows))
    return [*found, *cheaper(rows)]


def compared(label: str, by_name: Mapping[str, Mapping[int, Scores]], best: float | None) -> Iterator[Verdict]:
    """Each attention against the best possible, softmax and boosting."""
    about = f" ({label})" if label else ""
    for name in [name for name in ATTENTIONS if name in by_name]:
        own = quality(by_name[name])
        if best is not None:
            claim = f"{name} comes within {NEAR} of the best possible AUROC"
            yield Verdict(claim, best - own.value <= NEAR, f"{between(own, '.3f')}, best possible {best:.3f}")
        for other in (BASELINE, BOOSTING):
            if other in by_name and other != name:
                gap = difference(by_name[name], by_name[other])
                theirs = between(quality(by_name[other]), ".3f")
                yield Verdict(
                    f"{name} has a higher AUROC than {other}{about}",
                    is_positive(gap),
                    f"{between(own, '.3f')} against {theirs}; difference {between(gap, '+.3f')}",
                )


def cheaper(rows: Sequence[Row]) -> Iterator[Verdict]:
    """At many events, whether a training step takes a quarter of softmax's time."""
    for row in rows:
        long = row["metric"] == "times_softmax" and row["work"] == "training" and row["length"] == LONG
        if long and row["mechanism"] in ("linear", "favor"):
            claim = f"with {row['mechanism']} a training step on {LONG} events takes at most a quarter of softmax's time"
            share = Interval.of_row(row)
            yield Verdict(claim, at_most(share, QUARTER), f"{between(share, '.3f')} times softmax's")


def about_run(options: Mapping[str, Any]) -> dict[str, Any]:
    """What a row says of the run that it is from."""
    return {"label": options["task"]["label"], "mechanism": options["mechanism"]["kind"], "fold": options["task"]["fold"]}
