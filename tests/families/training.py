"""Cells of files and of training: what is saved comes back, and gradients are what they are."""

import inspect
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Trainer, TrainingArguments

from subquad import hub
from tests.families.cells import DoesNotApplyError, Prepare, WrongError, main_output, require_close, unchanged
from tests.families.inputs import ROWS, Inputs, fitted
from tests.families.models import Subject, outputs, real_tensors


def saved_and_loaded(subject: Subject, prepare: Prepare) -> None:
    """A folder gives back the model that was saved into it, with its class."""
    model = prepare(subject.fresh())
    for parameter in model.parameters():
        parameter.data += 0.01  # so that what is drawn anew would be noticed
    wanted = outputs(model, subject.inputs)
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        back = hub.load(folder) if prepare is not unchanged else type(model).from_pretrained(folder).eval()
        if type(back) is not type(model):
            raise WrongError(float("inf"), f"it comes back as {type(back).__name__}")
        back.save_pretrained(Path(folder) / "again")
        again = hub.load(Path(folder) / "again") if prepare is not unchanged else back
    for each in (back, again):
        found = outputs(each.to(subject.model.dtype), subject.inputs)
        for name in wanted:
            require_close(found[name], wanted[name], f"{name} of the loaded model differs", subject.model.dtype)


def checkpointing(subject: Subject, prepare: Prepare) -> None:
    """Gradients are the same with and without gradient checkpointing."""
    if not subject.model.supports_gradient_checkpointing:
        raise DoesNotApplyError("it does not support gradient checkpointing")
    plain, saving = (prepare(subject.fresh()) for _ in range(2))
    if hasattr(saving, "activation_checkpointing_enable"):  # the name since transformers 5.23
        saving.activation_checkpointing_enable()
    else:
        saving.gradient_checkpointing_enable()
    found, wanted = (_gradient(model, subject.inputs) for model in (saving, plain))
    require_close(found, wanted, "gradients differ", subject.model.dtype)


def autocast(subject: Subject, prepare: Prepare) -> None:
    """In bfloat16 the output is finite and close to that in float32, or no farther off than the original's."""
    inputs = fitted(subject.inputs, torch.float32)
    model, original = prepare(subject.fresh(torch.float32)), subject.fresh(torch.float32)
    takes_cache = "use_cache" in inspect.signature(model.forward).parameters
    for others in ({}, {"use_cache": False}) if takes_cache else ({},):
        off = _rough_error(model, inputs, others)
        if not off < 0.1 and prepare is not unchanged:
            theirs = _rough_error(original, inputs, others)
            if not off < 4 * theirs:
                raise WrongError(
                    off, f"in bfloat16 the output is off by {off:.2g} of its size, the original's by {theirs:.2g}"
                )


def trainer(subject: Subject, prepare: Prepare) -> None:
    """A step of transformers' Trainer changes the attention's weights."""
    _trained(subject, prepare, is_half=False)


def trainer_bfloat16(subject: Subject, prepare: Prepare) -> None:
    """A step of transformers' Trainer with bf16=True."""
    _trained(subject, prepare, is_half=True)


def _trained(subject: Subject, prepare: Prepare, *, is_half: bool) -> None:
    class Squares(Trainer):
        def compute_loss(self, model: Any, inputs: Inputs, *_: Any, **__: Any) -> Tensor:
            return _loss(model(**inputs))

    inputs = fitted(subject.inputs, torch.float32)
    if any(each.shape[:1] != (ROWS,) for each in inputs.values()):
        raise DoesNotApplyError("its inputs are not rows of a batch")
    rows = [{name: each[row] for name, each in inputs.items()} for row in range(2)]
    model = prepare(subject.fresh(torch.float32))
    before = {name: each.detach().clone() for name, each in model.named_parameters()}
    known: dict[str, Any] = {"use_cpu": True, "max_steps": 1, "per_device_train_batch_size": 2, "report_to": [], "seed": 0}
    known |= {"save_strategy": "no", "logging_strategy": "no", "disable_tqdm": True, "remove_unused_columns": False}
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(output_dir=folder, bf16=is_half, learning_rate=1e-2, **known)
        Squares(model, arguments, train_dataset=rows).train()
    after = dict(model.named_parameters())
    if not all(bool(each.isfinite().all()) for each in after.values()):
        raise WrongError(float("inf"), "weights are not finite after a step")
    if all(torch.equal(before[name], after[name]) for name in before):
        raise WrongError(0.0, "a step changed nothing")


def _gradient(model: nn.Module, inputs: Inputs) -> Tensor:
    model.train()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    torch.manual_seed(5)
    _loss(model(**inputs)).backward()
    parts = [each.grad.flatten() for each in model.parameters() if each.grad is not None]
    return torch.cat(parts)


def _loss(found: Any) -> Tensor:
    return torch.stack(
        [tensor.double().square().mean() for tensor in real_tensors(found).values() if tensor.requires_grad]
    ).sum()


def _rough_error(model: Any, inputs: Inputs, others: dict[str, Any]) -> float:
    exact = main_output(outputs(model, inputs, **others))
    with torch.autocast("cpu", torch.bfloat16):
        rough = main_output(outputs(model, inputs, **others))
    if not bool(rough.isfinite().all()):
        return float("inf")
    return float((rough.float() - exact).norm() / exact.norm())
