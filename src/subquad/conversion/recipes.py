"""The conversion and the control models it is compared with, and the phases of each."""

from collections.abc import Sequence
from typing import Literal, NamedTuple

from subquad.conversion.convertible import Goal
from subquad.types import AttentionOptions

Stage = Literal["original", "swapped", "calibrated", "distilled", "chosen", "tuned"]
Deed = Literal["look", "swap", "calibrate", "match", "choose", "tune", "save", "cost"]

CONVERSION, PLAIN, WINDOW, EXACT = "conversion", "plain fine-tuning", "window alone", "softmax fine-tuned"
MATCHED = 0.3
"""Share of a recipe's training time for matching, if the recipe has matching."""
TRAINED: tuple[Deed, ...] = ("match", "tune")
"""Phases that consist of training steps."""


class Recipe(NamedTuple):
    """How a model is made: its attention (None keeps the original's), and whether its layers are matched first."""

    name: str
    attention: AttentionOptions | None
    is_matched: bool = False


class Phase(NamedTuple):
    """One part of a recipe."""

    recipe: Recipe
    does: Deed
    stage: Stage


class Counts(NamedTuple):
    """Number of measurements of each kind."""

    development: int
    test: int
    heads: int


def recipes(attention: AttentionOptions, goal: Goal, *, controls: bool) -> list[Recipe]:
    """Returns the conversion and, with `controls`, the recipes it is compared with, each trained for the same time."""
    chosen = [Recipe(CONVERSION, attention, is_matched=True)]
    if controls:
        chosen.append(Recipe(PLAIN, attention))
        if (window_alone := attention.without_far_keys()) is not None:
            chosen.append(Recipe(WINDOW, window_alone))
        if goal == "task":
            chosen.append(Recipe(EXACT, None))
    return chosen


def phases(chosen: Sequence[Recipe], *, calibrates: bool, matches: bool, chooses: bool) -> list[Phase]:
    """Returns all phases of these recipes in order."""
    ordered = [Phase(chosen[0], "look", "original")]
    for recipe in chosen:
        ordered.append(Phase(recipe, "swap", "swapped"))
        if recipe.is_matched:
            ordered += [Phase(recipe, "calibrate", "calibrated")] if calibrates else []
            ordered += [Phase(recipe, "match", "distilled")] if matches else []
            ordered += [Phase(recipe, "choose", "chosen")] if chooses else []
        ordered.append(Phase(recipe, "tune", "tuned"))
        if recipe.name == CONVERSION:
            ordered.append(Phase(recipe, "save", "tuned"))
    return [*ordered, Phase(chosen[0], "cost", "tuned")]


def counts(ahead: Sequence[Phase], watched: int) -> Counts:
    """Number of measurements in these phases, if quality is measured `watched` times while a stage trains."""
    stages = [phase for phase in ahead if phase.does not in ("save", "cost")]
    return Counts(
        development=sum(watched if phase.does in TRAINED else 1 for phase in stages),
        test=len(stages),
        heads=sum(phase.recipe.name == CONVERSION for phase in stages),
    )


def weight(phase: Phase, all_phases: Sequence[Phase]) -> float:
    """Share of a phase in the training time of its recipe."""
    matches = any(other.recipe == phase.recipe and other.does == "match" for other in all_phases)
    return {"match": MATCHED, "tune": 1 - MATCHED if matches else 1.0}.get(phase.does, 0.0)
