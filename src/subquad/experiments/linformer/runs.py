"""Finished trainings of the experiment on Linformer: language models, classifiers and spectra, and their figures."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from subquad.experiments.base import is_finished
from subquad.experiments.linformer.grid import LINFORMER, Variant
from subquad.report.training import value_on_test
from subquad.results import Row, Run


class Pretrained(NamedTuple):
    """A finished language model."""

    variant: Variant
    seed: int
    run: Run
    rows: list[Row]


def pretrained(folder: Path) -> list[Pretrained]:
    """All finished language models."""
    models = []
    for path in sorted(folder.glob("mlm-*")):
        if is_finished(path):
            run = Run.open(path, "train")
            mechanism, length = run.about["options"]["mechanism"], run.about["options"]["task"]["length"]
            slots = (mechanism["k"], mechanism["sharing"]) if mechanism["kind"] == LINFORMER else ()
            models.append(Pretrained(Variant(length, *slots), run.about["seed"], run, run.rows()))
    return models


def accuracies(folder: Path) -> dict[str, dict[int, float]]:
    """Test accuracy of finished classifiers, by what they start from, then by seed."""
    by_start: dict[str, dict[int, float]] = {}
    for path in sorted(folder.glob("classify-*")):
        if is_finished(path):
            _, start, seed = path.name.split("-")
            accuracy = value_on_test(Run.open(path, "train").rows(), "accuracy")
            assert accuracy is not None  # every classifier ends with an accuracy
            by_start.setdefault(start, {})[int(seed)] = accuracy
    return by_start


def spectra(folder: Path) -> dict[int, list[Row]]:
    """Rows of the runs of `subquad spectrum`, by seed."""
    by_seed = {int(path.name.split("-")[1]): Run.open(path, "spectrum").rows() for path in sorted(folder.glob("spectrum-*"))}
    return {seed: rows for seed, rows in by_seed.items() if rows}


def nats(runs: Sequence[Pretrained], variant: Variant, metric: str = "perplexity") -> dict[int, float]:
    """Logarithm of a model's test perplexity, by seed."""
    perplexities = {model.seed: value_on_test(model.rows, metric) for model in runs if model.variant == variant}
    return {seed: math.log(value) for seed, value in perplexities.items() if value is not None}


def above_unigram(runs: Sequence[Pretrained], variant: Variant) -> dict[int, float]:
    """Logarithm of the ratio of a model's perplexity to the unigram's on the same tokens, by seed."""
    known = nats(runs, variant, "perplexity_of_unigram")
    return {seed: value - known[seed] for seed, value in nats(runs, variant).items()}
