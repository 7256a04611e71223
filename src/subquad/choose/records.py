"""Conversion of a race's options to the fields of run.json, and back."""

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple

from annotated_types import Gt, Le

from subquad.attention import options_from
from subquad.checking import Checked, Count, NonNegative, Positive, Seed, read, read_as, read_kind
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
    )
    terms = read(TermFields, values["terms"], f"{place}: terms")
    wishes = read(WishFields, values["wishes"], f"{place}: wishes")
    asked = Wishes(wishes.quality_loss, wishes.max_seconds, wishes.max_memory)
    return Kept(field, Terms(terms.budget, terms.jobs, terms.seed, terms.memory_bytes), asked)
