"""Processes whose intensities are known: each draws sequences over [0, horizon] and says what the truth about them is.

What comes after an event depends on the events before through a few numbers, the *state*. A process gives the state right
after each event, and from a state the intensity of every type a gap later and its exact integral, as long as nothing else
happens in between. `truth` makes likelihoods, rescaled gaps and best predictions of these.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy import ndarray
from scipy import stats

from subquad.errors import SubquadError
from subquad.tasks.events.sequences import EventSequences


class Process(Protocol):
    """What a model is held to."""

    @property
    def horizon(self) -> float:
        """Until when a sequence is watched, from 0 on."""

    def draw(self, sequences: int, seed: int) -> EventSequences:
        """So many independent sequences; `starts` are 0 and `ends` the horizon."""

    def initial_state(self) -> Float[ndarray, "state"]:
        """At the start of a sequence, before any event."""

    def states(self, sequences: EventSequences) -> Float[ndarray, "events state"]:
        """Right after each event: made of this event and those before it in its sequence."""

    def intensities(
        self, states: Float[ndarray, "rows state"], gaps: Float[ndarray, "rows points"]
    ) -> Float[ndarray, "rows points types"]:
        """Intensity of each type at a time after a state."""

    def integrals(
        self, states: Float[ndarray, "rows state"], gaps: Float[ndarray, "rows points"]
    ) -> Float[ndarray, "rows points types"]:
        """Exact integral of the intensity of each type from a state up to a time after it."""


@dataclass(frozen=True)
class Hawkes:
    """Every event makes others more likely for a while, those of its own type and of others.

    With t_j and l_j the times and types of the events before t::

        lambda_k(t) = rates[k] + sum over t_j < t of branching[k][l_j] decay exp(-decay (t - t_j))

    so branching[k][l] is how many events of type k one of type l brings about by itself, on average. The state is the sum,
    which decays in between events and grows by decay branching[k][l] at each: one step an event, however long the history.
    """

    name: ClassVar[str] = "hawkes"
    rates: tuple[float, ...] = (0.2, 0.3)  # of events that no other brought about, by type
    branching: tuple[tuple[float, ...], ...] = ((0.6, 0.1), (0.2, 0.5))  # a row for each type that is brought about
    decay: float = 2.0  # of the excitement, for each unit of time
    horizon: float = 60.0

    def check(self) -> None:
        """Refuses what cannot be drawn, or would explode."""
        base, matrix = np.array(self.rates, float), self._matrix()
        if not base.size or matrix.shape != (base.size, base.size):
            raise SubquadError(
                f"a Hawkes process of {base.size} rates needs as many rows of as many numbers for branching, "
                f"but has the shape {matrix.shape}"
            )
        if not (np.isfinite(base).all() and (base >= 0).all() and base.sum() > 0):
            raise SubquadError(
                f"the rates of a Hawkes process must be finite, none below 0 and one above, but are {self.rates}"
            )
        if not (np.isfinite(matrix).all() and (matrix >= 0).all()):
            raise SubquadError(
                f"the branching of a Hawkes process must be finite and nowhere below 0, but is {self.branching}"
            )
        radius = np.abs(np.linalg.eigvals(matrix)).max()
        if radius >= 1.0:
            raise SubquadError(
                f"a Hawkes process whose branching has the spectral radius {radius:.3g} explodes: "
                "every event brings about one or more; make branching smaller, to a radius below 1"
            )
        _check_positive(self, "decay", "horizon")

    def draw(self, sequences: int, seed: int) -> EventSequences:
        """Ogata's thinning: in between events the intensity falls, so that right after a candidate it is a bound."""
        self.check()
        rng, base, jumps = np.random.default_rng(seed), np.array(self.rates, float), self.decay * self._matrix()
        now, excited = np.zeros(sequences), np.zeros((sequences, len(base)))
        drawn = _Drawn(sequences)
        while (on := now < self.horizon).any():
            bound = base.sum() + excited.sum(1)
            gaps = rng.exponential(size=sequences) / bound
            now = now + gaps
            excited = excited * np.exp(-self.decay * gaps)[:, None]
            # One number decides on both: under the cumulated intensities it is an event of that type, above them none.
            cumulated = np.cumsum(base + excited, axis=1)
            types = (rng.random(sequences) * bound > cumulated.T).sum(0)
            taken = on & (now < self.horizon) & (types < len(base))
            drawn.add(now, types, taken)
            excited[taken] += jumps.T[types[taken]]
        return drawn.sequences(self.horizon, len(base))

    def initial_state(self) -> Float[ndarray, "state"]:
        return np.zeros(len(self.rates))

    def states(self, sequences: EventSequences) -> Float[ndarray, "events state"]:
        """The recursion S_i = S_i-1 exp(-decay gap_i) + decay branching[:, l_i], for all sequences at once."""
        jumps = self.decay * self._matrix().T[sequences.types]
        kept = np.exp(-self.decay * sequences.gaps)
        found = jumps.copy()
        for place in range(1, int(sequences.lengths.max(initial=0))):
            at = sequences.offsets[:-1][sequences.lengths > place] + place
            found[at] += kept[at, None] * found[at - 1]
        return found

    def intensities(
        self, states: Float[ndarray, "rows state"], gaps: Float[ndarray, "rows points"]
    ) -> Float[ndarray, "rows points types"]:
        return np.array(self.rates, float) + states[:, None] * np.exp(-self.decay * gaps)[..., None]

    def integrals(
        self, states: Float[ndarray, "rows state"], gaps: Float[ndarray, "rows points"]
    ) -> Float[ndarray, "rows points types"]:
        faded = -np.expm1(-self.decay * gaps) / self.decay
        return np.array(self.rates, float) * gaps[..., None] + states[:, None] * faded[..., None]

    def _matrix(self) -> Float[ndarray, "types types"]:
        if len({len(row) for row in self.branching}) != 1:
            return np.zeros((len(self.branching), 0))  # which `check` refuses
        return np.array(self.branching, float)


