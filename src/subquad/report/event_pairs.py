"""Models of events beside each other on the same test sequences: who is behind whom, in words and in a table.

Sequences differ far more than attentions do, so that a small difference shows only if two models are compared on each
sequence. Rows with the metric ``sequence_nll`` have the summed negative log-likelihood of a test sequence and its number of
events.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float
from numpy import ndarray

from subquad.report.tables import Cell, Table
from subquad.results import Row
from subquad.statistics import Interval, paired_ratio
from subquad.words import between

BySeed = Mapping[int, Sequence[Row]]
"""Rows of the trainings of one model, by seed."""

USUAL = "softmax"
"""Attention that all others are compared with, if it was trained."""


def over_sequences(ours: BySeed, theirs: BySeed) -> Interval | None:
    """Mean difference of the negative log-likelihoods per event of two models, with an interval over test sequences.

    Likelihoods of a sequence are averaged over the seeds that both models have. None without rows about sequences, and if
    the models were tested on different ones.
    """
    our_sums, their_sums = (
        {seed: sums for seed, rows in each.items() if len(sums := _sums(rows))} for each in (ours, theirs)
    )
    seeds = sorted(our_sums.keys() & their_sums.keys())
    if not seeds or any(not np.array_equal(our_sums[seed][:, 1], their_sums[seed][:, 1]) for seed in seeds):
        return None
    return paired_ratio(*(np.mean([sums[seed] for seed in seeds], axis=0) for sums in (our_sums, their_sums)))


def _sums(rows: Sequence[Row]) -> Float[ndarray, "sequences 2"]:
    """Summed negative log-likelihood and number of events of each test sequence."""
    chosen = sorted((row for row in rows if row["metric"] == "sequence_nll"), key=lambda row: row["sequence"])
    return np.array([(row["value"], row["events"]) for row in chosen], float).reshape(-1, 2)


def standing(gap: Interval) -> str:
    """A difference of negative log-likelihoods in words: behind or ahead if that is certain, however small it is."""
    if gap.low > 0:
        return f"behind by {between(gap, '.4f')}"
    if gap.high < 0:
        return f"ahead by {between(Interval(-gap.value, -gap.high, -gap.low), '.4f')}"
    return f"level, {between(gap, '+.4f')}"


def against_usual(models: Mapping[str, BySeed]) -> tuple[str, dict[str, Interval]]:
    """The model that all others are compared with, and the differences from it by label.

    It is softmax if this was trained in one way, or else the first model. Differences are empty if nothing can be compared.
    """
    usual = [label for label in models if label.partition(",")[0] == USUAL]
    reference = usual[0] if len(usual) == 1 else next(iter(models), "")
    others = {label: over_sequences(rows, models[reference]) for label, rows in models.items() if label != reference}
    return reference, {label: gap for label, gap in others.items() if gap is not None}


def pair_sentences(models: Mapping[str, BySeed]) -> list[str]:
    """What is said of each model beside the one that all are compared with."""
    reference, gaps = against_usual(models)
    return [
        f"on each test sequence beside {reference}, {label} is {standing(gap)} nats per event" for label, gap in gaps.items()
    ]


def pair_table(models: Mapping[str, BySeed]) -> Table:
    """The difference of each model from the one that all are compared with, and the seeds that both have."""
    reference, gaps = against_usual(models)
    lines = []
    for label, gap in gaps.items():
        seeds = ", ".join(str(seed) for seed in sorted(models[label].keys() & models[reference].keys()))
        lines.append([Cell(label), Cell(between(gap, "+.4f"), gap.value), Cell(standing(gap).split(",")[0]), Cell(seeds)])
    columns = ["", f"nats per event, minus {reference}'s", "", "seeds, averaged"]
    return Table("Differences on the same test sequences; 95% intervals over sequences", columns, lines)
