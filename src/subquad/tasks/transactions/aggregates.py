"""What counts know of a client: how often each value and pair of values occurs, how lately, and the spread of numbers.

Each client becomes one row of numbers, in the same order for all clients. The order of a client's events enters through
pairs of neighbours and through recency: the sum over the events with a value of their place in the history, from -1 to 1.
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray

from subquad.checking import Checked, Count, Whole, read
from subquad.data.times import DAY
from subquad.tasks.transactions.features import FIELDS, Features, log_gaps, signed_log
from subquad.tasks.transactions.histories import Histories

MOST_SINGLE, MOST_PAIRS = 50, 60
"""Largest numbers of values of a field and of pairs that are counted, those of the most training clients."""
MOST_STATIC = 200
"""Largest number of symbols of a column of clients that become numbers of their own."""
QUANTILES = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)
CLOCK_PARTS = 6
CHUNK_EVENTS = 500_000
"""Number of events that are counted at a time."""
LARGEST_TABLE = 64_000_000
"""Largest number of numbers of the table of all clients; with more clients, fewer values and pairs are counted."""


@dataclass(frozen=True)
class Counted(Checked):
    """Symbols that are counted in some fields of an encoded event."""

    name: str
    first: Whole  # place of the first field
    fields: Count  # number of fields, which hold symbols of the same kind
    symbols: tuple[int, ...]
    size: Count  # number of different symbols
    paired: bool = False  # count pairs of a symbol with the one of the event before, as first * size + second


class Aggregates:
    """Computes the numbers of clients. What is counted is learned from the training clients and stored as JSON."""

    def __init__(self, features: Features, counted: tuple[Counted, ...]) -> None:
        self.features, self.counted = features, counted

    @classmethod
    def learn(cls, features: Features, training: Histories, clients: int) -> "Aggregates":
        """Chooses the symbols and pairs that most training clients have; fewer if there are very many `clients`."""
        part = min(1.0, LARGEST_TABLE / max(1, clients) / 1000)
        encoded = features.encode(training.select(np.arange(min(len(training.clients), 5000))))
        lengths = training.lengths[:5000]
        client = np.repeat(np.arange(len(lengths)), lengths)
        counted = []
        for name, first, fields, size in _symbol_fields(features):
            most = max(5, round(part * MOST_SINGLE))
            symbols = encoded[:, first : first + fields].astype(np.int64)
            counted.append(Counted(name, first, fields, _frequent(symbols, client, size, most), size))
            if name in ("code", "type"):
                paired, of_pairs = _pairs(symbols[:, 0], client, size)
                most = max(5, round(part * MOST_PAIRS))
                frequent = _frequent(paired[:, None], of_pairs, size * size, most)
                counted.append(Counted(name, first, 1, frequent, size, paired=True))
        return cls(features, tuple(each for each in counted if each.symbols))

    @classmethod
    def from_json(cls, features: Features, values: Mapping[str, Any]) -> "Aggregates":
        """Reads what `as_json` returned."""
        return cls(features, tuple(read(Counted, each, "learned: wide: counted") for each in values["counted"]))

    def as_json(self) -> dict[str, Any]:
        """Returns what is counted as JSON types."""
        return {"counted": [asdict(each) | {"symbols": list(each.symbols)} for each in self.counted]}

    def table(self, histories: Histories) -> Float[ndarray, "clients numbers"]:
        """The numbers of each client, computed for some clients at a time."""
        parts = [self._part(histories.select(chosen)) for chosen in _chunks(histories.offsets)]
        return np.concatenate(parts) if parts else np.zeros((0, 0), np.float32)

    def _part(self, histories: Histories) -> Float[ndarray, "clients numbers"]:
        encoded, lengths = self.features.encode(histories), histories.lengths
        client = np.repeat(np.arange(len(lengths)), lengths)
        place = np.arange(len(client)) - np.repeat(histories.offsets[:-1], lengths)
        along = (2 * place + 1) / np.repeat(lengths, lengths) - 1.0
        blocks = [_overall(histories)]
        for each in self.counted:
            blocks += _counts(each, encoded, client, along, lengths)
        columns = [signed_log(np.nan_to_num(histories.amounts))] if "amount" in self.features.fields else []
        width = self.features.layout.width
        columns += [encoded[:, at] for at in range(width - self.features.layout.numbers, width)]
        blocks += [_spread(values.astype(float), client, along, histories) for values in columns]
        return np.concatenate([*blocks, self.static(histories)], axis=1).astype(np.float32)

    def static(self, histories: Histories) -> Float[ndarray, "clients numbers"]:
        """The columns of clients as numbers: a 1 for each value that a client has, and scaled numbers."""
        by_name = {column.column.name: column for column in histories.static}
        blocks = [np.zeros((len(histories.clients), 0))]
        for column in self.features.static_columns:
            symbols = column.encode(by_name[column.name], None)
            shown = [0] if column.is_numeric else list(range(min(column.symbols, MOST_STATIC)))
            blocks.append((symbols[:, :, None] == np.array(shown)).any(1).astype(float))
            if column.is_numeric:
                blocks.append(column.scaled(by_name[column.name], None)[:, None])
        return np.concatenate(blocks, axis=1)


def static_width(features: Features) -> int:
    """Number of numbers that columns of clients become."""
    columns = features.static_columns
    return sum(2 if column.is_numeric else min(column.symbols, MOST_STATIC) for column in columns)


def _symbol_fields(features: Features) -> Iterator[tuple[str, int, int, int]]:
    """Yields name, first field, number of fields and number of symbols of everything that is counted."""
    sizes = features.layout.sizes
    names = {"code": 0, "type": 1, "amount": 2}
    for name, place in names.items():
        if name in features.fields and not (name == "amount" and features.amounts == "log"):
            yield name, place, 1, sizes[place]
    yield "weekday", 3, 1, sizes[3]
    first = len(FIELDS)
    for column, size in zip(features.further_columns, sizes[4:], strict=True):
        yield column.name, first, column.width, size
        first += column.width


def _frequent(
    symbols: Int[ndarray, "events fields"], client: Int[ndarray, "events"], size: int, most: int
) -> tuple[int, ...]:
    """The symbols that most clients have, without the symbol 0 of cells with fewer values than others."""
    counts: dict[int, int] = {}
    for at in range(symbols.shape[1]):
        pairs = np.unique(client * size + symbols[:, at]) % size
        for symbol, count in zip(*np.unique(pairs, return_counts=True), strict=True):
            counts[int(symbol)] = counts.get(int(symbol), 0) + int(count)
    if symbols.shape[1] > 1:
        counts.pop(0, None)
    frequent = sorted(counts, key=lambda symbol: (-counts[symbol], symbol))
    return tuple(sorted(symbol for symbol in frequent[:most] if counts[symbol] > 1))


def _pairs(symbols: Int[ndarray, "events"], client: Int[ndarray, "events"], size: int) -> tuple[ndarray, ndarray]:
    """Pairs of neighbours in a history as single numbers, and the client of each pair."""
    inner = client[1:] == client[:-1]
    return (symbols[:-1] * size + symbols[1:])[inner], client[1:][inner]


def _counts(
    each: Counted, encoded: ndarray, client: ndarray, along: ndarray, lengths: ndarray
) -> Iterator[Float[ndarray, "clients numbers"]]:
    """Yields logarithms of counts of symbols or pairs, and of single symbols also their share and recency."""
    symbols = encoded[:, each.first : each.first + each.fields].astype(np.int64)
    wanted, number = np.array(each.symbols), len(each.symbols)
    if each.paired:
        symbols, client = (
            part[:, None] if at == 0 else part for at, part in enumerate(_pairs(symbols[:, 0], client, each.size))
        )
    counts, recency = np.zeros((2, len(lengths) * number))
    for at in range(symbols.shape[1]):
        found = np.searchsorted(wanted, symbols[:, at]).clip(max=number - 1)
        is_wanted = wanted[found] == symbols[:, at]
        places = client[is_wanted] * number + found[is_wanted]
        counts += np.bincount(places, minlength=len(counts))
        if not each.paired:
            recency += np.bincount(places, along[is_wanted], minlength=len(counts))
    counts, recency = counts.reshape(-1, number), recency.reshape(-1, number)
    yield np.log1p(counts)
    if not each.paired:
        yield counts / lengths[:, None]
        yield recency / np.sqrt(lengths)[:, None]


def _overall(histories: Histories) -> Float[ndarray, "clients numbers"]:
    """Length, duration, amounts, gaps and times of day of each history."""
    starts, lengths, times = histories.offsets[:-1], histories.lengths, histories.times
    duration = times[histories.offsets[1:] - 1] - times[starts]
    amounts = np.nan_to_num(histories.amounts)
    sums = [np.add.reduceat(values, starts) for values in (amounts, np.abs(amounts))]
    gaps = log_gaps(histories)
    gap = np.add.reduceat(gaps, starts) / lengths
    client = np.repeat(np.arange(len(lengths)), lengths)
    spread = np.sqrt(np.add.reduceat((gaps - gap[client]) ** 2, starts) / lengths)
    clock = (times % DAY // (DAY / CLOCK_PARTS)).astype(np.int64)
    hours = np.bincount(client * CLOCK_PARTS + clock, minlength=len(lengths) * CLOCK_PARTS).reshape(-1, CLOCK_PARTS)
    numbers = [np.log(lengths), np.log1p(duration / DAY), *map(signed_log, sums), gap, spread]
    return np.concatenate([np.stack(numbers, axis=1), hours / lengths[:, None]], axis=1)


def _spread(
    values: Float[ndarray, "events"], client: Int[ndarray, "events"], along: Float[ndarray, "events"], histories: Histories
) -> Float[ndarray, "clients numbers"]:
    """Mean, standard deviation, recency and quantiles of the values of each client."""
    starts, lengths = histories.offsets[:-1], histories.lengths
    mean = np.add.reduceat(values, starts) / lengths
    deviation = np.sqrt(np.add.reduceat((values - mean[client]) ** 2, starts) / lengths)
    recency = np.add.reduceat((values - mean[client]) * along, starts) / np.sqrt(lengths)
    ordered = values[np.lexsort((values, client))]
    at = starts[:, None] + np.round(np.array(QUANTILES) * (lengths[:, None] - 1)).astype(np.int64)
    return np.concatenate([np.stack([mean, deviation, recency], axis=1), ordered[at]], axis=1)


def _chunks(offsets: Int[ndarray, "edges"]) -> Iterator[Int[ndarray, "some"]]:
    """Yields the clients in turn, as many at a time as have `CHUNK_EVENTS` events, or one."""
    start, clients = 0, len(offsets) - 1
    while start < clients:
        end = int(np.searchsorted(offsets, offsets[start] + CHUNK_EVENTS, side="right")) - 1
        end = min(clients, max(start + 1, end))
        yield np.arange(start, end)
        start = end
