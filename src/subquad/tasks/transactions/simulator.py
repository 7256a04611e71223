"""Simulated clients of two classes that differ only in long-range habits, by a known amount.

Along a client's history, u = (2 i + 1) / n - 1 goes from -1 to 1. Clients of class 1 move from the codes of group A to those
of group B, clients of class 0 the other way::

    p(code | class, u) = base(code) (1 +- drift side(code) u)      with side(A) = -1, side(B) = 1, side(others) = 0

with + for class 1. Everything else, including the expected total of each code, is the same for both classes. So counts carry
no information, and a part of a history informs only by its position in the whole. The optimal classifier is known: it uses
the sum over events of log((1 + drift side u) / (1 - drift side u)).
"""

from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray

from subquad.checking import AtLeastTwo, BelowOne, Checked, Count, Seed
from subquad.data.ragged import first_places, offsets_of
from subquad.data.times import DAY
from subquad.errors import OptionError, SubquadError
from subquad.tasks.targets.metrics import auroc
from subquad.tasks.transactions.histories import Histories

DAYS = 456.0
MANY = 10_000
TYPES = ("card", "online", "transfer", "cash")
TYPE_SHARES = (0.6, 0.2, 0.12, 0.08)
LABELS = ("from B to A", "from A to B")


@dataclass(frozen=True)
class Simulator(Checked):
    """Number of clients, lengths of their histories, and strength of their habits."""

    clients: AtLeastTwo = 6000
    shortest: Count = 60  # smallest number of events of a client
    longest: Count = 400  # largest number of events of a client
    codes: AtLeastTwo = 20  # number of codes; a third of them are in group A, and a third in group B
    drift: BelowOne = 0.25  # how much probabilities of codes change along a history
    seed: Seed = 0

    def check(self) -> None:
        if self.codes < 3:
            raise OptionError("codes", f"must be at least 3, one for each group, but is {self.codes}")
        if self.shortest > self.longest:
            raise SubquadError(f"histories cannot be at least {self.shortest} and at most {self.longest} events long")

    def code_names(self) -> list[str]:
        """Names of the codes. Codes of A and B with the same base probability follow each other."""
        pairs = self.codes // 3
        paired = [f"{group}{number}" for number in range(pairs) for group in "AB"]
        return paired + [f"N{number}" for number in range(self.codes - 2 * pairs)]

    def draw(self) -> Histories:
        """Draws the histories of all clients."""
        rng = np.random.default_rng(self.seed)
        lengths = np.exp(rng.uniform(np.log(self.shortest), np.log(self.longest + 1), self.clients)).astype(np.int64)
        lengths = lengths.clip(self.shortest, self.longest)
        labels = rng.permutation(np.arange(self.clients) % 2)
        offsets = offsets_of(lengths)
        types = rng.choice(len(TYPES), offsets[-1], p=TYPE_SHARES).astype(np.int32)
        amounts = np.round(np.exp(rng.normal(3.0 + 0.5 * types, 1.0)), 2) * np.where(types == 2, 1.0, -1.0)
        return Histories(
            clients=[f"client-{number:0{len(str(self.clients - 1))}}" for number in range(self.clients)],
            offsets=offsets,
            codes=self._codes(np.repeat(labels * 2.0 - 1.0, lengths) * along(offsets), rng),
            code_names=self.code_names(),
            types=types,
            type_names=list(TYPES),
            amounts=amounts,
            times=_times(offsets, rng),
            labels=labels,
            label_names=LABELS,
        )

    def ratios(self, histories: Histories) -> Float[ndarray, "clients"]:
        """log p(history | class 1) - log p(history | class 0), by which the optimal classifier decides."""
        sides = np.array([_side(name) for name in histories.code_names], float)
        moved = self.drift * sides[histories.codes] * along(histories.offsets)
        return np.add.reduceat(np.log1p(moved) - np.log1p(-moved), histories.offsets[:-1])

    def best_auroc(self, histories: Histories | None = None) -> float:
        """AUROC of the optimal classifier on the given clients, or on many new ones."""
        if histories is None:
            histories = replace(self, clients=MANY, seed=self.seed + 1).draw()
        return auroc(histories.labels, self.ratios(histories))

    def _codes(self, drifts: Float[ndarray, "events"], rng: np.random.Generator) -> Int[ndarray, "events"]:
        """Draws pairs of codes, then the B code of a pair with probability (1 + drift u) / 2 in class 1."""
        pairs = self.codes // 3
        base = np.ones(self.codes - pairs)  # base probability of each pair together, and of each code without a side
        base[:pairs] = 2.0 / np.sqrt(np.arange(1, pairs + 1))
        drawn = rng.choice(len(base), len(drifts), p=base / base.sum())
        second = rng.random(len(drifts)) < (1.0 + self.drift * drifts) / 2.0
        return np.where(drawn < pairs, 2 * drawn + second, drawn + pairs).astype(np.int32)


def along(offsets: Int[ndarray, "edges"]) -> Float[ndarray, "events"]:
    """The position u of each event in its client's history, from -1 to 1. It sums to zero over a history."""
    lengths = np.diff(offsets)
    place = np.arange(offsets[-1]) - np.repeat(offsets[:-1], lengths)
    return (2 * place + 1) / np.repeat(lengths, lengths) - 1.0


def _side(name: str) -> int:
    return {"A": -1, "B": 1}.get(name[:1], 0)


def _times(offsets: Int[ndarray, "edges"], rng: np.random.Generator) -> Float[ndarray, "events"]:
    """Draws times on random days, mostly in the afternoon, and sorts them within each history."""
    clock = rng.normal(14.0, 3.5, offsets[-1]).clip(0.0, 23.99) * 3600.0
    times = np.floor(rng.uniform(0.0, DAYS, offsets[-1])) * DAY + np.floor(clock)
    client = np.cumsum(first_places(offsets))
    return times[np.lexsort((times, client))]
