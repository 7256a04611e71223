"""Writes the rows and checkpoints of a conversion, and loads the checkpoint from which it resumes."""

from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import torch
from torch import nn

from subquad.conversion.budget import SAVING, Budget
from subquad.conversion.recipes import Phase
from subquad.conversion.stand import Stand
from subquad.results import Row, Run
from subquad.training import checkpoints
from subquad.training.resuming import FOLDER, find_start, go_back

CHECKPOINT_SECONDS = 60.0
FIRST = 2
"""Clock value of the first checkpoint: the original is measured, and the first recipe has its model."""


class Journal:
    """The rows and checkpoints of one run."""

    def __init__(self, run: Run, stand: Stand, budget: Budget, seed: int, phases: int, say: Callable[[str], None]) -> None:
        """`phases` is the number of phases of the conversion."""
        self.run, self.stand, self.budget, self.seed, self.phases, self.say = run, stand, budget, seed, phases, say
        self.waiting: list[Row] = []
        self.saved = budget.now()

    def keep(self, phase: Phase, row: Row) -> None:
        """Adds recipe, stage and step to a row and queues it for writing. Its field `at` orders rows and checkpoints."""
        step = self.stand.taken + self.stand.step
        about = {"recipe": phase.recipe.name, "stage": phase.stage, "step": step, "elapsed": self.stand.elapsed}
        self.waiting.append({**row, **about, "at": self.stand.clock})

    def leave_out(self, phase: Phase, words: str) -> None:
        """Tells the user what is left out for lack of time, and records it for the page."""
        self.say(words)
        self.keep(phase, {"metric": "left out", "value": None, "message": words})

    @property
    def is_due(self) -> bool:
        """Whether it is time for another checkpoint."""
        return self.budget.now() - self.saved > CHECKPOINT_SECONDS

    def save(self, models: nn.ModuleDict, optimizer: torch.optim.Optimizer | None = None) -> None:
        """Writes the queued rows, then a checkpoint that counts them. Without a model no checkpoint is written."""
        self.run.append(self.waiting)
        self.waiting, self.saved = [], self.budget.now()
        if len(models):
            spent = replace(self.stand.spent, before=self.budget.elapsed)
            about: dict[str, Any] = {"seed": self.seed, "rows": self.run.count_rows(), "phases": self.phases}
            about["stand"] = asdict(replace(self.stand, spent=spent))
            checkpoints.save(self.run.folder / FOLDER, self.stand.clock, models, optimizer, about)
            self.budget.spent.latest[SAVING] = self.budget.now() - self.saved

    def load(self, put_back: Callable[[checkpoints.Checkpoint], None]) -> checkpoints.Checkpoint | None:
        """Restores the newest usable checkpoint and returns it, or None. Rows after it are removed: they will come again."""
        fresh = self.stand
        start = find_start(self.run, put_back, counter="at", first=FIRST)
        for complaint in start.complaints:
            self.say(complaint)
        go_back(self.run, start)
        if start.checkpoint is None:
            self.stand = fresh
        self.budget.spent = self.stand.spent
        return start.checkpoint
