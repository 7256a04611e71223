"""What is trained beside the conversion, so that its worth can be told, and the phases of each."""

from dataclasses import replace
from typing import Any, Literal, NamedTuple

from subquad.attention import Hybrid
from subquad.conversion.convertible import Goal
from subquad.types import AttentionOptions

Stage = Literal["original", "swapped", "calibrated", "distilled", "tuned"]
Deed = Literal["measure", "start", "calibrate", "match", "choose", "tune", "save", "cost"]

CONVERSION, PLAIN, WINDOW, EXACT = "conversion", "plain fine-tuning", "window alone", "softmax fine-tuned"


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


def recipes(attention: AttentionOptions, goal: Goal, *, controls: bool) -> list[Recipe]:
    """The conversion, and what it is to be compared with, each trained as long."""
    found = [Recipe(CONVERSION, attention, is_matched=True)]
    if controls:
        found.append(Recipe(PLAIN, attention))
        if isinstance(attention, Hybrid):
            found.append(Recipe(WINDOW, window_alone(attention)))
        if goal == "task":
            found.append(Recipe(EXACT, None))
    return found


def window_alone(attention: Hybrid) -> Hybrid:
    """A hybrid without what is beyond its window."""
    nothing: Any = "none"
    return replace(attention, rest=nothing)


def phases(given: list[Recipe], *, calibrates: bool, matches: bool, chooses: bool, costs: bool = False) -> list[Phase]:
    """All that is to be done, one after the other."""
    found = [Phase(given[0], "measure", "original")]
    for recipe in given:
        found.append(Phase(recipe, "start", "swapped"))
        if recipe.name in (CONVERSION, WINDOW):
            found.append(Phase(recipe, "measure", "swapped"))
        if recipe.is_matched:
            found += [Phase(recipe, does, "calibrated") for does in _CALIBRATE if calibrates]
            found += [Phase(recipe, does, "distilled") for does in _MATCH if matches]
            found += [Phase(recipe, "choose", "distilled")] if chooses else []
        found += [Phase(recipe, does, "tuned") for does in _TUNE]
        if recipe.name == CONVERSION:
            found.append(Phase(recipe, "save", "tuned"))
    return [*found, Phase(given[0], "cost", "tuned")] if costs else found


_CALIBRATE: tuple[Deed, ...] = ("calibrate", "measure")
_MATCH: tuple[Deed, ...] = ("match", "measure")
_TUNE: tuple[Deed, ...] = ("tune", "measure")