@dataclass(frozen=True)
class SelfCorrecting:
    """Events become more likely with time, and each makes the next less so: they keep a distance.

    With N(t) events before t, lambda(t) = exp(growth t - correction N(t)), of which each type has its share. The state is
    the time since the start and N.
    """

    name: ClassVar[str] = "self-correcting"
    growth: float = 1.0  # of the logarithm of the intensity, for each unit of time
    correction: float = 1.0  # by which an event lowers it
    shares: tuple[float, ...] = (1.0,)  # of the types
    horizon: float = 60.0

    def check(self) -> None:
        """Refuses what cannot be drawn."""
        _check_positive(self, "growth", "correction", "horizon")
        _check_shares("shares", self.shares)

    def draw(self, sequences: int, seed: int) -> EventSequences:
        """By inversion: the integral over a gap is exponential, and its inverse is known."""
        self.check()
        rng, drawn = np.random.default_rng(seed), _Drawn(sequences)
        now, count = np.zeros(sequences), np.zeros(sequences)
        while (now < self.horizon).any():
            # exp(growth t - correction N) (exp(growth gap) - 1) / growth = an exponential number
            level = np.log(self.growth * rng.exponential(size=sequences)) - self.growth * now + self.correction * count
            now = now + np.logaddexp(0.0, level) / self.growth
            types = rng.choice(len(self.shares), sequences, p=self.shares)
            drawn.add(now, types, now < self.horizon)
            count += 1
        return drawn.sequences(self.horizon, len(self.shares))

    def initial_state(self) -> Float[ndarray, "state"]:
        return np.zeros(2)

    def states(self, sequences: EventSequences) -> Float[ndarray, "events state"]:
        elapsed = sequences.times - np.repeat(sequences.starts, sequences.lengths)
        count = 1.0 + np.arange(len(elapsed)) - np.repeat(sequences.offsets[:-1], sequences.lengths)
        return np.stack([elapsed, count], axis=1)

    def intensities(
        self, states: Float[ndarray, "rows state"], gaps: Float[ndarray, "rows points"]
    ) -> Float[ndarray, "rows points types"]:
        level = self.growth * (states[:, :1] + gaps) - self.correction * states[:, 1:]
        return np.exp(level)[..., None] * np.array(self.shares)

    def integrals(
        self, states: Float[ndarray, "rows state"], gaps: Float[ndarray, "rows points"]
    ) -> Float[ndarray, "rows points types"]:
        level = np.exp(self.growth * states[:, :1] - self.correction * states[:, 1:])
        return (level * np.expm1(self.growth * gaps) / self.growth)[..., None] * np.array(self.shares)


