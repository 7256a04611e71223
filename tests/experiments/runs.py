"""Runs of trainings that never ran."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from subquad.attention import Linear
from subquad.experiments.base import Training, Trial
from subquad.models import ModelOptions
from subquad.results import Row, Run
from subquad.tasks import Copy
from subquad.training import TrainOptions

STEPS = 9


def finished_training(
    folder: Path, rows: Sequence[Row] = (), options: Mapping[str, Any] | None = None, seed: int = 0
) -> Run:
    """A run of `subquad train` with these rows that came to its last checkpoint."""
    about = {"options": {**(options or {}), "training": {"steps": STEPS}}, "seed": seed}
    run = Run.create(folder, "train", about, rows)
    (folder / "checkpoint" / f"step-{STEPS:09d}").mkdir(parents=True)
    return run


def trial(name: str, variant: str = "", length: int = 0, seed: int = 0, start: str = "") -> Trial:
    """A trial whose work does not matter."""
    return Trial(name, variant, length, seed, Training(Copy(), Linear(), ModelOptions(), TrainOptions()), start)
