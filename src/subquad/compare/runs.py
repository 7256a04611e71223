"""Conversion of a comparison's plan to the fields of run.json, and back."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from subquad.attention import options_from
from subquad.capacity import require_memory
from subquad.checking import Checked, Count, Positive, Seed, read
from subquad.compare.cells import UPDATE_LAYERS, Setting
from subquad.compare.plan import Plan
from subquad.compare.views import EARLIER, Form, What
from subquad.errors import SubquadError
from subquad.machine import circumstances
from subquad.measure.devices import device_name, require_device
from subquad.measure.workers import Limits
from subquad.results import place_of


@dataclass(frozen=True)
class PlanFields(Checked):
    """The options of a comparison in its run.json."""

    variants: dict[str, dict[str, Any]]
    lengths: tuple[Count, ...]
    forms: tuple[Form, ...]
    whats: tuple[What, ...]
    settings: tuple[dict[str, Any], ...]
    shortest: dict[str, Count]
    seed: Seed
    memory_bytes: Count
    run_seconds: Positive
    first: tuple[Count, ...] = ()


def describe_run(plan: Plan, limits: Limits, command: str) -> dict[str, Any]:
    """Returns the fields of run.json for a comparison. A plan that cannot be measured on this machine is refused."""
    _check(plan)
    options = dataclasses.asdict(plan) | {"memory_bytes": limits.memory_bytes, "run_seconds": limits.run_seconds}
    traits = {name: dataclasses.asdict(variant.traits) for name, variant in plan.variants.items()}
    names = {device: device_name(device) for device in dict.fromkeys(setting.device for setting in plan.settings)}
    gpus = {device: name for device, name in names.items() if name is not None}
    devices = {"devices": gpus} if gpus else {}
    return {"options": options, "mechanisms": traits, "seed": plan.seed, **devices, **circumstances(command)}


def read_plan(options: Mapping[str, Any]) -> tuple[Plan, Limits]:
    """Returns the plan and the limits in the options of a run.json. A plan that cannot be measured here is refused."""
    place = f"{place_of(options)}: options"
    kept = read(PlanFields, options, place)
    plan = Plan(
        variants={name: options_from(values, f"{place}: variants: {name}") for name, values in kept.variants.items()},
        lengths=kept.lengths,
        forms=kept.forms,
        whats=kept.whats,
        settings=[read(Setting, EARLIER | setting, f"{place}: settings") for setting in kept.settings],
        shortest=kept.shortest,
        first=kept.first,
        seed=kept.seed,
    )
    _check(plan)
    return plan, Limits(memory_bytes=kept.memory_bytes, run_seconds=kept.run_seconds)


def _check(plan: Plan) -> None:
    """Raises `SubquadError` for missing devices, mechanisms that are too large, and a plan without cells."""
    for setting in plan.settings:
        require_device(setting.device, setting.dtype)
        for name, variant in plan.variants.items():
            numbers = variant.size(heads=setting.heads, head_dim=setting.head_dim).numbers
            require_memory(name, 4 * numbers, "make its own sizes, --heads or --head-dim smaller")
    if "update" in plan.whats:
        for name, variant in plan.variants.items():
            if UPDATE_LAYERS % variant.depth:
                raise SubquadError(
                    f"--what update trains a model of {UPDATE_LAYERS} + {UPDATE_LAYERS} layers, but {name} names "
                    f"{variant.depth}: name 2 or {UPDATE_LAYERS} layers, or leave update out"
                )
    if not plan.groups:
        raise SubquadError("there is nothing to measure: a decoding step is causal, so leave --bidirectional out")
