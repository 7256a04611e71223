"""Hostile models: a real one with a swapped attention, whose config.json or weights say something else."""

import json
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from typing import Any

from tests.robustness.cases import Case, Edit
from tests.robustness.spoiling import WRONG, as_json, places, replaced, spoilt, without

ENTRY = "subquad"
"""The field of config.json in which mechanisms are described."""

SIZES = (0, -1, 1, 2, 3, 10**6, 10**9, 2**48, 2**63, 10**30)
"""Numbers for everything in the entry that is a number."""


def hostile_models(templates: Path) -> Iterator[Case]:
    """All of them, through `hub.load`; some also through the commands that load models."""
    config = json.loads((templates / "swapped" / "config.json").read_text())
    entry = config[ENTRY]
    for path in places(entry):
        where = ".".join(map(str, path))
        yield _case(f"without {where}", _config(config, without(entry, path)))
        for label, value in WRONG.items():
            yield _case(f"{where} is {label}", _config(config, replaced(entry, path, value)))
        for size in SIZES:
            yield _case(f"{where} is the number {size}", _config(config, replaced(entry, path, size)))
    for label, value in WRONG.items():
        yield _case(f"the entry is {label}", _config(config, value))
    yield from _kinds(config)
    yield from _others(config)
    for file in ("config.json", "model.safetensors"):
        for label, edits in spoilt(f"swapped/{file}", (templates / "swapped" / file).read_bytes()):
            yield _case(f"{file} {label}", edits)
            yield Case("hostile models: commands", f"spectrum, {file} {label}", ("spectrum", "swapped"), ("swapped",), edits)
    yield from _tensors(templates)


def _kinds(config: dict[str, Any]) -> Iterator[Case]:
    """Mechanisms of another kind and size than the weights are of."""
    huge: list[dict[str, Any]] = [
        {"kind": "favor", "features": 10**8},
        {"kind": "favor", "features": 10**12},
        {"kind": "linformer", "k": 10**6, "max_length": 10**6},
        {"kind": "linformer", "k": 2**40, "max_length": 2**40},
        {"kind": "infinity", "basis": 2 * 10**6},
        {"kind": "infinity", "segment": 2**40},
        {"kind": "hybrid", "block": 2**48},
        {"kind": "hybrid", "rest": {"kind": "random", "features": 10**10}},
        {"kind": "hybrid", "rest": {"kind": "hybrid"}},
        {"kind": "linear", "feature_map": {"kind": "learned", "features": 10**12}},
        {"kind": "linear", "feature_map": {"kind": "taylor"}},
        {"kind": "linear", "feature_map": "elu"},
        {"kind": "softmax"},
        {"kind": "softmax", "materialised": "yes"},
        {"kind": "__import__"},
        {"kind": ""},
        {},
    ]
    for number, options in enumerate(huge):
        for count in (1, 2, 3, 1000):
            changed = config[ENTRY] | {"mechanisms": [options] * count}
            yield _case(f"{count} mechanisms, number {number}: {options.get('kind')}", _config(config, changed))


def _others(config: dict[str, Any]) -> Iterator[Case]:
    """Fields of transformers' own, which subquad reads too."""
    wrong = cycle(WRONG.items())
    for name in config:
        if name == ENTRY:
            continue
        yield _case(f"config without {name}", _whole({key: value for key, value in config.items() if key != name}))
        for _ in range(3):
            label, value = next(wrong)
            yield _case(f"config: {name} is {label}", _whole(config | {name: value}))


def _tensors(templates: Path) -> Iterator[Case]:
    """Mechanisms' tensors of other names, shapes and types."""
    from safetensors.numpy import load, save

    held = load((templates / "swapped" / "model.safetensors").read_bytes())
    mechanisms = [name for name in sorted(held) if "subquad" in name]
    for name in (mechanisms[0], min(held.keys() - mechanisms)):
        changed = {
            "missing": {key: value for key, value in held.items() if key != name},
            "of another shape": held | {name: held[name].reshape(-1)[:1]},
            "of whole numbers": held | {name: held[name].astype("int64")},
            "of doubles": held | {name: held[name].astype("float64")},
            "of NaN": held | {name: held[name] * float("nan")},
            "there twice": held | {f"{name}.again": held[name]},
        }
        for label, tensors in changed.items():
            edit = Edit("write", "swapped/model.safetensors", save(tensors, metadata={"format": "pt"}))
            yield _case(f"the tensor {name} is {label}", (edit,))


def _config(config: dict[str, Any], entry: Any) -> tuple[Edit, ...]:
    return _whole(config | {ENTRY: entry})


def _whole(config: dict[str, Any]) -> tuple[Edit, ...]:
    return (Edit("write", "swapped/config.json", as_json(config)),)


def _case(name: str, edits: tuple[Edit, ...]) -> Case:
    return Case("hostile models", name, ("swapped",), ("swapped",), edits, entry="hub.load")
