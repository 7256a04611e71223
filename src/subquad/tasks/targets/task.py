"""A task whose models predict a class, several labels or a number of each sequence, beside models that see no order."""

import math
from abc import abstractmethod
from collections.abc import Mapping
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Float
from numpy import ndarray
from torch import nn

from subquad.data.splits import SplitName
from subquad.results import Row
from subquad.tasks.base import Batch, Best
from subquad.tasks.comparing import Judged, Rival
from subquad.tasks.targets.judging import compared_rows, curve_rows, trivial_rows
from subquad.tasks.targets.kinds import Classes
from subquad.tasks.targets.sourced import SourcedTask
from subquad.tasks.targets.target import Target


class TargetedTask(SourcedTask[Batch]):
    """Metrics, final rows and samples of a task with a target; what a sequence is, a subclass says."""

    units: ClassVar[Mapping[str, str]] = {"log_loss": "nats"}

    @property
    @abstractmethod
    def target(self) -> Target:
        """What is predicted of a sequence."""

    @abstractmethod
    def truth(self, split: SplitName) -> Float[ndarray, "sequences k"]:
        """The targets of the sequences of a split."""

    @abstractmethod
    def scores(self, model: nn.Module, split: SplitName) -> Float[ndarray, "sequences p"]:
        """What a model predicts for each sequence of a split."""

    @abstractmethod
    def baselines(self) -> dict[str, Float[ndarray, "test p"]]:
        """Predictions for the test sequences by other models, by the name of the model."""

    @abstractmethod
    def sample_text(self, split: SplitName, place: int) -> str:
        """A sequence in words, for people."""

    @property
    def chosen_by(self) -> Best | None:
        """The metric that decides a run's best weights."""
        return self.target.best

    @property
    def answer_columns(self) -> list[str]:
        """Heads of the columns of a table of predictions: for classes, the likeliest and the probability of each."""
        if isinstance(self.target, Classes):
            return ["class", *(f"P({name})" for name in self.target.names)]
        return self.target.columns()

    def answer_line(self, predicted: Float[ndarray, "p"]) -> list[str]:
        """The cells of a table of predictions for one sequence."""
        if isinstance(self.target, Classes) and self.target.is_binary:
            return [self.target.answer(predicted), f"{1 - predicted[0]:.6g}", f"{predicted[0]:.6g}"]
        return self.target.line(predicted)

    def evaluate(self, model: nn.Module, generator: torch.Generator) -> dict[str, float]:
        """Metrics on the development split, the deciding one first."""
        measured = self.target.metrics(self.truth("development"), self.scores(model, "development"), 0)
        return {name: float(values[0]) for name, values in measured.items() if name != "average_precision"}

    def final(self, model: nn.Module) -> list[Row]:
        """Metrics on the test split with intervals, beside baselines and the trivial answer, and curves."""
        truth, predicted = self.truth("test"), self.scores(model, "test")
        rows = [*compared_rows(self.target, truth, predicted, self.baselines())]
        rows += trivial_rows(self.target, truth, self.target.trivial(self.truth("train")))
        rows += curve_rows(self.target, truth, predicted)
        return [row for row in rows if math.isfinite(row["value"])]  # some metrics need several classes in the test

    def judge(self, model: nn.Module) -> Judged:
        """What the target's deciding metric is made of, for each test sequence."""
        return self.target.judged(self.truth("test"), self.scores(model, "test"))

    def rivals(self) -> dict[str, Rival]:
        """The same answer for all sequences, and the baselines."""
        truth = self.truth("test")
        same = np.repeat(self.target.trivial(self.truth("train")), len(truth), axis=0)
        rivals = {"the same for all": Rival(self.target.judged(truth, same), is_trivial=True)}
        return rivals | {name: Rival(self.target.judged(truth, known)) for name, known in self.baselines().items()}

    def samples(self, model: nn.Module, generator: torch.Generator, count: int) -> list[dict[str, str]]:
        """Sequences of the development split with predicted and true targets."""
        truth, predicted = self.truth("development"), self.scores(model, "development")
        return [
            {
                "given": self.sample_text("development", at),
                "answered": self.target.answer(predicted[at]),
                "right": self.target.said(truth[at]),
            }
            for at in torch.randperm(len(truth), generator=generator)[:count].tolist()
        ]
