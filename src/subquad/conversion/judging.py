"""Measures models during a conversion, writes the rows, and accounts for the time that measuring takes."""

import math
from collections.abc import Sequence
from pathlib import Path

from torch import nn

from subquad.conversion.budget import Budget
from subquad.conversion.convertible import Convertible
from subquad.conversion.journal import Journal
from subquad.conversion.quality import Quality
from subquad.conversion.recipes import CONVERSION, TRAINED, Phase
from subquad.conversion.sight import EVERYTHING, sight_of
from subquad.conversion.vectors import Judged

COST_GROWTH = 9  # extra turns for three turns at twice the length, if time is quadratic: 3 * (4 - 1)


class Judge:
    """Measures models, records rows, and counts the time as measuring."""

    def __init__(self, original: Convertible, quality: Quality, budget: Budget, journal: Journal) -> None:
        self.original, self.quality, self.budget, self.journal = original, quality, budget, journal

    def develop(self, phase: Phase, model: nn.Module) -> list[Judged]:
        """Measures quality on development texts. The first figure returned decides which model is kept."""
        with self.budget.measuring("development"):
            judged = self.quality.develop(model)
        for figure in judged:
            self.journal.keep(phase, {**figure.row(), "split": "development"})
        if phase.does not in TRAINED:
            first = judged[0]
            self.journal.say(f"{phase.recipe.name}, {phase.stage}: {first.metric} {first.value:.3g} on development texts")
        return judged

    def test(self, phase: Phase, model: nn.Module) -> None:
        """Measures quality on test texts, which decide nothing; for the conversion recipe also each head's attention."""
        sight = EVERYTHING if phase.stage == "original" else sight_of(phase.recipe.attention)
        with self.budget.measuring("test"):
            judged = self.quality.test(model, sight)
        for figure in judged:
            self.journal.keep(phase, {**figure.row(), "split": "test"})
        if phase.recipe.name == CONVERSION:
            with self.budget.measuring("heads"):
                rows = self.quality.heads(model)
            for row in rows:
                self.journal.keep(phase, row)

    def cost(self, phase: Phase, folder: Path, lengths: Sequence[int], *, is_timed: bool) -> None:
        """Measures time and memory of the original and of the model in `folder`, at as many lengths as time allows."""
        guess = self.budget.loading  # seconds for loading the model, which every measurement begins with
        for at, length in enumerate(lengths if self.original.has_costs else ()):
            left = self.budget.for_costs if is_timed else math.inf
            if guess >= left:
                until = f"up to {lengths[at - 1]} tokens only" if at else "at no length"
                self.journal.leave_out(phase, f"time and memory are measured {until}: the rest does not fit into the time")
                return
            with self.budget.measuring("costs"):
                rows = list(self.original.costs(folder, length, left))
            for row in rows:
                self.journal.keep(phase, row)
            runs = sum(row["value"] for row in rows if row["metric"] == "seconds")
            guess = self.budget.spent.latest["costs"] + COST_GROWTH * runs
