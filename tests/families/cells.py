"""What is asked of a family: each cell is a property that a model must have, whatever its attention.

A cell that a swapped model does not pass is tried on the original. If that fails as well, the cell does not apply.
"""

import inspect
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from subquad import Favor, Linear, Softmax, SubquadError, hub
from subquad.types import AttentionOptions
from tests.families.inputs import LENGTH, ROWS, Inputs
from tests.families.models import Subject, outputs

LIMITS = {torch.float64: 1e-5, torch.float32: 1e-3}
"""Largest difference, in units of the root mean square of what is compared."""
LENGTHS = (12, 17, 8)
"""Positions of each row that are not padding."""
CHANGED = 11
"""Position at which a token is changed to see what changes before it."""


@dataclass(frozen=True)
class Result:
    """What came of a cell: "works", "refused", "does not apply", "silent error" or "crash"."""

    status: str
    value: float | None = None
    says: str = ""


class WrongError(Exception):
    """A model does something else than it should, by a number."""

    def __init__(self, value: float, says: str) -> None:
        super().__init__(says)
        self.value = value


class DoesNotApplyError(Exception):
    """A cell asks for something that the family does not have."""


Prepare = Callable[[Any], Any]
Cell = Callable[[Subject, Prepare], None]


def swapped(options: AttentionOptions, **given: Any) -> Prepare:
    """Puts a mechanism into a model. A class of models proves itself once; more models of it are swapped without a proof."""
    refusals: dict[type, str | None] = {}

    def prepare(model: Any) -> Any:
        kind = type(model)
        if kind not in refusals:
            refusals[kind] = None
            try:
                return hub.swap(model, options, **given)
            except SubquadError as error:
                refusals[kind] = str(error)
        if (refusal := refusals[kind]) is not None:
            raise SubquadError(refusal)
        return hub.swap(model, options, **given, check=False)

    return prepare


def unchanged(model: Any) -> Any:
    """Leaves a model as transformers has it."""
    return model


LINEAR, FAVOR, SOFTMAX = swapped(Linear()), swapped(Favor(features=32)), swapped(Softmax())


def judge(cell: Cell, subject: Subject, prepare: Prepare) -> Result:
    """What comes of a cell with an attention, and of the original where that does not work."""
    ours = _outcome(cell, subject, prepare)
    if ours.status in ("silent error", "crash"):
        theirs = _outcome(cell, subject, unchanged)
        if theirs.status in ("silent error", "crash"):
            return Result("does not apply", theirs.value, f"the original: {theirs.says}")
        if theirs.status == "does not apply":
            return theirs
    return ours


def _outcome(cell: Cell, subject: Subject, prepare: Prepare) -> Result:
    try:
        cell(subject, prepare)
    except SubquadError as error:
        return Result("refused", None, str(error))
    except DoesNotApplyError as error:
        return Result("does not apply", None, str(error))
    except WrongError as error:
        return Result("silent error", error.value, str(error))
    except Exception as error:
        line = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
        return Result("crash", None, f"{type(error).__name__}: {line}"[:300])
    return Result("works")


def require_close(found: Tensor, wanted: Tensor, says: str, dtype: torch.dtype) -> None:
    """Raises WrongError where two tensors differ by more than rounding."""
    if found.shape != wanted.shape:
        raise WrongError(float("inf"), f"{says}: the shape is {tuple(found.shape)}, not {tuple(wanted.shape)}")
    if wanted.numel() == 0:
        return
    size = wanted.double().square().mean().sqrt().clamp(min=1e-9)
    off = float((found.double() - wanted.double()).abs().max() / size)
    if not off <= LIMITS[dtype]:
        raise WrongError(off, f"{says} by {off:.2g}")


def equals_original(subject: Subject, prepare: Prepare) -> None:
    """Softmax put in by `swap` gives what the original gives, with and without padding."""
    model, dtype = prepare(subject.fresh()), subject.model.dtype
    for inputs in (subject.inputs, *(padded(subject.inputs, "right")[:1] if _takes_mask(subject) else ())):
        wanted, found = outputs(subject.model, inputs), outputs(model, inputs)
        keep = inputs.get("attention_mask")
        for name in wanted:
            if name not in found:
                raise WrongError(float("inf"), f"the output lacks {name}")
            real = keep is not None and wanted[name].shape[:2] == keep.shape
            here = keep.bool() if real and keep is not None else slice(None)
            require_close(found[name][here], wanted[name][here], f"{name} differs from the original's", dtype)


def takes_effect(subject: Subject, prepare: Prepare) -> None:
    """Another attention gives other numbers, all of them finite."""
    model = prepare(subject.fresh())
    wanted, found = outputs(subject.model, subject.inputs), outputs(model, subject.inputs)
    if prepare is unchanged:
        return
    if any(not bool(tensor.isfinite().all()) for tensor in found.values()):
        raise WrongError(float("inf"), "the output is not finite")
    try:
        for name in wanted:
            require_close(found[name], wanted[name], "", torch.float32)
    except WrongError:
        return
    raise WrongError(0.0, "the output is the original's, as if nothing had been swapped")


def padding_right(subject: Subject, prepare: Prepare) -> None:
    """Padding behind a text changes nothing in it."""
    _padding(subject, prepare, "right")


