"""What a task tells so that models of it can be compared: lengths, facts about its data, scores of single test sequences.

`subquad choose` works on every task through these methods. Each has a default, and a task that knows more overrides it.
"""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy import ndarray
from torch import nn

from subquad.results import Row
from subquad.statistics import grouped_sums

Good = Literal["low", "high"]
Statistic = Literal["ratio", "auroc"]
"""How a score follows from parts of test sequences: the sum of the first part over that of the second, or the AUROC of the
second part, a score, for the first, a label of 0 or 1."""
TEST_SEED = 2**40
"""Seed of test sequences that are drawn at random, the same for every run."""
MOST_GROUPS = 2000
"""Largest number of test sequences that are kept apart; neighbouring ones are added up to so many groups."""
DRAWN_BATCHES, DRAWN_SEQUENCES = 16, 16
"""Numbers of training batches, and of sequences in each, by which lengths are known if the task does not tell them."""


class Best(NamedTuple):
    """The metric of `Task.evaluate` that decides which weights of a run are best, and whether low or high is good."""

    metric: str
    good: Good


class Judged(NamedTuple):
    """How good a model is on the test sequences, one by one, so that two models can be compared on the same ones."""

    metric: str
    good: Good
    unit: str
    parts: Float[ndarray, "sequences 2"]
    """What each sequence, or each group of neighbouring ones, adds to the score."""
    statistic: Statistic = "ratio"


class Rival(NamedTuple):
    """What a model without attention scores on the test sequences."""

    judged: Judged
    is_trivial: bool = False
    """Whether the model knows nothing of a sequence: it always gives the same answer, or guesses."""


def judged_means(metric: str, good: Good, unit: str, totals: ndarray, counts: ndarray) -> Judged:
    """The scores of sequences that each have a total and a count, such as nats and events; the score is a ratio of sums."""
    parts = np.stack([np.asarray(totals, float), np.asarray(counts, float)], axis=1)
    groups = np.array_split(parts, min(len(parts), MOST_GROUPS))
    return Judged(metric, good, unit, np.array([group.sum(0) for group in groups]))


def judged_terms(metric: str, good: Good, unit: str, values: ndarray, lengths: Int[ndarray, "sequences"]) -> Judged:
    """The scores of sequences by the values of their terms; `lengths` says how many consecutive terms each has."""
    return judged_means(metric, good, unit, grouped_sums(np.asarray(values, float), lengths), lengths)


def share_rows(part: str, what: str, shares: Mapping[str, float], most: int = 12) -> list[Row]:
    """Rows with the share of each class or type in a split, the most frequent ones first and the others joined."""
    ordered = sorted(shares.items(), key=lambda item: -item[1])
    shown = dict(ordered[:most])
    if len(ordered) > most:
        shown["all others"] = sum(share for _, share in ordered[most:])
    about: Row = {"metric": "data", "unit": "share", "part": part, "what": what}
    return [{**about, "value": float(share), "type": name} for name, share in shown.items()]


class Comparable:
    """The part of a task by which its models are compared."""

    @property
    def chosen_by(self) -> Best | None:
        """The metric that decides a run's best weights; None if a run ends with its last weights."""
        return None

    @property
    def ranked_by(self) -> Best | None:
        """The metric of `evaluate` that ranks runs with different options: by default the one that decides best weights."""
        return self.chosen_by

    @property
    def is_causal(self) -> bool:
        """Whether a position of the models sees earlier positions only, so that an attention needs a causal form."""
        return False

    def lengths(self) -> dict[str, Int[ndarray, "sequences"]]:
        """Number of positions of the sequences of each split; by default those of a few training batches, with padding."""
        drawing, task = torch.Generator().manual_seed(0), self._as_task()
        batches = [task.batch(DRAWN_SEQUENCES, drawing)[0] for _ in range(DRAWN_BATCHES)]
        return {"drawn": np.concatenate([np.full(len(first), first.shape[1]) for first in batches])}

    def data_rows(self) -> list[Row]:
        """Rows about the data with the metric "data", such as shares of classes: fields part, what, value and unit."""
        return []

    def judge(self, model: nn.Module) -> Judged:
        """The model's scores on the test sequences. By default one score, of sequences that were not seen in training."""
        task, best = self._as_task(), self.ranked_by
        assert best is not None
        value = task.evaluate(model, torch.Generator().manual_seed(TEST_SEED))[best.metric]
        return Judged(best.metric, best.good, task.units.get(best.metric, "share"), np.array([[value, 1.0]]))

    def rivals(self) -> dict[str, Rival]:
        """Models without attention by name, fitted to the training sequences and judged as `judge` does."""
        return {}

    def _as_task(self) -> Any:
        return self
