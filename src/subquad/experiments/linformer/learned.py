"""Verdicts on what Linformer's projections learn, from their closeness to means, positions and singular vectors."""

from collections.abc import Iterator, Sequence
from statistics import mean

from subquad.experiments.linformer.grid import Grid, Variant
from subquad.experiments.linformer.projections import CHANGE, CLOSENESS, FRESH, LEARNED, TRAINED
from subquad.results import Row
from subquad.statistics import Interval, Verdict, at_least, mean_over_seeds
from subquad.words import between

HALF = 0.5
"""Share of the squares that makes what is learned mostly one thing."""
MATRICES = {"E": "keys", "F": "values"}
"""Names of the projections, and what each projects."""


def judge_projections(rows: Sequence[Row], grid: Grid) -> Iterator[Verdict]:
    """Yields a verdict on each thing that projections may learn, for the model in which each head has its own."""
    variant = grid.shared._replace(sharing="none")
    about = f"n={variant.length}, k={variant.k}: at least half of"
    for metric, words in CLOSENESS.items():
        trained, fresh, change = (closeness_of(rows, variant, metric, model) for model in (TRAINED, FRESH, CHANGE))
        if trained is not None and fresh is not None and change is not None:
            sides = {name: closeness_of(rows, variant, metric, CHANGE, side) for name, side in MATRICES.items()}
            parts = [f"{name} {between(share, '.3f')}" for name, share in sides.items() if share is not None]
            beside = f"the trained weights {trained.value:.3f}, fresh ones {fresh.value:.3f}"
            figures = f"{between(change, '.3f')}; {', '.join(parts)}; {beside}"
            yield Verdict(f"{about} what E and F learn is {words}", at_least(change, HALF), figures)
    learned = closeness_of(rows, variant, LEARNED, CHANGE)
    if learned is not None:
        figures = f"{between(learned, '.3f')}, the rest is as it was drawn"
        yield Verdict(f"{about} the squared weights of E and F is learned", at_least(learned, HALF), figures)


def closeness_of(rows: Sequence[Row], variant: Variant, metric: str, model: str, side: str | None = None) -> Interval | None:
    """A share of a model's projections over seeds: the mean over layers and heads, of both sides or of one."""
    by_seed: dict[int, list[float]] = {}
    for row in rows:
        if row["metric"] == metric and row["model"] == model and is_of(row, variant) and side in (None, row["side"]):
            by_seed.setdefault(row["seed"], []).append(row["value"])
    return mean_over_seeds([mean(values) for values in by_seed.values()]) if by_seed else None


def is_of(row: Row, variant: Variant) -> bool:
    """Whether a row on projections is of this model."""
    return bool((row["length"], row["k"], row["sharing"]) == tuple(variant))
