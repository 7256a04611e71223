"""What is predicted of a client: one of two or more classes, several labels at once, a number, or the time to an event."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch.nn.functional as F
from jaxtyping import Float
from numpy import ndarray
from torch import Tensor

from subquad.checking import Positive, read_kind
from subquad.statistics import RESAMPLES
from subquad.tasks.base import Best
from subquad.tasks.comparing import Judged, judged_means
from subquad.tasks.targets.metrics import Draws, auroc_draws, average_precision_draws, mean_draws, ratio_draws
from subquad.tasks.targets.survival import Event
from subquad.tasks.targets.target import Target, log_losses

TargetKind = Literal["classes", "labels", "number", "event"]


@dataclass(frozen=True)
class Classes(Target):
    """One of two classes or more."""

    names: tuple[str, ...]
    kind: str = field(default="classes", init=False)

    @property
    def is_binary(self) -> bool:
        """Whether there are two classes, for which a model has one output."""
        return len(self.names) == 2

    @property
    def outputs(self) -> int:
        return 1 if self.is_binary else len(self.names)

    @property
    def deciding(self) -> str:
        return "auroc" if self.is_binary else "accuracy"

    def loss(self, logits: Float[Tensor, "b o"], truth: Float[Tensor, "b k"]) -> Float[Tensor, "b"]:
        if self.is_binary:
            return F.binary_cross_entropy_with_logits(logits[:, 0], truth[:, 0], reduction="none")
        return F.cross_entropy(logits, truth[:, 0].long(), reduction="none")

    def predict(self, logits: Float[ndarray, "n o"]) -> Float[ndarray, "n p"]:
        if self.is_binary:
            return 1.0 / (1.0 + np.exp(-logits.clip(-700, 700)))
        shifted = np.exp(logits - logits.max(1, keepdims=True))
        return shifted / shifted.sum(1, keepdims=True)

    def trivial(self, truth: Float[ndarray, "train k"]) -> Float[ndarray, "1 p"]:
        shares = np.bincount(truth[:, 0].astype(int), minlength=len(self.names)) / len(truth)
        return shares[None, 1:] if self.is_binary else shares[None]

    def metrics(
        self, truth: Float[ndarray, "n k"], predicted: Float[ndarray, "n p"], resamples: int = RESAMPLES
    ) -> dict[str, Draws]:
        numbers = truth[:, 0].astype(int)
        if self.is_binary:
            score = predicted[:, 0]
            right = (score >= 0.5) == (numbers == 1)
            return {
                "auroc": auroc_draws(numbers, score, resamples),
                "accuracy": mean_draws(right.astype(float), resamples),
                "average_precision": average_precision_draws(numbers, score, resamples),
                "log_loss": mean_draws(log_losses(np.where(numbers == 1, score, 1.0 - score)), resamples),
            }
        by_class = [auroc_draws((numbers == at).astype(int), predicted[:, at], resamples) for at in np.unique(numbers)]
        return {
            "accuracy": mean_draws((predicted.argmax(1) == numbers).astype(float), resamples),
            "macro_auroc": np.mean(by_class, axis=0),
            "log_loss": mean_draws(log_losses(predicted[np.arange(len(numbers)), numbers]), resamples),
        }

    def judged(self, truth: Float[ndarray, "n k"], predicted: Float[ndarray, "n p"]) -> Judged:
        """The AUROC of two classes, and the accuracy of more."""
        numbers = truth[:, 0].astype(int)
        if self.is_binary:
            parts = np.stack([(numbers == 1).astype(float), predicted[:, 0]], axis=1)
            return Judged("auroc", "high", "share", parts, "auroc")
        return judged_means("accuracy", "high", "share", predicted.argmax(1) == numbers, np.ones(len(numbers)))

    def columns(self) -> list[str]:
        return ["score", "class"] if self.is_binary else ["class", *(f"P({name})" for name in self.names)]

    def line(self, predicted: Float[ndarray, "p"]) -> list[str]:
        if self.is_binary:
            return [f"{predicted[0]:.6g}", self.answer(predicted)]
        return [self.answer(predicted), *(f"{share:.6g}" for share in predicted)]

    def said(self, truth: Float[ndarray, "k"]) -> str:
        return self.names[int(truth[0])]

    def answer(self, predicted: Float[ndarray, "p"]) -> str:
        return self.names[int(predicted[0] >= 0.5) if self.is_binary else int(predicted.argmax())]

    def weights(self, truth: Float[ndarray, "train k"]) -> Float[ndarray, "classes"]:
        counts = np.bincount(truth[:, 0].astype(int), minlength=len(self.names))
        return len(truth) / (np.count_nonzero(counts) * np.maximum(counts, 1))

    def weigh(self, truth: Float[Tensor, "b k"], weights: Float[Tensor, "classes"]) -> Float[Tensor, "b"]:
        return weights[truth[:, 0].long()]


@dataclass(frozen=True)
class Labels(Target):
    """Several labels at once, each of which a client has or has not, or of which it is not known (NaN)."""

    names: tuple[str, ...]
    kind: str = field(default="labels", init=False)

    @property
    def outputs(self) -> int:
        return len(self.names)

    @property
    def deciding(self) -> str:
        return "macro_auroc"

    def loss(self, logits: Float[Tensor, "b o"], truth: Float[Tensor, "b k"]) -> Float[Tensor, "b"]:
        known = ~truth.isnan()
        losses = F.binary_cross_entropy_with_logits(logits, truth.nan_to_num(), reduction="none") * known
        return losses.sum(1) / known.sum(1).clamp(min=1)

    def predict(self, logits: Float[ndarray, "n o"]) -> Float[ndarray, "n p"]:
        return 1.0 / (1.0 + np.exp(-logits.clip(-700, 700)))

    def trivial(self, truth: Float[ndarray, "train k"]) -> Float[ndarray, "1 p"]:
        known = (~np.isnan(truth)).sum(0)
        return (np.nansum(truth, axis=0) / np.maximum(known, 1))[None]

    def metrics(
        self, truth: Float[ndarray, "n k"], predicted: Float[ndarray, "n p"], resamples: int = RESAMPLES
    ) -> dict[str, Draws]:
        known = ~np.isnan(truth)
        losses = np.where(known, log_losses(np.where(truth == 1, predicted, 1.0 - predicted)), 0.0)
        by_label = []
        for at in range(len(self.names)):
            one = truth[known[:, at], at]
            if 0 < one.sum() < len(one):
                by_label.append(auroc_draws(one.astype(int), predicted[known[:, at], at], resamples))
        right = np.where(known, (predicted >= 0.5) == (truth == 1), 0.0)
        return {
            "macro_auroc": np.mean(by_label, axis=0) if by_label else np.full(resamples + 1, np.nan),
            "accuracy": ratio_draws(right.sum(1), known.sum(1).astype(float), resamples),
            "log_loss": mean_draws(losses.sum(1) / np.maximum(known.sum(1), 1), resamples),
        }

    def judged(self, truth: Float[ndarray, "n k"], predicted: Float[ndarray, "n p"]) -> Judged:
        """The log-loss of the labels that are known."""
        known = ~np.isnan(truth)
        losses = np.where(known, log_losses(np.where(truth == 1, predicted, 1.0 - predicted)), 0.0)
        return judged_means("log_loss", "low", "nats", losses.sum(1), known.sum(1))

    def columns(self) -> list[str]:
        return ["labels", *(f"P({name})" for name in self.names)]

    def line(self, predicted: Float[ndarray, "p"]) -> list[str]:
        return [self.answer(predicted), *(f"{share:.6g}" for share in predicted)]

    def said(self, truth: Float[ndarray, "k"]) -> str:
        return "|".join(name for name, has in zip(self.names, truth, strict=True) if has == 1)

    def answer(self, predicted: Float[ndarray, "p"]) -> str:
        return self.said((predicted >= 0.5).astype(float))


@dataclass(frozen=True)
class Number(Target):
    """A number, predicted with the smallest squared error."""

    mean: float
    scale: Positive
    kind: str = field(default="number", init=False)

    @property
    def outputs(self) -> int:
        return 1

    @property
    def deciding(self) -> str:
        return "r2"

    @property
    def best(self) -> Best:
        return Best("r2", "high")

    def loss(self, logits: Float[Tensor, "b o"], truth: Float[Tensor, "b k"]) -> Float[Tensor, "b"]:
        return (logits[:, 0] - (truth[:, 0] - self.mean) / self.scale) ** 2

    def predict(self, logits: Float[ndarray, "n o"]) -> Float[ndarray, "n p"]:
        return logits * self.scale + self.mean

    def trivial(self, truth: Float[ndarray, "train k"]) -> Float[ndarray, "1 p"]:
        return truth.mean(0, keepdims=True)

    def metrics(
        self, truth: Float[ndarray, "n k"], predicted: Float[ndarray, "n p"], resamples: int = RESAMPLES
    ) -> dict[str, Draws]:
        missed, spread = (truth - predicted)[:, 0], truth[:, 0] - truth[:, 0].mean()
        unexplained = ratio_draws(missed**2, spread**2, resamples)
        return {"r2": 1.0 - unexplained, "mean_absolute_error": mean_draws(np.abs(missed), resamples)}

    def judged(self, truth: Float[ndarray, "n k"], predicted: Float[ndarray, "n p"]) -> Judged:
        """The share of the variance that is not explained."""
        missed, spread = (truth - predicted)[:, 0], truth[:, 0] - truth[:, 0].mean()
        return judged_means("unexplained_share", "low", "share", missed**2, spread**2)

    def columns(self) -> list[str]:
        return ["prediction"]

    def line(self, predicted: Float[ndarray, "p"]) -> list[str]:
        return [f"{predicted[0]:.6g}"]


TARGETS: dict[str, type[Target]] = {"classes": Classes, "labels": Labels, "number": Number, "event": Event}


def target_from(values: object, where: str) -> Target:
    """Returns the target that a run stored as JSON."""
    target: Target = read_kind(TARGETS, values, where)
    return target


def learn_target(kind: str, names: Sequence[str], truth: Float[ndarray, "train k"]) -> Target:
    """Returns the target of a kind, with what is learned about it from the training clients."""
    if kind == "classes":
        return Classes(tuple(names))
    if kind == "labels":
        return Labels(tuple(names))
    if kind == "number":
        return Number(float(truth.mean()), float(truth.std()) or 1.0)
    return Event.learned(truth)
