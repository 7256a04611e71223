"""The state of a conversion, which checkpoints store as JSON."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from subquad.checking import NonNegative, Whole, read
from subquad.conversion.budget import Spent
from subquad.conversion.plan import Plan
from subquad.conversion.vectors import Judged


@dataclass
class Choice:
    """The best model of a recipe so far, by the deciding figure on development texts."""

    value: float = 0.0  # figure of the best model
    before: float = 0.0  # figure of the best model before the current stage
    last: float = 0.0  # figure of the model that was measured last
    step: Whole | None = None  # step of the stage with its best model; None if the stage has not improved the model

    def take(self, judged: Judged) -> None:
        """Sets the best figure to that of a new model."""
        self.value = judged.value

    def begin_stage(self) -> None:
        """Begins a stage that has not improved the model yet."""
        self.before, self.step = self.value, None

    def offer(self, judged: Judged, step: int) -> bool:
        """Records a model's figure and returns whether it is the best so far."""
        self.last = judged.value
        if not is_better(judged, self.value):
            return False
        self.value, self.step = judged.value, step
        return True

    def words(self, deed: str, metric: str, steps: int) -> str:
        """Describes the result of a stage in words."""
        if self.step is None:
            if self.last == self.before:
                return f"{deed} made no difference to the {metric} on development texts and was undone"
            return f"{deed} made it worse, {_from_to(self.before, self.last)}, and was undone"
        gain = f"{deed} made it better, {_from_to(self.before, self.value)}"
        return gain if self.step == steps else f"{gain}; the model of step {self.step} of {steps} was the best and is kept"


@dataclass
class Stand:
    """How far a conversion has come, and the decisions made so far."""

    phase: Whole = 0  # index of the current phase
    step: Whole = 0  # steps taken in the phase
    taken: Whole = 0  # steps taken in earlier phases of the recipe
    clock: Whole = 0  # counts every step and phase, to order rows and checkpoints
    elapsed: NonNegative = 0.0  # seconds of training in the recipe
    timed: list[NonNegative] = field(default_factory=list)  # seconds of each step in the phase
    allowed: NonNegative = 0.0  # seconds of training in the phase, if it is limited by time
    guess: NonNegative = 0.0  # expected seconds of a step, before one was timed
    looks: Whole = 0  # number of quality measurements in the phase
    looked: Whole = 0  # step of the latest quality measurement in the phase
    exact: list[Whole] = field(default_factory=list)  # layers that stay exact
    choice: Choice = field(default_factory=Choice)
    plan: Plan | None = None
    spent: Spent = field(default_factory=Spent)

    @classmethod
    def read(cls, fields: object, where: str) -> "Stand":
        """Reads the state from the fields of a checkpoint; `where` names the checkpoint in messages."""
        parts: dict[str, type[Any]] = {"choice": Choice, "plan": Plan, "spent": Spent}
        stored = fields if isinstance(fields, Mapping) else {}
        inner = {name: read(kind, stored.get(name), f"{where}: {name}") for name, kind in parts.items()}
        return read(cls, {**stored, **inner}, where)

    def begin_recipe(self) -> None:
        """Resets the recipe's steps and seconds to zero."""
        self.taken, self.elapsed = 0, 0.0

    def count_step(self, seconds: float) -> None:
        """Counts a step that took `seconds`."""
        self.step, self.clock, self.elapsed = self.step + 1, self.clock + 1, self.elapsed + seconds
        self.timed.append(seconds)
        self.spent.training += seconds

    def end_phase(self) -> None:
        """Goes on to the next phase."""
        self.taken += self.step
        self.phase, self.step, self.timed, self.looks, self.looked = self.phase + 1, 0, [], 0, 0


def is_better(judged: Judged, than: float) -> bool:
    """Whether a deciding figure is better than another value of the same metric."""
    return judged.value < than if judged.metric == "perplexity" else judged.value > than


def _from_to(before: float, after: float) -> str:
    """Formats two values as "a to b", with enough decimals to tell them apart."""
    for decimals in range(_decimals(before), 9):
        words = [f"{value:.{decimals}f}" for value in (before, after)]
        if words[0] != words[1]:
            break
    return " to ".join(words)


def _decimals(value: float) -> int:
    """Number of decimals for three significant digits."""
    return max(0, 3 - len(f"{abs(value):.0f}") + (abs(value) <= 1))
