"""Linear models of aggregates, fitted to any target with a penalty on large weights: the branch beside the attention.

The loss is that of the target, so this is logistic regression for classes and labels, ridge regression for numbers, and a
discrete model of hazards for times to an event. It is convex, and found by L-BFGS.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy import ndarray
from torch import Tensor

from subquad.checking import Checked, NonNegative, read
from subquad.tasks.targets.target import Target

PENALTIES = (3.0, 1.0, 0.3, 0.1, 0.03, 0.01, 0.001)
"""Penalties on squared weights that are tried, beside a loss that is a mean over clients."""
FOLDS = 5
MOST_TRIED = 20_000
"""Largest number of clients by which the penalty is chosen."""
ITERATIONS = 100
LARGE = 20_000_000
"""Number of numbers in a table from which on single precision is used."""


@dataclass(frozen=True)
class LinearModel(Checked):
    """Scales of aggregates, and weights and biases of the scaled ones."""

    mean: tuple[float, ...]
    scale: tuple[float, ...]
    weights: tuple[float, ...]  # by aggregate, then by output
    bias: tuple[float, ...]
    penalty: NonNegative

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "LinearModel":
        """Reads what `as_json` returned."""
        return read(cls, values, "learned: wide: linear")

    def as_json(self) -> dict[str, Any]:
        """Returns the values as JSON types."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}

    def logits(self, table: Float[ndarray, "clients numbers"]) -> Float[ndarray, "clients o"]:
        """The outputs for clients with these aggregates."""
        scaled = scale(table, np.array(self.mean), np.array(self.scale))
        return scaled @ np.array(self.weights).reshape(len(self.mean), -1) + np.array(self.bias)


def scale(table: ndarray, mean: ndarray, spread: ndarray) -> Float[ndarray, "clients numbers"]:
    """Aggregates with mean 0 and variance 1 in training; values far outside of what was seen there are cut."""
    exact = np.float64 if table.size < LARGE else np.float32
    return np.clip((table.astype(exact) - mean.astype(exact)) / spread.astype(exact), -8.0, 8.0)


def fit_linear(
    table: Float[ndarray, "train numbers"], truth: Float[ndarray, "train k"], target: Target
) -> tuple[LinearModel, Float[ndarray, "train o"]]:
    """Fits a linear model, with the penalty that predicts left-out training clients best.

    Returns the model, and for each training client the outputs of a model that was fitted without it.
    """
    mean, spread = table.mean(0, dtype=np.float64), table.std(0, dtype=np.float64)
    spread = np.where(spread > 1e-6, spread, 1.0)
    x = torch.from_numpy(scale(table, mean, spread))
    y = torch.from_numpy(np.asarray(truth, np.float64)).to(x.dtype)
    tried = np.arange(min(len(x), MOST_TRIED))
    penalty = min(PENALTIES, key=_errors(x[tried], y[tried], target).__getitem__)
    weights, bias = _fit(x, y, target, penalty)
    outside = left_out(x, y, target, penalty)
    numbers = (
        tuple(values.flatten().tolist()) for values in (torch.from_numpy(mean), torch.from_numpy(spread), weights, bias)
    )
    means, scales, flat_weights, biases = numbers
    return LinearModel(means, scales, flat_weights, biases, penalty), outside.numpy()


def _errors(x: Tensor, y: Tensor, target: Target) -> dict[float, float]:
    """Mean loss of left-out clients by penalty."""
    return {penalty: float(target.loss(left_out(x, y, target, penalty), y).mean()) for penalty in PENALTIES}


def left_out(x: Tensor, y: Tensor, target: Target, penalty: float) -> Float[Tensor, "n o"]:
    """The outputs for each client of a model that was fitted without the clients of its fold."""
    outputs = torch.zeros(len(x), target.outputs, dtype=x.dtype)
    folds: Int[ndarray, n] = np.arange(len(x)) % min(FOLDS, len(x))
    for fold in np.unique(folds):
        inside, outside = folds != fold, folds == fold
        weights, bias = _fit(x[inside], y[inside], target, penalty)
        outputs[outside] = x[outside] @ weights + bias
    return outputs


def _fit(x: Tensor, y: Tensor, target: Target, penalty: float) -> tuple[Tensor, Tensor]:
    weights = torch.zeros(x.shape[1], target.outputs, dtype=x.dtype, requires_grad=True)
    bias = torch.zeros(target.outputs, dtype=x.dtype, requires_grad=True)
    optimizer = torch.optim.LBFGS(
        [weights, bias], max_iter=ITERATIONS, tolerance_grad=1e-5, tolerance_change=1e-9, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = target.loss(x @ weights + bias, y).mean() + 0.5 * penalty * (weights**2).sum()
        loss.backward()
        return loss

    with torch.enable_grad():
        optimizer.step(closure)
    return weights.detach(), bias.detach()
