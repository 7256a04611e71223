"""What is trained beside the conversion, so that its worth can be told, and the phases of each."""

from collections.abc import Sequence
from typing import Literal, NamedTuple

from subquad.conversion.convertible import Goal
from subquad.types import AttentionOptions

Stage = Literal["original", "swapped", "calibrated", "distilled", "chosen", "tuned"]
Deed = Literal["look", "swap", "calibrate", "match", "choose", "tune", "save", "cost"]

CONVERSION, PLAIN, WINDOW, EXACT = "conversion", "plain fine-tuning", "window alone", "softmax fine-tuned"
MATCHED = 0.3
"""Share of a recipe's training time that matching has, where there is matching."""
TRAINED: tuple[Deed, ...] = ("match", "tune")
"""Deeds that take many steps."""


class Recipe(NamedTuple):
    """A way to a model: which attention it gets (None: it keeps its own), and whether its layers are matched first."""

    name: str
    attention: AttentionOptions | None
    is_matched: bool = False


class Phase(NamedTuple):
    """A part of a recipe that is done as a whole, or gone on with."""

    recipe: Recipe
    does: Deed
    stage: Stage


class Counts(NamedTuple):
    """How often something is measured."""

    development: int
    test: int
    heads: int


def recipes(attention: AttentionOptions, goal: Goal, *, controls: bool) -> list[Recipe]:
    """The conversion, and what it is to be compared with, each trained as long."""
    found = [Recipe(CONVERSION, attention, is_matched=True)]
    if controls:
        found.append(Recipe(PLAIN, attention))
        if (window_alone := attention.without_far_keys()) is not None:
            found.append(Recipe(WINDOW, window_alone))
        if goal == "task":
            found.append(Recipe(EXACT, None))
    return found


def phases(given: Sequence[Recipe], *, calibrates: bool, matches: bool, chooses: bool) -> list[Phase]:
    """All that is to be done, one after the other."""
    found = [Phase(given[0], "look", "original")]
    for recipe in given:
        found.append(Phase(recipe, "swap", "swapped"))
        if recipe.is_matched:
            found += [Phase(recipe, "calibrate", "calibrated")] if calibrates else []
            found += [Phase(recipe, "match", "distilled")] if matches else []
            found += [Phase(recipe, "choose", "chosen")] if chooses else []
        found.append(Phase(recipe, "tune", "tuned"))
        if recipe.name == CONVERSION:
            found.append(Phase(recipe, "save", "tuned"))
    return [*found, Phase(given[0], "cost", "tuned")]


def counts(some: Sequence[Phase], watched: int) -> Counts:
    """How often some phases measure, where quality is looked at so often while a stage trains."""
    stages = [phase for phase in some if phase.does not in ("save", "cost")]
    return Counts(
        development=sum(watched if phase.does in TRAINED else 1 for phase in stages),
        test=len(stages),
        heads=sum(phase.recipe.name == CONVERSION for phase in stages),
    )


def weight(phase: Phase, every: Sequence[Phase]) -> float:
    """Share of its recipe's training time that a phase has."""
    matches = any(other.recipe == phase.recipe and other.does == "match" for other in every)
    return {"match": MATCHED, "tune": 1 - MATCHED if matches else 1.0}.get(phase.does, 0.0)
