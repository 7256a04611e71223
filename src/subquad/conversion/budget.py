"""Where the minutes of a conversion go: at most a fifth to measuring, the rest to training."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

from subquad.checking import NonNegative
from subquad.conversion.recipes import Phase, counts, weight

MEASURING = 0.2
"""Share of the time that measuring has at most."""
QUALITY, HEADS, COSTS = 0.5, 0.1, 0.3
"""Shares of measuring: held-out texts, spectra of heads, time and memory by length. The rest is for finding out the pace."""
PROBE = 0.01
"""Share of the time that reading one text may take while the pace is found out."""
CALIBRATION = 0.05
"""Share of the time that calibration has at most, and so has the choice of layers."""
END = 0.04
"""Share of the time that is kept for saving the model and for the page."""

Kind = Literal["development", "test", "heads", "costs", "pace"]
SAVING = "saving"
"""What the time of a checkpoint is kept under."""


@dataclass
class Spent:
    """Seconds that a conversion has taken so far. A checkpoint keeps them."""

    before: NonNegative = 0.0  # in commands that have ended, up to their last checkpoint
    measuring: NonNegative = 0.0
    training: NonNegative = 0.0
    latest: dict[str, NonNegative] = field(default_factory=dict)  # of the latest measurement of each kind, and of saving


class Budget:
    """The time that a conversion has, and where it goes."""

    def __init__(self, seconds: float, now: Callable[[], float], begun: float, *, has_costs: bool) -> None:
        """`begun` is when the command began, by the clock `now`. `has_costs` says whether time and memory are measured."""
        self.seconds, self.now, self.begun, self.has_costs = seconds, now, begun, has_costs
        self.loading = now() - begun
        self.spent = Spent()

    @property
    def elapsed(self) -> float:
        """Seconds since the beginning, those of commands that ended before among them."""
        return self.spent.before + self.now() - self.begun

    @contextmanager
    def measuring(self, kind: Kind) -> Iterator[None]:
        """The time of the block counts as measuring."""
        begun = self.now()
        yield
        self.spent.latest[kind] = self.now() - begun
        self.spent.measuring += self.spent.latest[kind]

    def for_measuring(self, share: float) -> float:
        """Seconds that a kind of measurement has in all, by its share of measuring."""
        return share * MEASURING * self.seconds

    @property
    def for_costs(self) -> float:
        """Seconds that are left for time and memory by length, which are measured last."""
        unspent = self.for_measuring(1.0) - self.spent.measuring
        return min(unspent, (1 - END) * self.seconds - self.elapsed)

    def for_training(self, phase: Phase, ahead: Sequence[Phase], every: Sequence[Phase], watched: int) -> float:
        """Seconds that a phase has for its steps. `ahead` are those that are left to do, this one among them.

        `watched` is how often quality is looked at while a stage trains.

        What is left, without what measuring and saving will take, is shared by all phases that train. Where looks at quality
        became slower than was planned, less is left for time and memory by length.
        """
        often = counts(ahead, watched)._asdict()
        looks = sum(number * self.spent.latest.get(kind, 0.0) for kind, number in often.items())
        unspent = max(0.0, self.for_measuring(1.0) - self.spent.measuring - looks)
        costs = min(self.for_measuring(COSTS), unspent) if self.has_costs else 0.0
        saving = len(ahead) * self.spent.latest.get(SAVING, 0.0)
        left = (1 - END) * self.seconds - self.elapsed - looks - costs - saving
        return max(0.0, left * weight(phase, every) / sum(weight(each, every) for each in ahead))
