"""What is in a run: its rows, but for times, and its weights."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from subquad.results import Run

TIMES = ("value", "low", "high", "rounds", "failure", "message", "figures")
"""Fields that depend on measured times and memory."""


def rows_of(run: Run) -> list[dict[str, Any]]:
    """The rows of a training or a conversion without what depends on the machine's speed."""
    rows = [{name: value for name, value in row.items() if name != "elapsed"} for row in run.rows()]
    return [row | {"value": 0} if row["metric"] in ("tokens_per_second", "duration") else row for row in rows]


def cells_of(run: Run) -> Counter[str]:
    """What a comparison or a spectrum has measured, and how often, without the figures."""
    known = ({name: value for name, value in row.items() if name not in TIMES} for row in run.rows())
    return Counter(json.dumps(row, sort_keys=True) for row in known)


def same_rows(one: Path, other: Path) -> bool:
    """Whether two runs, and the runs in their folders, have the same rows."""
    if {path.parent.relative_to(one) for path in one.rglob("run.json")} != {
        path.parent.relative_to(other) for path in other.rglob("run.json")
    }:
        return False
    for path in one.rglob("run.json"):
        ours, theirs = Run.open(path.parent), Run.open(other / path.parent.relative_to(one))
        read = rows_of if ours.about["kind"] in ("train", "convert") else cells_of
        if read(ours) != read(theirs):
            return False
    return True


def weights_of(folder: Path) -> dict[str, dict[str, torch.Tensor]]:
    """All tensors below a folder, of its newest checkpoints, its best weights and its converted model."""
    found = {}
    for path in sorted(folder.rglob("*.safetensors")):
        siblings = sorted(other.name for other in path.parent.parent.glob("step-?????????"))
        if not siblings or path.parent.name == siblings[-1]:
            found[str(path.relative_to(folder))] = load_file(path)
    return found


def same_weights(one: Path, other: Path) -> bool:
    """Whether two folders have the same tensors, bit by bit."""
    ours, theirs = weights_of(one), weights_of(other)
    return ours.keys() == theirs.keys() and all(
        ours[file].keys() == theirs[file].keys()
        and all(torch.equal(tensor, theirs[file][name]) for name, tensor in ours[file].items())
        for file in ours
    )
