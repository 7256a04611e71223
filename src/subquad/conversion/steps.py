"""Training steps of a stage. The result of each depends only on the seed and on the number of the step."""

import math
from collections.abc import Sequence

import torch
from torch import nn

from subquad.conversion import matching
from subquad.conversion.convertible import Convertible, Goal
from subquad.conversion.goals import GOALS
from subquad.conversion.options import ConversionOptions
from subquad.conversion.plan import Plan
from subquad.conversion.recipes import EXACT, Phase
from subquad.conversion.schedule import length_of
from subquad.tasks.mlm.masking import MaskedBatch
from subquad.training.loop import BATCH, generator

PLACES, LOOKED = 20, 21  # numbers of random streams: compared queries, and calibration batches


class NotFiniteError(Exception):
    """The loss is not finite."""


class Batches:
    """Draws batches of training texts."""

    def __init__(self, original: Convertible, plan: Plan, seed: int) -> None:
        self.original, self.plan, self.seed = original, plan, seed

    def draw(self, number: int, stream: int = BATCH) -> MaskedBatch:
        """Returns batch `number`. Text lengths vary for an encoder; a language model trains on texts of full length."""
        longest = self.plan.lengths[0]
        length = length_of(number, longest) if self.original.kind == "encoder" else longest
        return self.original.batch(self.plan.batch_tokens, length, generator(self.seed, stream, number).initial_seed())

    def looked_at(self) -> list[MaskedBatch]:
        """Returns the batches for calibration and for the choice of layers."""
        return [self.draw(number, LOOKED) for number in range(self.plan.calibrated)]


class Steps:
    """Updates of a model in one phase."""

    def __init__(
        self,
        batches: Batches,
        model: nn.Module,
        phase: Phase,
        options: ConversionOptions,
        goal: Goal,
        layers: Sequence[int],
    ) -> None:
        """`layers` are the layers whose attention is replaced."""
        self.original, self.batches, self.model, self.options, self.layers = (
            batches.original,
            batches,
            model,
            options,
            layers,
        )
        self.goal: Goal = "task" if phase.recipe.name == EXACT else goal
        self.matches = phase.does == "match"
        self.optimizer = self._optimizer()
        self.rates = [group["lr"] for group in self.optimizer.param_groups]

    def take(self, number: int, share: float) -> float:
        """Makes update `number` with this share of the learning rate, and returns the loss."""
        for group, rate in zip(self.optimizer.param_groups, self.rates, strict=True):
            group["lr"] = rate * share
        self.optimizer.zero_grad(set_to_none=True)
        loss = self._backward(number)
        if not math.isfinite(loss):
            raise NotFiniteError
        if not self.matches:
            parameters = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
            nn.utils.clip_grad_norm_(parameters, self.options.clip)
        self.optimizer.step()
        return loss

    def _backward(self, number: int) -> float:
        """Accumulates the gradients of one batch, and returns its loss."""
        batch = self.batches.draw(number)
        with torch.autocast(batch.tokens.device.type, torch.bfloat16, enabled=self.options.precision == "bfloat16"):
            if self.matches:
                drawing = generator(self.batches.seed, PLACES, number)
                return matching.match_step(self.original, self.model, batch, self.layers, drawing)
            loss = GOALS[self.goal](self.original, self.model, batch)
        torch.autograd.backward(loss)
        return float(loss.detach())

    def _optimizer(self) -> torch.optim.Optimizer:
        """Optimizer of the phase: matching trains mechanisms only; tuning trains all but embeddings, at two rates."""
        maps = [parameter for attend in self.original.mechanisms(self.model) for parameter in attend.parameters()]
        if self.matches:
            return torch.optim.Adam(maps, lr=self.options.match_rate)
        map_ids = {id(parameter) for parameter in maps}
        trained = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        others = [parameter for parameter in trained if id(parameter) not in map_ids]
        groups = [{"params": others, "lr": self.options.tune_rate}, {"params": maps, "lr": self.options.map_rate}]
        return torch.optim.AdamW([group for group in groups if group["params"]], weight_decay=0.0)
