"""Options of the training loop."""

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
    """Duration, optimizer and schedule of a training, and how often the model is evaluated and saved."""

    steps: Count = 3000  # number of optimizer steps
    batch: Count = 32  # sequences per step, over all processes together
    optimizer: Literal["radam", "adamw"] = "radam"  # radam: RAdam, which has a built-in warm-up; adamw: AdamW
    learning_rate: Positive = 1e-3  # peak learning rate of the schedule
    weight_decay: NonNegative = 0.0  # coefficient of the decoupled weight decay
    schedule: Literal["constant", "drop", "cosine"] = "constant"  # drop: a tenth from --drop-at on; cosine: decay to zero
    drop_at: Whole = 3000  # step from which on the schedule "drop" divides the learning rate by 10
    warm_up: Whole = 0  # steps in which the learning rate rises linearly from zero to its peak
    clip: NonNegative = 1.0  # largest norm of the gradient; 0 for no clipping
    accumulate: Count = 1  # number of parts in which a batch is computed one after the other, to save memory
    recompute: bool = False  # recompute activations in the backward pass instead of storing them, to save memory
    precision: Literal["float32", "bfloat16", "float16"] = "float32"  # the half ones use autocast; float16 needs a GPU
    redraw: Whole = 0  # number of steps after which random features are redrawn; 0 for never
    evaluate_every: Count = 200  # steps between evaluations on held-out data
    checkpoint_every: Count = 200  # steps between checkpoints
    patience: Whole = 0  # stop after so many evaluations without a better one, by the task's metric; 0 for never
    sequence_parallel: Count = 1  # number of processes over which each sequence is cut, to save memory
    keep_best: bool = True  # finish with the weights of the best evaluation, if the task defines a metric for it

    def check(self) -> None:
        if self.batch % self.accumulate:
            raise SubquadError(f"--batch must be a multiple of --accumulate, but is {self.batch} for {self.accumulate}")

    def memory_bytes(self, size: Size, attention: AttentionOptions, model: ModelOptions, processes: int = 1) -> int:
        """Lower bound on the bytes that training a model of this size needs on each of several processes.

        Each parameter has a gradient and two moments. Activations are kept on the accelerator, if there is one, and are then
        not counted.
        """
        held = 4 * size.numbers + 12 * size.trained + size.data_bytes
        sequences = -(-self.batch * self.sequence_parallel // (self.accumulate * max(processes, self.sequence_parallel)))
        number_bytes = 4 if self.precision == "float32" else 2
        kept = size.positions * kept_numbers(model, recompute=self.recompute) * number_bytes
        mixing = mechanisms(attention, model).state * number_bytes
        on_device = 0 if torch.accelerator.is_available() else sequences * (kept // self.sequence_parallel + mixing)
        return held + on_device + self.batch * size.sequence_bytes

    def check_device(self, device: str) -> None:
        """Raises `SubquadError` if the type of device that the model is trained on does not suit the precision."""
        if self.precision == "float16" and device == "cpu":
            raise SubquadError(
                "--precision float16 needs a GPU, but the model would be trained on a CPU: give bfloat16 or float32"
            )

    def check_processes(self, processes: int) -> None:
        """Raises `SubquadError` if a batch cannot be divided evenly among the processes, or these among sequences."""
        if processes % self.sequence_parallel:
            raise SubquadError(
                f"--sequence-parallel must divide the number of processes, {processes}, but is {self.sequence_parallel}: "
                "start a multiple of it, or leave accelerate launch out"
            )
        shares = self.accumulate * (processes // self.sequence_parallel)
        if self.batch % shares:
            raise SubquadError(f"--batch must be a multiple of processes times --accumulate, {shares}, but is {self.batch}")

    def rate(self, step: int) -> float:
        """Learning rate at a step, counted from 0: linear warm-up, then the schedule."""
        grown = min(1.0, (step + 1) / self.warm_up) if self.warm_up else 1.0
        if self.schedule == "drop":
            return self.learning_rate * grown * (1.0 if step < self.drop_at else 0.1)
        if self.schedule == "cosine":
            done = max(0, step - self.warm_up) / max(1, self.steps - self.warm_up)
            return self.learning_rate * grown * 0.5 * (1 + math.cos(math.pi * min(1.0, done)))
        return self.learning_rate * grown

    def build_optimizer(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """RAdam or AdamW, both with decoupled weight decay."""
        settings: dict[str, Any] = {"lr": self.learning_rate, "weight_decay": self.weight_decay}
        if self.optimizer == "adamw":
            return torch.optim.AdamW(parameters, **settings)
        return torch.optim.RAdam(parameters, **settings, decoupled_weight_decay=True)
