"""How a model is trained."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn

from subquad.checking import Checked, Count, NonNegative, Positive, Whole
from subquad.errors import SubquadError
from subquad.models import ModelOptions, Size
from subquad.models.sizes import kept_numbers, mechanisms
from subquad.types import AttentionOptions


@dataclass(frozen=True)
class TrainOptions(Checked):
    """The loop."""

    steps: Count = 3000
    batch: Count = 32  # sequences in a step, over all processes
    optimizer: Literal["radam", "adamw"] = "radam"
    learning_rate: Positive = 1e-3
    weight_decay: NonNegative = 0.0
    schedule: Literal["constant", "drop", "cosine"] = "constant"  # drop: a tenth after `drop_at` steps, as in the paper
    drop_at: Whole = 3000
    warm_up: Whole = 0  # steps in which the rate grows from zero
    clip: NonNegative = 1.0  # the largest norm of the gradient; 0 for none
    accumulate: Count = 1  # parts that a batch is cut into, one after the other, to save memory
    recompute: bool = False  # compute inner results again in the backward instead of keeping them, to save memory
    precision: Literal["float32", "bfloat16"] = "float32"  # bfloat16: by autocast
    redraw: Whole = 0  # steps after which random features are drawn anew; 0 for never
    evaluate_every: Count = 200
    checkpoint_every: Count = 200
    keep_best: bool = True  # end with the weights that were best when evaluated, for tasks that say which metric tells

    def check(self) -> None:
        if self.batch % self.accumulate:
            raise SubquadError(f"--batch must be a multiple of --accumulate, but is {self.batch} for {self.accumulate}")

    def memory_bytes(self, size: Size, attention: AttentionOptions, model: ModelOptions, processes: int = 1) -> int:
        """Bytes that training a model of this size needs on each of so many processes, at least.

        Parameters have a gradient and two moments. What layers keep for the backward is on the accelerator, where there
        is one, and is not counted then.
        """
        held = 4 * size.numbers + 12 * size.trained + size.data_bytes
        sequences = -(-self.batch // (self.accumulate * processes))
        number_bytes = 4 if self.precision == "float32" else 2
        kept = size.positions * kept_numbers(model, recompute=self.recompute) * number_bytes
        mixing = mechanisms(attention, model).state * number_bytes
        on_device = 0 if torch.accelerator.is_available() else sequences * (kept + mixing)
        return held + on_device + self.batch * size.sequence_bytes

    def check_processes(self, processes: int) -> None:
        """Refuses a number of processes that a batch cannot be shared out to."""
        shares = self.accumulate * processes
        if self.batch % shares:
            raise SubquadError(f"--batch must be a multiple of processes times --accumulate, {shares}, but is {self.batch}")

    def rate(self, step: int) -> float:
        """The learning rate of a step, the first being 0."""
        grown = min(1.0, (step + 1) / self.warm_up) if self.warm_up else 1.0
        if self.schedule == "drop":
            return self.learning_rate * grown * (1.0 if step < self.drop_at else 0.1)
        if self.schedule == "cosine":
            done = max(0, step - self.warm_up) / max(1, self.steps - self.warm_up)
            return self.learning_rate * grown * 0.5 * (1 + math.cos(math.pi * min(1.0, done)))
        return self.learning_rate * grown

    def build_optimizer(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """Adam with its warm-up built in, or as it is; weight decay acts on the weights, not on the gradient, in both."""
        given: dict[str, Any] = {"lr": self.learning_rate, "weight_decay": self.weight_decay}
        if self.optimizer == "adamw":
            return torch.optim.AdamW(parameters, **given)
        return torch.optim.RAdam(parameters, **given, decoupled_weight_decay=True)
