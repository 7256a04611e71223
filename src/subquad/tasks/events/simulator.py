"""Processes with known intensities: each draws sequences over [0, horizon] and gives their exact intensities.

The future after an event depends on the past through a few numbers, the *state*. A process gives the state right after each
event. From a state it gives the intensity of every type at a later time, and the exact integral of the intensity, provided
that no event comes in between. `truth` computes likelihoods from these.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol

import numpy as np
import scipy
from jaxtyping import Bool, Float, Int
from numpy import ndarray

from subquad.errors import SubquadError
from subquad.tasks.events.sequences import EventSequences


class Process(Protocol):
    """A simulated process whose intensity is known."""

    @property
    def horizon(self) -> float:
        """End of the observation of a sequence, which starts at 0."""

    def draw(self, sequences: int, seed: int) -> EventSequences:
        """Draws independent sequences, whose `starts` are 0 and whose `ends` are the horizon."""

    def initial_state(self) -> Float[ndarray, "state"]:
        """The state at the start of a sequence, before any event."""

    def states(self, sequences: EventSequences) -> Float[ndarray, "events state"]:
        """The state right after each event."""

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
    """Each event makes others more likely for a while, of its own type and of other types.

    With t_j and l_j the times and types of the events before t::

        lambda_k(t) = rates[k] + sum over t_j < t of branching[k][l_j] decay exp(-decay (t - t_j))

    Thus branching[k][l] is the mean number of events of type k that one event of type l triggers directly. The state is the
    sum, which decays between events and grows by decay branching[k][l] at each event, so that an update takes constant time.
    """

    name: ClassVar[str] = "hawkes"
    rates: tuple[float, ...] = (0.2, 0.3)  # rate of spontaneous events, by type
    branching: tuple[tuple[float, ...], ...] = ((0.6, 0.1), (0.2, 0.5))  # a row for each triggered type
    decay: float = 2.0  # decay rate of the excitation per unit of time
    horizon: float = 60.0

    def check(self) -> None:
        """Raises `SubquadError` for parameters that are invalid or that let the process explode."""
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
        """Ogata's thinning: between events the intensity falls, so its value right after a candidate is an upper bound."""
        self.check()
        rng, base, jumps = np.random.default_rng(seed), np.array(self.rates, float), self.decay * self._matrix()
        now, excited = np.zeros(sequences), np.zeros((sequences, len(base)))
        drawn = _Drawn(sequences)
        while (on := now < self.horizon).any():
            bound = base.sum() + excited.sum(1)
            gaps = rng.exponential(size=sequences) / bound
            now = now + gaps
            excited = excited * np.exp(-self.decay * gaps)[:, None]
            # One random number decides both: below a cumulated intensity it is an event of that type, above all it is none.
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
        states = jumps.copy()
        for place in range(1, int(sequences.lengths.max(initial=0))):
            at = sequences.offsets[:-1][sequences.lengths > place] + place
            states[at] += kept[at, None] * states[at - 1]
        return states

    def intensities(
        self, states: Float[ndarray, "rows state"], gaps: Float[ndarray, "rows points"]
    ) -> Float[ndarray, "rows points types"]:
        return np.array(self.rates, float) + states[:, None] * np.exp(-self.decay * gaps)[..., None]

    def integrals(
        self, states: Float[ndarray, "rows state"], gaps: Float[ndarray, "rows points"]
    ) -> Float[ndarray, "rows points types"]:
        faded = -np.expm1(-self.decay * gaps) / self.decay
        return np.array(self.rates, float) * gaps[..., None] + states[:, None] * faded[..., None]

    def _matrix(self) -> Float[ndarray, "rows columns"]:
        if len({len(row) for row in self.branching}) != 1:
            return np.zeros((len(self.branching), 0))  # refused by `check`
        return np.array(self.branching, float)


