"""The time to an event as a target, with clients whose event was not observed (censored)."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from numpy import ndarray
from torch import Tensor

from subquad.statistics import RESAMPLES
from subquad.tasks.comparing import Judged, judged_means
from subquad.tasks.targets.metrics import Draws, concordance_draws, mean_draws
from subquad.tasks.targets.target import Target, log_losses

INTERVALS = 16
"""Largest number of intervals that the time to an event is divided into."""
SHOWN_TIMES = (0.25, 0.5, 0.75)
"""Parts of the intervals after which predictions tell the probability of an event."""


@dataclass(frozen=True)
class Event(Target):
    """The time to an event, which for some clients was not observed until the end (censored).

    Time is divided into intervals. The outputs are logits of hazards: the probability of the event in an interval if it did
    not happen before. The likelihood of an observed event is its interval's hazard times the probability of surviving all
    intervals before; of a censored client only the latter is known.
    """

    edges: tuple[float, ...]  # times between the intervals, ascending
    kind: str = field(default="event", init=False)

    @classmethod
    def learned(cls, truth: Float[ndarray, "train 2"]) -> "Event":
        """Intervals with equally many observed events of the training clients."""
        times = truth[truth[:, 1] > 0, 0]
        inner = np.quantile(times, np.arange(1, INTERVALS) / INTERVALS) if len(times) else truth[:, 0].mean(keepdims=True)
        return cls(tuple(np.unique(inner).tolist()))

    @property
    def outputs(self) -> int:
        return len(self.edges) + 1

    @property
    def deciding(self) -> str:
        return "concordance"

    def reached(self, truth: Any) -> Any:
        """The number of the interval in which each client's time ends."""
        edges = np.array(self.edges)
        if isinstance(truth, Tensor):
            return torch.searchsorted(torch.from_numpy(edges).to(truth), truth[:, 0].contiguous(), right=True)
        return np.searchsorted(edges, truth[:, 0], side="right")

    def loss(self, logits: Float[Tensor, "b o"], truth: Float[Tensor, "b k"]) -> Float[Tensor, "b"]:
        reached = self.reached(truth)
        before = torch.arange(self.outputs, device=logits.device) < reached[:, None]
        survived = (F.logsigmoid(-logits) * before).sum(1)
        happened = F.logsigmoid(logits).gather(1, reached[:, None])[:, 0]
        return -(survived + truth[:, 1] * happened)

    def predict(self, logits: Float[ndarray, "n o"]) -> Float[ndarray, "n p"]:
        """Probability that the event has not happened by the end of each interval."""
        return np.cumprod(1.0 / (1.0 + np.exp(logits.clip(-700, 700))), axis=1)

    def trivial(self, truth: Float[ndarray, "train k"]) -> Float[ndarray, "1 p"]:
        reached, places = self.reached(truth), np.arange(self.outputs)
        events = ((reached[:, None] == places) & (truth[:, 1:] > 0)).sum(0)
        at_risk = ((reached[:, None] > places) | ((reached[:, None] == places) & (truth[:, 1:] > 0))).sum(0)
        return np.cumprod(1.0 - events / np.maximum(at_risk, 1))[None]

    def expected(self, predicted: Float[ndarray, "n p"]) -> Float[ndarray, "n"]:
        """Mean time to the event, or to the last edge if that is earlier."""
        widths = np.diff(np.array(self.edges), prepend=0.0)
        alive = np.concatenate([np.ones((len(predicted), 1)), predicted[:, : len(widths) - 1]], axis=1)
        return alive @ widths

    def _likelihoods(self, truth: Float[ndarray, "n k"], predicted: Float[ndarray, "n p"]) -> Float[ndarray, "n"]:
        """Probability of what happened to each client: the event in its interval, or none up to there."""
        reached = self.reached(truth)
        alive = np.concatenate([np.ones((len(predicted), 1)), predicted], axis=1)
        rows = np.arange(len(truth))
        return np.where(truth[:, 1] > 0, alive[rows, reached] - alive[rows, reached + 1], alive[rows, reached])

    def judged(self, truth: Float[ndarray, "n k"], predicted: Float[ndarray, "n p"]) -> Judged:
        """The log-loss of what happened to each client."""
        losses = log_losses(self._likelihoods(truth, predicted))
        return judged_means("log_loss", "low", "nats", losses, np.ones(len(losses)))

    def metrics(
        self, truth: Float[ndarray, "n k"], predicted: Float[ndarray, "n p"], resamples: int = RESAMPLES
    ) -> dict[str, Draws]:
        likelihood = self._likelihoods(truth, predicted)
        order = self.expected(predicted) + 1e-9 * predicted.sum(1)  # survival beyond the last edge decides ties
        return {
            "concordance": concordance_draws(truth[:, 0], truth[:, 1], order, resamples),
            "log_loss": mean_draws(log_losses(likelihood), resamples),
        }

    def columns(self) -> list[str]:
        return ["expected_time", *(f"P(by {self.edges[at]:.4g})" for at in self._shown())]

    def line(self, predicted: Float[ndarray, "p"]) -> list[str]:
        shares = [f"{1.0 - predicted[at]:.6g}" for at in self._shown()]
        return [f"{self.expected(predicted[None])[0]:.6g}", *shares]

    def _shown(self) -> list[int]:
        return sorted({round(part * (len(self.edges) - 1)) for part in SHOWN_TIMES})

    def said(self, truth: Float[ndarray, "k"]) -> str:
        return f"{truth[0]:.4g}" if truth[1] > 0 else f"more than {truth[0]:.4g}"

    def answer(self, predicted: Float[ndarray, "p"]) -> str:
        return f"{self.expected(predicted[None])[0]:.4g}"
