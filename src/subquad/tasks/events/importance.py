"""Which further columns matter to a model of events: how much likelihood is lost when their values are exchanged."""

from collections.abc import Iterator

import numpy as np
import torch
from jaxtyping import Float
from numpy import ndarray

from subquad.results import Row
from subquad.statistics import grouped_mean
from subquad.tasks.events.model import EventModel
from subquad.tasks.events.scoring import encode, in_slices, states
from subquad.tasks.events.sequences import EventSequences

MOST_EXCHANGED = 500
"""Largest number of test sequences by which it is measured which columns matter."""


def importance_rows(model: EventModel, test: EventSequences, tokens: int) -> Iterator[Row]:
    """Yields the rise of the negative log-likelihood per event when a column's values are exchanged between test events.

    Values of a column that has one value in each sequence are exchanged between sequences. Intervals are over sequences.
    """
    names = {column.name for column in model.scales.further_columns}
    if not names:
        return
    test = test.select(np.arange(min(len(test.names), MOST_EXCHANGED)))
    rng = np.random.default_rng(0)
    before, lengths = _likelihoods(model, test, tokens), (test.lengths - 1).clip(0)
    owner, starts = np.repeat(np.arange(len(test.names)), test.lengths), test.offsets[:-1]
    for at, column in enumerate(test.columns):
        if (name := column.column.name) not in names:
            continue
        is_carried = name in model.scales.carried
        order = starts[rng.permutation(len(starts))][owner] if is_carried else rng.permutation(len(test.times))
        columns = (*test.columns[:at], column.take(order), *test.columns[at + 1 :])
        lost = grouped_mean(before - _likelihoods(model, test._replace(columns=columns), tokens), lengths)
        yield {"metric": "importance", "column": name, "of": "nll", **lost._asdict()}


@torch.no_grad()
def _likelihoods(model: EventModel, sequences: EventSequences, tokens: int) -> Float[ndarray, "events"]:
    """Log-likelihood of the time and type of each event but first ones, in the order of the events."""
    encoded = encode(model.scales, sequences)
    found = np.zeros(len(sequences.times))
    for at, last, h in states(model, encoded, tokens):
        following = at[~last] + 1
        gaps = torch.from_numpy(encoded.gaps[following]).to(h)
        types = torch.from_numpy(encoded.types[following]).to(h.device)
        if len(following):
            terms = in_slices(model.head.terms, h[torch.from_numpy(~last)], gaps, types)
            found[following] = (terms.time + terms.type).double().cpu().numpy()
    return found[~sequences.first]
