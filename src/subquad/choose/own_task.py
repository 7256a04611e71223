"""A user's own model and data as a task: batches, loss and scores."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from subquad.attention import Softmax
from subquad.attention.outside.importing import sentence_of
from subquad.errors import SubquadError
from subquad.models import ModelOptions, Size
from subquad.tasks.base import Counted, Task, TaskOptions
from subquad.tasks.comparing import Best, Judged, Rival, judged_means
from subquad.types import AttentionOptions

Factory = Callable[[AttentionOptions], nn.Module]
"""Builds a model with an attention, such as by ``subquad.MultiheadAttention(64, heads=4, attention=attention)``."""
Pairs = tuple[Tensor, Tensor]
"""Inputs and targets, with the sequences along the first axis of both."""
SPLITS = ("train", "development", "test")
IGNORED = -100
"""Target of positions that do not count."""


class PairBatch(NamedTuple):
    """Inputs and targets of some sequences."""

    inputs: Tensor
    targets: Tensor


@dataclass(frozen=True)
class OwnOptions(TaskOptions):
    """Options of a task that is a user's own model and data; everything else is in Python objects."""

    kind: str = field(default="own", init=False)

    def size(self, attention: AttentionOptions, model: ModelOptions) -> Size:
        return Size(0, 0)

    def prepare(self, learned: Mapping[str, Any] | None = None) -> Task[Any]:
        raise SubquadError("a race of your own model goes on in Python only: call subquad.choose again")


