"""Conversion of a race's options to the fields of run.json, and back."""

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple

from annotated_types import Gt, Le

from subquad.attention import options_from
from subquad.checking import Checked, Count, NonNegative, Positive, Seed, read, read_as, read_kind
from subquad.choose.cutting import Cutting
from subquad.choose.decision import Wishes
from subquad.choose.race import Field, Terms
from subquad.choose.stages import MOST_SECONDS
from subquad.models import ModelOptions
from subquad.results import place_of
from subquad.tasks import TASKS
from subquad.training import TrainOptions


class Kept(NamedTuple):
    """The options of a race."""

    field: Field
    terms: Terms
    wishes: Wishes


@dataclasses.dataclass(frozen=True)
class TermFields(Checked):
    """The fields of a run.json about time, workers and limits."""

    budget: Annotated[float, Gt(0), Le(MOST_SECONDS)]
    jobs: Count
    seed: Seed
    memory_bytes: Count


@dataclasses.dataclass(frozen=True)
class WishFields(Checked):
    """The fields of a run.json about what is asked of the recommended attention."""

    quality_loss: NonNegative | None = None
    max_seconds: Positive | None = None
    max_memory: Count | None = None


def describe(kept: Kept) -> dict[str, Any]:
    """Returns the field ``options`` of a run.json."""
    field = kept.field
    attentions: Mapping[str, Any] = field.attentions
    return {
        "task": dataclasses.asdict(field.task),
        "model": dataclasses.asdict(field.model),
        "training": dataclasses.asdict(field.training),
        "attentions": {name: dataclasses.asdict(options) for name, options in attentions.items()},
        "usual": {"steps": field.usual_steps},
        "cuts": {name: dataclasses.asdict(cutting) for name, cutting in field.cuts.items()},
        "terms": dataclasses.asdict(kept.terms),
        "wishes": kept.wishes._asdict(),
    }


def read_kept(about: Mapping[str, Any]) -> Kept:
    """Returns the options of a race from the contents of its run.json, checked."""
    values = about["options"]
    place = f"{place_of(values)}: options"
    attentions = read_as(dict[str, dict[str, Any]], values["attentions"], f"{place}: attentions")
    field = Field(
        read_kind(TASKS, values["task"], f"{place}: task"),
        read(ModelOptions, values["model"], f"{place}: model"),
        read(TrainOptions, values["training"], f"{place}: training"),
        {name: options_from(fields, f"{place}: attentions: {name}") for name, fields in attentions.items()},
        _read_cuts(values.get("cuts", {}), f"{place}: cuts"),
    )
    terms = read(TermFields, values["terms"], f"{place}: terms")
    asked = read_wishes(values["wishes"], f"{place}: wishes")
    return Kept(field, Terms(terms.budget, terms.jobs, terms.seed, terms.memory_bytes), asked)


def _read_cuts(values: object, place: str) -> dict[str, Cutting]:
    """Returns the contestants that read a part of each sequence; a race of an earlier version has none."""
    cuts = read_as(dict[str, dict[str, Any]], values, place)
    return {
        name: Cutting(
            read_as(int, fields.get("length"), f"{place}: {name}: length"),
            read_kind(TASKS, fields.get("task"), f"{place}: {name}: task"),
        )
        for name, fields in cuts.items()
    }


def read_wishes(values: object, place: str) -> Wishes:
    """Returns what is asked of the recommended attention, from the field of a run.json at this place."""
    wishes = read(WishFields, values, place)
    return Wishes(wishes.quality_loss, wishes.max_seconds, wishes.max_memory)
