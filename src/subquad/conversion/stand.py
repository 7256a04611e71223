"""How far a conversion has come. A checkpoint keeps it as JSON."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from subquad.checking import NonNegative, Whole, read
from subquad.conversion.budget import Spent
from subquad.conversion.plan import Plan
from subquad.conversion.vectors import Judged


@dataclass
class Choice:
    """Which model of a recipe is the best so far, by the figure that decides on development texts."""

    value: float = 0.0  # figure of the best model
    before: float = 0.0  # figure of the best model before the current stage
    last: float = 0.0  # figure of the model that was measured last
    step: Whole | None = None  # of the stage at which its best model was; None where none is better than the one before

    def take(self, judged: Judged) -> None:
        """Begins with a model, whatever was before."""
        self.value = judged.value

    def begin_stage(self) -> None:
        """Begins a stage, in which no model is better yet."""
        self.before, self.step = self.value, None

    def offer(self, judged: Judged, step: int) -> bool:
        """Takes note of a model, and says whether it is the best so far."""
        self.last = judged.value
        if not is_better(judged, self.value):
            return False
        self.value, self.step = judged.value, step
        return True

    def words(self, deed: str, metric: str, steps: int) -> str:
        """What came of a stage."""
        if self.step is None:
            if self.last == self.before:
                return f"{deed} made no difference to the {metric} on development texts and was undone"
            return f"{deed} made it worse, {_from_to(self.before, self.last)}, and was undone"
        gain = f"{deed} made it better, {_from_to(self.before, self.value)}"
        return gain if self.step == steps else f"{gain}; the model of step {self.step} of {steps} was the best and is kept"


@dataclass
class Stand:
    """How far a conversion has come, and what was decided on the way."""

    phase: Whole = 0
    step: Whole = 0  # steps of the phase
    taken: Whole = 0  # steps of the recipe in its phases before
    clock: Whole = 0  # ticks with every step and phase, so that rows and checkpoints can be put in order
    elapsed: NonNegative = 0.0  # seconds of the recipe's training
    timed: list[NonNegative] = field(default_factory=list)  # seconds of each of the phase's steps
    allowed: NonNegative = 0.0  # seconds of training that the phase has, where it is limited by time
    guess: NonNegative = 0.0  # seconds of a step, before one was taken
    looks: Whole = 0  # how often quality was looked at in the phase
    looked: Whole = 0  # step of the phase at which quality was looked at last
    exact: list[Whole] = field(default_factory=list)  # layers that stay exact
    choice: Choice = field(default_factory=Choice)
    plan: Plan | None = None
    spent: Spent = field(default_factory=Spent)

    @classmethod
    def read(cls, fields: object, where: str) -> "Stand":
        """From what a checkpoint kept; `where` names its place in messages."""
        parts: dict[str, type[Any]] = {"choice": Choice, "plan": Plan, "spent": Spent}
        given = fields if isinstance(fields, Mapping) else {}
        inner = {name: read(kind, given.get(name), f"{where}: {name}") for name, kind in parts.items()}
        return read(cls, {**given, **inner}, where)

    def begin_recipe(self) -> None:
        """Counts steps and seconds from the start."""
        self.taken, self.elapsed = 0, 0.0

    def count_step(self, seconds: float) -> None:
        """Takes note of a step."""
        self.step, self.clock, self.elapsed = self.step + 1, self.clock + 1, self.elapsed + seconds
        self.timed.append(seconds)
        self.spent.training += seconds

    def end_phase(self) -> None:
        """Goes on to the next phase."""
        self.taken += self.step
        self.phase, self.step, self.timed, self.looks, self.looked = self.phase + 1, 0, [], 0, 0


def is_better(judged: Judged, than: float) -> bool:
    """Whether the figure that decides is better than another value of it."""
    return judged.value < than if judged.metric == "perplexity" else judged.value > than


def _from_to(before: float, after: float) -> str:
    """Two values with as many digits as tell them apart."""
    for decimals in range(_decimals(before), 9):
        words = [f"{value:.{decimals}f}" for value in (before, after)]
        if words[0] != words[1]:
            break
    return " to ".join(words)


def _decimals(value: float) -> int:
    """Three, or so many less as there are digits before the point."""
    return max(0, 3 - len(f"{abs(value):.0f}") + (abs(value) <= 1))