@dataclass(frozen=True)
class SelfCorrecting:
    """Events become more likely with time, and each event makes the next less likely, so that they keep a distance.

    With N(t) events before t, lambda(t) = exp(growth t - correction N(t)), divided among the types by their shares. The
    state is the time since the start and N.
    """

    name: ClassVar[str] = "self-correcting"
    growth: float = 1.0  # growth of the log-intensity per unit of time
    correction: float = 1.0  # amount by which an event lowers the log-intensity
    shares: tuple[float, ...] = (1.0,)  # share of each type
    horizon: float = 60.0

    def check(self) -> None:
        """Raises `SubquadError` for invalid parameters."""
        _check_positive(self, "growth", "correction", "horizon")
        _check_shares("shares", self.shares)

    def draw(self, sequences: int, seed: int) -> EventSequences:
        """Draws by inversion: the integral over a gap is exponentially distributed, and its inverse is known."""
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
    """Gaps are independent, log-normal or gamma; the type of an event depends on the previous type only.

    The first gap begins at the start, as if an event had been there. The state is the last type, or -1 before any event. The
    intensity is the density of the gaps divided by their survival function, times the probability of the type.
    """

    name: ClassVar[str] = "renewal"
    gaps: Literal["log-normal", "gamma"] = "log-normal"
    mean: float = 1.0  # mean of the gaps
    variation: float = 1.0  # standard deviation of the gaps divided by their mean
    transitions: tuple[tuple[float, ...], ...] = ((0.7, 0.3), (0.4, 0.6))  # a row of probabilities for each previous type
    horizon: float = 60.0

    def check(self) -> None:
        """Raises `SubquadError` for invalid parameters."""
        _check_positive(self, "mean", "variation", "horizon")
        if self.gaps not in ("log-normal", "gamma"):
            raise SubquadError(f"the gaps of a renewal process are log-normal or gamma, but are asked to be {self.gaps!r}")
        if not self.transitions or any(len(row) != len(self.transitions) for row in self.transitions):
            raise SubquadError(f"transitions must be as many rows of as many probabilities, but are {self.transitions}")
        for row in self.transitions:
            _check_shares("each row of transitions", row)

    def draw(self, sequences: int, seed: int) -> EventSequences:
        """Draws gaps and types one after the other."""
        self.check()
        rng, drawn, chances = np.random.default_rng(seed), _Drawn(sequences), self._chances()
        now, types = np.zeros(sequences), np.full(sequences, -1)
        while (now < self.horizon).any():
            now = now + self._law().rvs(size=sequences, random_state=rng)
            chosen = (rng.random(sequences) > np.cumsum(chances[types], axis=1).T).sum(0)
            types = np.minimum(chosen, len(self.transitions) - 1)  # a sum may fall short of 1 by rounding
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
        """Log-probability of a longer gap. Where a gamma's underflows, it is approximated by density times scale."""
        with np.errstate(divide="ignore"):
            log_survival = self._law().logsf(gaps)
        if self.gaps == "gamma" and (far := np.isneginf(log_survival)).any():
            log_survival[far] = self._law().logpdf(gaps[far]) + np.log(self.mean * self.variation**2)
        return log_survival

    def _law(self) -> Any:
        """SciPy's distribution of the gaps, with the given mean and variation."""
        square = self.variation**2
        if self.gaps == "gamma":
            return scipy.stats.gamma(1.0 / square, scale=self.mean * square)
        return scipy.stats.lognorm(np.sqrt(np.log1p(square)), scale=self.mean / np.sqrt(1.0 + square))

    def _chances(self) -> Float[ndarray, "rows types"]:
        """Probability of each type after each type. The last row, which is also row -1, has the long-run frequencies."""
        matrix = np.array(self.transitions, float)
        equations = np.vstack([matrix.T - np.eye(len(matrix)), np.ones(len(matrix))])
        often = np.linalg.lstsq(equations, np.append(np.zeros(len(matrix)), 1.0), rcond=None)[0].clip(0.0)
        return np.vstack([matrix, often / often.sum()])


SIMULATORS: dict[str, type[Any]] = {"hawkes": Hawkes, "self-correcting": SelfCorrecting, "renewal": Renewal}


class _Drawn:
    """Collects drawn events, at most one of each sequence at a time."""

    def __init__(self, sequences: int) -> None:
        if sequences < 1:
            raise SubquadError(f"a simulator draws at least 1 sequence, but is asked for {sequences}")
        self.count = sequences
        self.parts: list[tuple[ndarray, ndarray, ndarray]] = []

    def add(
        self, times: Float[ndarray, "sequences"], types: Int[ndarray, "sequences"], taken: Bool[ndarray, "sequences"]
    ) -> None:
        sequence_numbers = np.flatnonzero(taken)
        self.parts.append((sequence_numbers, times[sequence_numbers], types[sequence_numbers]))

    def sequences(self, horizon: float, types: int) -> EventSequences:
        """Returns the events sorted by sequence."""
        sequence_numbers, times, kinds = (np.concatenate(column) for column in zip(*self.parts, strict=True))
        order = np.argsort(sequence_numbers, kind="stable")
        offsets = np.concatenate([[0], np.cumsum(np.bincount(sequence_numbers, minlength=self.count))]).astype(np.int64)
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
