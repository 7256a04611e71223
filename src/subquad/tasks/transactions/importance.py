"""Which columns of clients matter to a model: how much worse it is when their values are exchanged."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray

from subquad.data.ragged import places_of
from subquad.results import Row
from subquad.tasks.targets.metrics import interval_of
from subquad.tasks.targets.target import Target
from subquad.tasks.transactions.histories import Histories

MOST_PERMUTED = 1000
"""Largest number of test clients by which it is measured which columns matter."""
ORDER = "order of events"
"""Name of what is shuffled within each client, beside the names of columns."""

Predict = Callable[[Histories], Float[ndarray, "n p"]]


def importance_rows(target: Target, test: Histories, predict: Predict, used: Sequence[str]) -> Iterator[Row]:
    """Yields by how much the deciding metric falls when the values of a used column are exchanged between test clients.

    The values of a column of events are exchanged between all events of all clients. For the order of events, those of each
    client are shuffled and its times stay. Intervals are by drawing clients again.
    """
    test = test.select(np.arange(min(len(test.clients), MOST_PERMUTED)))
    rng = np.random.default_rng(0)
    before = target.metrics(test.targets, predict(test))[target.deciding]
    for column, permuted in _permuted(test, used, rng):
        after = target.metrics(test.targets, predict(permuted))[target.deciding]
        yield {"metric": "importance", "column": column, "of": target.deciding, **interval_of(before - after)._asdict()}


def _permuted(test: Histories, used: Sequence[str], rng: np.random.Generator) -> Iterator[tuple[str, Histories]]:
    """Yields the histories with one used column after the other exchanged."""
    events, clients = rng.permutation(len(test.times)), rng.permutation(len(test.clients))
    for name, part in (("code", "codes"), ("type", "types"), ("amount", "amounts")):
        if name in used:
            yield name, test._replace(**{part: getattr(test, part)[events]})
    for at, column in enumerate(test.columns):
        if column.column.name in used:
            columns = (*test.columns[:at], column.take(events), *test.columns[at + 1 :])
            yield column.column.name, test._replace(columns=columns)
    for at, column in enumerate(test.static):
        if column.column.name in used:
            columns = (*test.static[:at], column.take(clients), *test.static[at + 1 :])
            yield column.column.name, test._replace(static=columns)
    mixed = _shuffled_within(test, rng)
    yield (
        ORDER,
        test._replace(
            codes=test.codes[mixed],
            types=test.types[mixed],
            amounts=test.amounts[mixed],
            columns=tuple(column.take(mixed) for column in test.columns),
        ),
    )


def _shuffled_within(test: Histories, rng: np.random.Generator) -> Int[ndarray, "events"]:
    """The places of the events, in a random order within each client."""
    client = np.repeat(np.arange(len(test.clients)), test.lengths)
    return places_of(test.offsets[:1], test.offsets[-1:])[np.lexsort((rng.random(len(client)), client))]
