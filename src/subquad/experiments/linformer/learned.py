"""Verdicts on what Linformer's projections learn, from their closeness to means, positions and singular vectors."""

from collections.abc import Iterator, Sequence
from statistics import mean

from subquad.experiments.linformer.grid import Grid, Variant
from subquad.experiments.linformer.projections import CHANGE, CLOSENESS, FRESH, LEARNED, TRAINED
from subquad.results import Row
from subquad.statistics import Interval, Verdict, at_least, mean_over_seeds
from subquad.words import between

HALF = 0.5
"""Share of the squared weights that makes a projection mostly one thing."""


def judge_projections(rows: Sequence[Row], grid: Grid) -> Iterator[Verdict]:
    """Yields a verdict on each thing that projections may learn, for the model in which each head has its own."""
    variant = grid.shared._replace(sharing="none")
    for metric, words in CLOSENESS.items():
        shares = {model: closeness_of(rows, variant, metric, model) for model in (TRAINED, FRESH, CHANGE)}
        trained, fresh, change = shares.values()
        if trained is not None and fresh is not None and change is not None:
            claim = f"n={variant.length}, k={variant.k}: at least half of the squared weights of E and F are {words}"
            beside = f"{between(fresh, '.3f')} with fresh weights, {between(change, '.3f')} of what training changed"
            yield Verdict(claim, at_least(trained, HALF), f"{between(trained, '.3f')}; {beside}")
    learned = closeness_of(rows, variant, LEARNED, CHANGE)
    if learned is not None:
        claim = f"n={variant.length}, k={variant.k}: at least half of the squared weights of E and F is learned"
        yield Verdict(claim, at_least(learned, HALF), f"{between(learned, '.3f')}, the rest is as it was drawn")


def closeness_of(rows: Sequence[Row], variant: Variant, metric: str, model: str) -> Interval | None:
    """A share of a model's projections over seeds: the mean over layers, heads, keys and values of each."""
    by_seed: dict[int, list[float]] = {}
    for row in rows:
        if row["metric"] == metric and row["model"] == model and is_of(row, variant):
            by_seed.setdefault(row["seed"], []).append(row["value"])
    return mean_over_seeds([mean(values) for values in by_seed.values()]) if by_seed else None


def is_of(row: Row, variant: Variant) -> bool:
    """Whether a row on projections is of this model."""
    return bool((row["length"], row["k"], row["sharing"]) == tuple(variant))
