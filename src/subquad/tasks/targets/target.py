"""The contract of a target: how many outputs it needs, their loss, what they predict, and how good that is."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from numpy import ndarray
from torch import Tensor

from subquad.checking import Checked
from subquad.statistics import RESAMPLES
from subquad.tasks.base import Best
from subquad.tasks.comparing import Judged
from subquad.tasks.targets.metrics import Draws

SMALLEST = 1e-7
"""Smallest probability in a log-loss."""


@dataclass(frozen=True)
class Target(Checked, ABC):
    """What is predicted of each client, with all that was learned about it from the training clients."""

    @property
    @abstractmethod
    def outputs(self) -> int:
        """Number of outputs of a model."""

    @property
    @abstractmethod
    def deciding(self) -> str:
        """The metric by which models are compared, of which more is better."""

    @property
    def best(self) -> Best:
        """The metric on the development split by which the best weights are chosen."""
        return Best("log_loss", "low")

    @abstractmethod
    def loss(self, logits: Float[Tensor, "b o"], truth: Float[Tensor, "b k"]) -> Float[Tensor, "b"]:
        """The loss of each client: minus the log-likelihood, or the squared error of a scaled number."""

    @abstractmethod
    def predict(self, logits: Float[ndarray, "n o"]) -> Float[ndarray, "n p"]:
        """What the outputs predict: probabilities, or numbers."""

    @abstractmethod
    def trivial(self, truth: Float[ndarray, "train k"]) -> Float[ndarray, "1 p"]:
        """The prediction that is the same for all clients and fits the training clients best."""

    @abstractmethod
    def metrics(
        self, truth: Float[ndarray, "n k"], predicted: Float[ndarray, "n p"], resamples: int = RESAMPLES
    ) -> dict[str, Draws]:
        """How good predictions are, with bootstrap draws over clients, the deciding metric first."""

    @abstractmethod
    def judged(self, truth: Float[ndarray, "n k"], predicted: Float[ndarray, "n p"]) -> Judged:
        """How good the predictions for single clients are, by a metric that is made of them."""

    @abstractmethod
    def columns(self) -> list[str]:
        """Heads of the columns of a table of predictions."""

    @abstractmethod
    def line(self, predicted: Float[ndarray, "p"]) -> list[str]:
        """The cells of a table of predictions for one client."""

    def said(self, truth: Float[ndarray, "k"]) -> str:
        """The truth about a client in words."""
        return f"{truth[0]:.4g}"

    def answer(self, predicted: Float[ndarray, "p"]) -> str:
        """The prediction in words that equal those of `said` if it is right."""
        return f"{predicted[0]:.4g}"

    def weights(self, truth: Float[ndarray, "train k"]) -> Float[ndarray, "classes"] | None:
        """A weight for each class, with which all classes have the same total; None if there are no classes."""
        return None

    def weigh(self, truth: Float[Tensor, "b k"], weights: Float[Tensor, "classes"]) -> Float[Tensor, "b"]:
        """The weight of each client in the loss."""
        return torch.ones(len(truth), device=truth.device)


def log_losses(probabilities: Float[ndarray, "..."]) -> Float[ndarray, "..."]:
    """Minus the logarithms of probabilities of what happened, none of which counts as less than `SMALLEST`."""
    return -np.log(np.clip(probabilities, SMALLEST, 1.0))
