"""Loss functions of the second stage, in which the whole model is tuned."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from subquad.conversion.convertible import Convertible, Goal
from subquad.errors import SubquadError
from subquad.tasks.mlm.masking import MaskedBatch

POOLED = 5.0
"""Weight of the distance between the texts' vectors, relative to the error of the hidden states."""


def hidden_loss(original: Convertible, student: nn.Module, batch: MaskedBatch) -> Tensor:
    """Mean relative error of the layers' hidden states; for an encoder plus 5 (1 - cosine) of the texts' vectors.

    The hidden state after each layer of a student is compared with that after its origin.
    """
    with torch.no_grad():
        exact_states = original.outputs(original.teacher, batch).hidden
    student_states = original.outputs(student, batch).hidden
    errors = [
        relative_error(student, exact_states[origin], batch.keep)
        for student, origin in zip(student_states, original.origins, strict=True)
    ]
    loss = torch.stack(errors).mean()
    if original.kind != "encoder":
        return loss
    student_vectors, exact_vectors = (
        original.pool(hidden[-1].float(), batch.keep) for hidden in (student_states, exact_states)
    )
    cosine = F.cosine_similarity(student_vectors, exact_vectors)
    return loss + POOLED * (1 - cosine.mean())


def logits_loss(original: Convertible, student: nn.Module, batch: MaskedBatch) -> Tensor:
    """KL divergence of the student's predictions from the original's, in nats per token."""
    with torch.no_grad():
        exact_log_probs = _logits(original, original.teacher, batch).log_softmax(-1)
    student_log_probs = _logits(original, student, batch).log_softmax(-1)
    return F.kl_div(student_log_probs, exact_log_probs, log_target=True, reduction="batchmean")


def task_loss(original: Convertible, student: nn.Module, batch: MaskedBatch) -> Tensor:
    """Cross-entropy of the right tokens, in nats per token."""
    return F.cross_entropy(_logits(original, student, batch), batch.right[batch.chosen])


GOALS: dict[Goal, Callable[[Convertible, nn.Module, MaskedBatch], Tensor]] = {
    "hidden": hidden_loss,
    "logits": logits_loss,
    "task": task_loss,
}


def find_goal(original: Convertible, goal: Goal | None) -> Goal:
    """Returns `goal` if the model supports it; without one, hidden for an encoder and task for a language model."""
    if goal is None:
        return "hidden" if original.kind == "encoder" else "task"
    if goal != "hidden" and original.kind == "encoder":
        raise SubquadError(f"--goal {goal} needs a language model, but this one gives vectors only: leave it at hidden")
    return goal


def relative_error(
    hidden: Float[Tensor, "b n w"], exact: Float[Tensor, "b n w"], keep: Bool[Tensor, "b n"]
) -> Float[Tensor, ""]:
    """Sum of squared errors divided by the sum of squares of `exact`, over real positions."""
    hidden, exact = hidden.float(), exact.float()
    real = keep[..., None].to(exact.dtype)
    return ((hidden - exact).square() * real).sum() / (exact.square() * real).sum()


def _logits(original: Convertible, model: nn.Module, batch: MaskedBatch) -> Float[Tensor, "places v"]:
    logits = original.outputs(model, batch, logits=True).logits
    assert logits is not None
    return logits.float()
