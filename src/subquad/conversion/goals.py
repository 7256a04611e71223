"""The second stage: what the model as a whole is tuned for."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from subquad.conversion.convertible import Convertible, Goal
from subquad.errors import SubquadError
from subquad.tasks.mlm.masking import MaskedBatch

POOLED = 5.0
"""How much the distance of the texts' vectors counts beside the error of the hidden states."""


def hidden_loss(original: Convertible, student: nn.Module, batch: MaskedBatch) -> Tensor:
    """The relative error of every layer's hidden states; for an encoder also 5 (1 - cosine) of the texts' vectors."""
    with torch.no_grad():
        wanted = original.outputs(original.teacher, batch).hidden
    found = original.outputs(student, batch).hidden
    errors = [relative_error(own, exact, batch.keep) for own, exact in zip(found, wanted, strict=True)]
    loss = torch.stack(errors).mean()
    if original.kind != "encoder":
        return loss
    own, exact = (original.pool(hidden[-1].float(), batch.keep) for hidden in (found, wanted))
    cosine = F.cosine_similarity(own, exact)
    return loss + POOLED * (1 - cosine.mean())


def logits_loss(original: Convertible, student: nn.Module, batch: MaskedBatch) -> Tensor:
    """KL(the original's predictions || the student's) of a token, in nats."""
    with torch.no_grad():
        wanted = _logits(original, original.teacher, batch).log_softmax(-1)
    found = _logits(original, student, batch).log_softmax(-1)
    return F.kl_div(found, wanted, log_target=True, reduction="batchmean")


def task_loss(original: Convertible, student: nn.Module, batch: MaskedBatch) -> Tensor:
    """-log of the right token's probability, in nats."""
    return F.cross_entropy(_logits(original, student, batch), batch.right[batch.chosen])


GOALS: dict[Goal, Callable[[Convertible, nn.Module, MaskedBatch], Tensor]] = {
    "hidden": hidden_loss,
    "logits": logits_loss,
    "task": task_loss,
}


def find_goal(original: Convertible, goal: Goal | None) -> Goal:
    """The goal that was asked for, if the model can have it; or the usual one of its kind."""
    if goal is None:
        return "hidden" if original.kind == "encoder" else "task"
    if goal != "hidden" and original.kind == "encoder":
        raise SubquadError(f"--goal {goal} needs a language model, but this one gives vectors only: leave it at hidden")
    return goal


def relative_error(
    own: Float[Tensor, "b n w"], exact: Float[Tensor, "b n w"], keep: Bool[Tensor, "b n"]
) -> Float[Tensor, ""]:
    """The squared error over the square, of real positions."""
    own, exact = own.float(), exact.float()
    real = keep[..., None].to(exact.dtype)
    return ((own - exact).square() * real).sum() / (exact.square() * real).sum()


def _logits(original: Convertible, model: nn.Module, batch: MaskedBatch) -> Float[Tensor, "places v"]:
    logits = original.outputs(model, batch, logits=True).logits
    assert logits is not None
    return logits.float()