@dataclass(frozen=True)
class Renewal:
    """Every gap is drawn anew, log-normal or gamma; every type depends on the one before only.

    The first gap is counted from the start, as if an event had been there. The state is the last type, -1 before any. The
    intensity is the gaps' density over their survival function, times the probability of the type.
    """

    name: ClassVar[str] = "renewal"
    gaps: Literal["log-normal", "gamma"] = "log-normal"
    mean: float = 1.0  # of the gaps
    variation: float = 1.0  # of the gaps: their standard deviation over their mean
    transitions: tuple[tuple[float, ...], ...] = ((0.7, 0.3), (0.4, 0.6))  # a row of probabilities for each type before
    horizon: float = 60.0

    def check(self) -> None:
        """Refuses what cannot be drawn."""
        _check_positive(self, "mean", "variation", "horizon")
        if self.gaps not in ("log-normal", "gamma"):
            raise SubquadError(f"the gaps of a renewal process are log-normal or gamma, but are asked to be {self.gaps!r}")
        if not self.transitions or any(len(row) != len(self.transitions) for row in self.transitions):
            raise SubquadError(f"transitions must be as many rows of as many probabilities, but are {self.transitions}")
        for row in self.transitions:
            _check_shares("each row of transitions", row)

    def draw(self, sequences: int, seed: int) -> EventSequences:
        """One gap and one type after the other."""
        self.check()
        rng, drawn, chances = np.random.default_rng(seed), _Drawn(sequences), self._chances()
        now, types = np.zeros(sequences), np.full(sequences, -1)
        while (now < self.horizon).any():
            now = now + self._law().rvs(size=sequences, random_state=rng)
            chosen = (rng.random(sequences) > np.cumsum(chances[types], axis=1).T).sum(0)
            types = np.minimum(chosen, len(self.transitions) - 1)  # where a sum falls short of 1 by rounding
            drawn.add(now, types, now < self.horizon)
        return drawn.sequences(self.horizon, len(self.transitions))

    def initial_state(self) -> Float[ndarray, "state"]:
        return np.full(1, -1.0)

    def states(self, sequences: EventSequences) -> Float[ndarray, "events state"]:
        return sequences.types[:, None].astype(float)

    def intensities(
        self, states: Float[ndarray, "rows state"], gaps: Float[ndarray, "rows points"]
    ) -> Float[ndarray, "rows points types"]:
        hazard = np.exp(self._law().logpdf(gaps) - self._log_survival(gaps))
        return hazard[..., None] * self._chances()[states[:, 0].astype(int)][:, None]

    def integrals(
        self, states: Float[ndarray, "rows state"], gaps: Float[ndarray, "rows points"]
    ) -> Float[ndarray, "rows points types"]:
        return -self._log_survival(gaps)[..., None] * self._chances()[states[:, 0].astype(int)][:, None]

    def _log_survival(self, gaps: Float[ndarray, "rows points"]) -> Float[ndarray, "rows points"]:
        """That a gap is longer. A gamma's is too small for a number far out, where it is the density over 1 / scale."""
        with np.errstate(divide="ignore"):
            found = self._law().logsf(gaps)
        if self.gaps == "gamma" and (far := np.isneginf(found)).any():
            found[far] = self._law().logpdf(gaps[far]) + np.log(self.mean * self.variation**2)
        return found

    def _law(self) -> Any:
        """SciPy's, with the mean and the variation asked for."""
        square = self.variation**2
        if self.gaps == "gamma":
            return stats.gamma(1.0 / square, scale=self.mean * square)
        return stats.lognorm(np.sqrt(np.log1p(square)), scale=self.mean / np.sqrt(1.0 + square))

    def _chances(self) -> Float[ndarray, "types+1 types"]:
        """Probability of each type after each. The last row, which is also row -1, has the frequencies in the long run."""
        matrix = np.array(self.transitions, float)
        equations = np.vstack([matrix.T - np.eye(len(matrix)), np.ones(len(matrix))])
        often = np.linalg.lstsq(equations, np.append(np.zeros(len(matrix)), 1.0), rcond=None)[0].clip(0.0)
        return np.vstack([matrix, often / often.sum()])


SIMULATORS: dict[str, type[Any]] = {"hawkes": Hawkes, "self-correcting": SelfCorrecting, "renewal": Renewal}


class _Drawn:
    """Events as they are drawn, one of each sequence at a time."""

    def __init__(self, sequences: int) -> None:
        if sequences < 1:
            raise SubquadError(f"a simulator draws at least 1 sequence, but is asked for {sequences}")
        self.count = sequences
        self.parts: list[tuple[ndarray, ndarray, ndarray]] = []

    def add(
        self, times: Float[ndarray, "sequences"], types: Int[ndarray, "sequences"], taken: Bool[ndarray, "sequences"]
    ) -> None:
        which = np.flatnonzero(taken)
        self.parts.append((which, times[which], types[which]))

    def sequences(self, horizon: float, types: int) -> EventSequences:
        """Sequence by sequence."""
        which, times, kinds = (np.concatenate(column) for column in zip(*self.parts, strict=True))
        order = np.argsort(which, kind="stable")
        offsets = np.concatenate([[0], np.cumsum(np.bincount(which, minlength=self.count))]).astype(np.int64)
        return EventSequences(
            names=[f"sequence-{number:0{len(str(self.count - 1))}}" for number in range(self.count)],
            offsets=offsets,
            times=times[order],
            types=kinds[order].astype(np.int64),
            type_names=[str(number) for number in range(types)],
            starts=np.zeros(self.count),
            ends=np.full(self.count, float(horizon)),
        )


def _check_positive(process: object, *fields: str) -> None:
    for field in fields:
        value = getattr(process, field)
        if not (np.isfinite(value) and value > 0):
            raise SubquadError(f"{field} of a simulator must be a finite number above 0, but is {value}")


def _check_shares(what: str, shares: tuple[float, ...]) -> None:
    if not shares or min(shares) < 0 or abs(sum(shares) - 1.0) > 1e-9:
        raise SubquadError(f"{what} must be probabilities that sum to 1, but are {shares}")