class OwnTask(Task[PairBatch]):
    """Batches, loss and metrics of a user's data: classes if targets are whole numbers, squared errors otherwise."""

    kind = "own"

    def __init__(self, factory: Factory, splits: Mapping[str, Pairs], *, is_causal: bool, tokens: int) -> None:
        self.factory, self.splits, self.causal, self.tokens = factory, splits, is_causal, tokens
        self.has_classes = not splits["train"][1].is_floating_point()

    @property
    def chosen_by(self) -> Best:
        return Best("accuracy", "high") if self.has_classes else Best("squared_error", "low")

    @property
    def is_causal(self) -> bool:
        return self.causal

    def build(self, attention: AttentionOptions, model: ModelOptions, generator: torch.Generator | None = None) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            if generator is not None:
                torch.manual_seed(int(torch.randint(2**31, (1,), generator=generator)))
            return self.factory(attention)

    def batch(self, size: int, generator: torch.Generator) -> PairBatch:
        inputs, targets = self.splits["train"]
        chosen = torch.randint(len(inputs), (size,), generator=generator)
        return PairBatch(inputs[chosen], targets[chosen])

    def loss(self, model: nn.Module, batch: PairBatch) -> Counted:
        outputs, targets = model(batch.inputs), batch.targets
        if not self.has_classes:
            return Counted(F.mse_loss(_numbers(outputs, targets), targets.float(), reduction="sum"), self.count(batch))
        logits = outputs.float().flatten(0, -2)
        losses = F.cross_entropy(logits, targets.flatten().long(), ignore_index=IGNORED, reduction="sum")
        return Counted(losses, self.count(batch))

    def count(self, batch: PairBatch) -> int:
        return max(1, int((batch.targets != IGNORED).sum()) if self.has_classes else batch.targets.numel())

    def try_out(self) -> None:
        """Computes the loss of two training sequences with softmax. Raises `SubquadError` if model and data do not fit."""
        try:
            self.loss(
                self.build(Softmax(), ModelOptions()), self.batch(2, torch.Generator().manual_seed(0))
            ).total.backward()
        except SubquadError:
            raise
        except Exception as error:  # a model of someone else may raise anything
            raise SubquadError(f"the model cannot be trained on these data, it raises {sentence_of(error)}") from error

    def evaluate(self, model: nn.Module, generator: torch.Generator) -> dict[str, float]:
        totals, counts = self._scores(model, "development")
        return {self.chosen_by.metric: float(totals.sum() / max(1.0, counts.sum()))}

    def judge(self, model: nn.Module) -> Judged:
        return judged_means(*self.chosen_by, "share" if self.has_classes else "", *self._scores(model, "test"))

    def rivals(self) -> dict[str, Rival]:
        """The most frequent class, or the mean of the targets."""
        known, targets = self.splits["train"][1], self.splits["test"][1]
        if self.has_classes:
            usual = known[known != IGNORED].flatten().mode().values
            totals, counts = ((targets == usual) & (targets != IGNORED)).double(), (targets != IGNORED).double()
        else:
            totals, counts = (targets - known.float().mean(0)).double() ** 2, torch.ones_like(targets, dtype=torch.double)
        parts = (part.flatten(1).sum(1).numpy() if part.ndim > 1 else part.numpy() for part in (totals, counts))
        judged = judged_means(*self.chosen_by, "share" if self.has_classes else "", *parts)
        return {"most frequent class" if self.has_classes else "mean": Rival(judged, is_trivial=True)}

    def lengths(self) -> dict[str, np.ndarray]:
        return {name: np.full(len(inputs), inputs.shape[1]) for name, (inputs, _) in self.splits.items()}

    @torch.no_grad()
    def _scores(self, model: nn.Module, split: str) -> tuple[np.ndarray, np.ndarray]:
        """Right answers and answers, or squared errors and numbers, of each sequence."""
        model.eval()
        totals, counts = [], []
        inputs, targets = self.splits[split]
        for first in range(0, len(inputs), at_a_time := max(1, self.tokens // inputs.shape[1])):
            right = targets[first : first + at_a_time]
            outputs = model(inputs[first : first + at_a_time])
            kept = right != IGNORED if self.has_classes else torch.ones_like(right, dtype=torch.bool)
            each = (outputs.argmax(-1) == right) & kept if self.has_classes else (_numbers(outputs, right) - right) ** 2
            totals.append(each.double().reshape(len(right), -1).sum(1))
            counts.append(kept.double().reshape(len(right), -1).sum(1))
        return torch.cat(totals).numpy(), torch.cat(counts).numpy()


def _numbers(outputs: Tensor, targets: Tensor) -> Tensor:
    """The numbers that a model predicts, in the shape of the targets; an axis of length 1 at the end is left out."""
    if outputs.shape == (*targets.shape, 1):
        outputs = outputs[..., 0]
    if outputs.shape != targets.shape:
        raise SubquadError(
            f"the model gives numbers of the shape {tuple(outputs.shape)} for targets of the shape {tuple(targets.shape)}: "
            "give it one number for each target"
        )
    return outputs.float()


def divided(data: Pairs | Mapping[str, Pairs], seed: int) -> dict[str, Pairs]:
    """The three splits: those that are given, or eight, one and one tenths of the sequences at random."""
    if isinstance(data, Mapping):
        if set(data) != set(SPLITS):
            raise SubquadError(f"data must have the splits {', '.join(SPLITS)}, but has {', '.join(map(str, data))}")
        splits = {name: data[name] for name in SPLITS}
    else:
        inputs, targets = _checked(data, "data")
        order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(seed))
        tenth = max(1, len(inputs) // 10)
        parts = (order[2 * tenth :], order[:tenth], order[tenth : 2 * tenth])
        splits = {name: (inputs[part], targets[part]) for name, part in zip(SPLITS, parts, strict=True)}
    return dict(_checked_splits(splits))


def _checked_splits(splits: Mapping[str, Pairs]) -> Iterator[tuple[str, Pairs]]:
    for name, pair in splits.items():
        yield name, _checked(pair, f"the split {name}")


def _checked(pair: Any, what: str) -> Pairs:
    if not (isinstance(pair, Sequence) and len(pair) == 2 and all(isinstance(part, Tensor) for part in pair)):
        raise SubquadError(f"{what} must be a pair of tensors, inputs and targets")
    inputs, targets = pair
    if inputs.ndim < 2 or len(inputs) != len(targets) or not len(inputs):
        raise SubquadError(
            f"{what} must have the sequences along the first axis of inputs and targets, and positions along the second of "
            f"inputs, but has {tuple(inputs.shape)} and {tuple(targets.shape)}"
        )
    if any(part.is_floating_point() and not bool(torch.isfinite(part).all()) for part in pair):
        raise SubquadError(f"{what} has NaN or infinite numbers: leave them out or replace them")
    return inputs, targets