def padding_left(subject: Subject, prepare: Prepare) -> None:
    """Padding before a text changes nothing in it."""
    _padding(subject, prepare, "left")


def _padding(subject: Subject, prepare: Prepare, side: str) -> None:
    if not _takes_mask(subject):
        raise DoesNotApplyError("its input is no text with a mask of padding")
    model = prepare(subject.fresh())
    inputs, singles = padded(subject.inputs, side)
    together = main_output(outputs(model, inputs))
    for row, single in enumerate(singles):
        alone = main_output(outputs(model, single))
        here = together[row : row + 1]
        if alone.shape[1:2] != here.shape[1:2]:
            here = here[:, inputs["attention_mask"][row].bool()]
        require_close(here, alone, f"padding on the {side} moves row {row}", subject.model.dtype)


def batch(subject: Subject, prepare: Prepare) -> None:
    """Rows of a batch do not see each other."""
    model = prepare(subject.fresh())
    together = outputs(model, subject.inputs)
    names = [name for name, tensor in together.items() if tensor.ndim and tensor.shape[0] % ROWS == 0]
    if not names or any(each.ndim == 0 or each.shape[0] % ROWS for each in subject.inputs.values()):
        raise DoesNotApplyError("its inputs or outputs are not rows of a batch")
    for row in range(ROWS):
        alone = outputs(model, {name: _chunk(tensor, row) for name, tensor in subject.inputs.items()})
        for name in names:
            if name in alone:
                require_close(
                    alone[name],
                    _chunk(together[name], row),
                    f"{name} of row {row} moves with the others",
                    subject.model.dtype,
                )


def causality(subject: Subject, prepare: Prepare) -> None:
    """A later token changes nothing before it, unless the original looks both ways; then the swapped one does too."""
    name = "decoder_input_ids" if "decoder_input_ids" in subject.inputs else "input_ids"
    if name not in subject.inputs:
        raise DoesNotApplyError("it reads no tokens")
    model = prepare(subject.fresh())
    ours, theirs = (_moved_before(each, subject.inputs, name) for each in (model, subject.model))
    limit = LIMITS[subject.model.dtype]
    if theirs <= limit < ours or not ours == ours:
        raise WrongError(ours, f"a later token moves what is before it by {ours:.2g}")
    if ours <= limit < theirs:
        raise WrongError(theirs, f"the original looks both ways (by {theirs:.2g}), the swapped one does not")
    if theirs > limit:
        raise DoesNotApplyError("the original looks both ways")


def looks_both_ways(subject: Subject) -> bool:
    """Whether an original that continues its input sees tokens ahead of others."""
    if "input_ids" not in subject.inputs or "decoder_input_ids" in subject.inputs:
        return False
    try:
        return _moved_before(subject.model, subject.inputs, "input_ids") > LIMITS[subject.model.dtype]
    except DoesNotApplyError:
        return False


def _moved_before(model: Any, inputs: Inputs, name: str) -> float:
    ids = inputs[name].clone()
    ids[:, CHANGED:] = 3 + (ids[:, CHANGED:] + 4) % 37
    before, after = (main_output(outputs(model, each)) for each in (inputs, {**inputs, name: ids}))
    if before.shape[1] != LENGTH:
        raise DoesNotApplyError("its output is not one for each token")
    size = before[:, :CHANGED].double().square().mean().sqrt().clamp(min=1e-9)
    return float((before - after)[:, :CHANGED].abs().max() / size)


def padding_and_future(subject: Subject, prepare: Prepare) -> None:
    """Neither padding nor the future is seen, and the attention takes effect."""
    takes_effect(subject, prepare)
    for cell in (padding_right, causality):
        with suppress(DoesNotApplyError):
            cell(subject, prepare)


def padded(inputs: Inputs, side: str) -> tuple[Inputs, list[Inputs]]:
    """A batch of texts of several lengths, and each of them alone."""
    mask = torch.zeros(ROWS, LENGTH, dtype=torch.long)
    for row, length in enumerate(LENGTHS):
        mask[row, :length] = 1
    mask = mask.flip(1) if side == "left" else mask
    along = {name for name, each in inputs.items() if each.shape[:2] == (ROWS, LENGTH) and not name.startswith("decoder")}
    together: Inputs = {**inputs, "attention_mask": mask}
    together["input_ids"] = inputs["input_ids"] * mask
    singles = []
    for row in range(ROWS):
        single: Inputs = {name: each[row : row + 1] for name, each in inputs.items()}
        single |= {name: inputs[name][row : row + 1, mask[row].bool()] for name in along}
        singles.append({**single, "attention_mask": torch.ones(1, LENGTHS[row], dtype=torch.long)})
    return together, singles


def main_output(found: dict[str, Tensor]) -> Tensor:
    """The one that a head or a body is asked for."""
    names: Iterable[str] = ("logits", "last_hidden_state", *found)
    return next(found[name] for name in names if name in found and found[name].ndim >= 2)


def _takes_mask(subject: Subject) -> bool:
    takes = "attention_mask" in inspect.signature(subject.model.forward).parameters
    return takes and "input_ids" in subject.inputs and "attention_mask" not in subject.inputs


def _chunk(tensor: Tensor, row: int) -> Tensor:
    size = tensor.shape[0] // ROWS
    return tensor[row * size : (row + 1) * size]
