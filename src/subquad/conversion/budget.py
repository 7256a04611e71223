"""Time budget of a conversion: at most a fifth for measuring, the rest for training."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

from subquad.checking import NonNegative
from subquad.conversion.recipes import Phase, counts, weight

MEASURING = 0.2
"""Largest share of the time that is spent on measuring."""
QUALITY, HEADS, COSTS = 0.5, 0.1, 0.3
"""Shares of the measuring time: held-out texts, spectra of heads, costs by length. The rest is for timing the model."""
PROBE = 0.01
"""Largest share of the time that reading one text may take while the model's pace is measured."""
CALIBRATION = 0.05
"""Largest share of the time for calibration, and also for choosing the layers that stay exact."""
END = 0.04
"""Share of the time reserved for saving the model and writing the page."""

Kind = Literal["development", "test", "heads", "costs", "pace"]
SAVING = "saving"
"""Key of `Spent.latest` for the duration of writing a checkpoint."""


@dataclass
class Spent:
    """Seconds that a conversion has taken so far, stored in every checkpoint."""

    before: NonNegative = 0.0  # seconds of earlier commands, up to their last checkpoint
    measuring: NonNegative = 0.0
    training: NonNegative = 0.0
    latest: dict[str, NonNegative] = field(
        default_factory=dict
    )  # duration of the latest measurement of each kind, and of saving


class Budget:
    """Divides the time of a conversion between measuring, training and saving."""

    def __init__(self, seconds: float, now: Callable[[], float], begun: float, *, has_costs: bool) -> None:
        """`begun` is the start of the command on the clock `now`. `has_costs` says whether time and memory are measured."""
        self.seconds, self.now, self.begun, self.has_costs = seconds, now, begun, has_costs
        self.loading = now() - begun
        self.spent = Spent()

    @property
    def elapsed(self) -> float:
        """Seconds since the conversion began, including those of earlier commands."""
        return self.spent.before + self.now() - self.begun

    @contextmanager
    def measuring(self, kind: Kind) -> Iterator[None]:
        """Counts the duration of the `with` block as measuring time of this kind."""
        begun = self.now()
        yield
        self.spent.latest[kind] = self.now() - begun
        self.spent.measuring += self.spent.latest[kind]

    def for_measuring(self, share: float) -> float:
        """Total seconds for a measurement that has this share of the measuring time."""
        return share * MEASURING * self.seconds

    @property
    def for_costs(self) -> float:
        """Seconds left for measuring time and memory by length, which is done last."""
        unspent = self.for_measuring(1.0) - self.spent.measuring
        return min(unspent, (1 - END) * self.seconds - self.elapsed)

    def for_training(self, phase: Phase, ahead: Sequence[Phase], all_phases: Sequence[Phase], watched: int) -> float:
        """Seconds that a phase has for its training steps.

        The time left, minus what measuring and saving will take, is divided between all phases that train. If measuring
        quality is slower than planned, the time for measuring costs by length shrinks.

        Args:
            phase: the phase that is about to train.
            ahead: the phases that are left to do, including `phase`.
            all_phases: all phases of the conversion.
            watched: how often quality is measured while a stage trains.
        """
        often = counts(ahead, watched)._asdict()
        looks = sum(number * self.spent.latest.get(kind, 0.0) for kind, number in often.items())
        unspent = max(0.0, self.for_measuring(1.0) - self.spent.measuring - looks)
        costs = min(self.for_measuring(COSTS), unspent) if self.has_costs else 0.0
        saving = len(ahead) * self.spent.latest.get(SAVING, 0.0)
        left = (1 - END) * self.seconds - self.elapsed - looks - costs - saving
        return max(0.0, left * weight(phase, all_phases) / sum(weight(other, all_phases) for other in ahead))
