"""Checkpoints: safetensors and JSON in folders, written beside and renamed, so that each is whole or absent."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from subquad.errors import SubquadError

KEEP = 2
"""How many are kept: if the last cannot be read, the one before can."""


class Checkpoint(NamedTuple):
    """A step, and what was known after it."""

    step: int
    model: dict[str, Tensor]
    optimizer: dict[str, Tensor]
    about: dict[str, Any]


def save(
    folder: Path, step: int, model: nn.Module, optimizer: torch.optim.Optimizer | None, about: Mapping[str, Any]
) -> Path:
    """Writes a checkpoint and lets go of the oldest. One without an optimizer is to be used, not to be trained on."""
    beside, final = folder / f"step-{step:09d}.part", folder / f"step-{step:09d}"
    try:
        shutil.rmtree(beside, ignore_errors=True)
        beside.mkdir(parents=True)
        save_file(model_tensors(model), beside / "model.safetensors")
        moments = {} if optimizer is None else _optimizer_tensors(model, optimizer)
        save_file(moments, beside / "optimizer.safetensors")
        (beside / "about.json").write_text(json.dumps({"step": step, **about}))
        shutil.rmtree(final, ignore_errors=True)
        beside.replace(final)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(beside, ignore_errors=True)
        raise SubquadError(
            f"cannot write the checkpoint of step {step} to {folder}: {_reason(error)}; make room, then go on with --resume"
        ) from None
    for old in _found(folder)[:-KEEP]:
        shutil.rmtree(old, ignore_errors=True)
    return final


def load(folder: Path) -> tuple[Checkpoint | None, list[str]]:
    """The newest checkpoint that can be read, and what is to be said of those that cannot."""
    complaints: list[str] = []
    for path in reversed(_found(folder)):
        try:
            about = json.loads((path / "about.json").read_text())
            model, optimizer = (load_file(path / f"{name}.safetensors") for name in ("model", "optimizer"))
            return Checkpoint(int(about["step"]), model, optimizer, about), complaints
        except (OSError, SafetensorError, ValueError, KeyError) as error:
            complaints.append(f"the checkpoint {path} cannot be read ({_reason(error)}), so the one before it is used")
    return None, complaints


def restore(checkpoint: Checkpoint, model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> None:
    """Puts back what was saved."""
    own = model_tensors(model)
    if own.keys() != checkpoint.model.keys() or any(
        own[name].shape != kept.shape for name, kept in checkpoint.model.items()
    ):
        raise SubquadError("the checkpoint does not fit the model: it was made with other options")
    model.load_state_dict(checkpoint.model, strict=False)  # what shares memory is saved once
    if optimizer is None:
        return
    state: dict[int, dict[str, Tensor]] = {}
    names: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
    every = [names[parameter] for group in optimizer.param_groups for parameter in group["params"]]  # in its own order
    places = {name: place for place, name in enumerate(every)}
    for key, value in checkpoint.optimizer.items():
        name, part = key.rsplit("|", 1)
        state.setdefault(places[name], {})[part] = value
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def forget_after(folder: Path, step: int) -> None:
    """Lets go of the checkpoints of later steps, which a run that goes on from this one will come to again."""
    for path in _found(folder):
        if int(path.name.removeprefix("step-")) > step:
            shutil.rmtree(path, ignore_errors=True)


def model_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers by name, each memory once."""
    seen: set[int] = set()
    found: dict[str, Tensor] = {}
    for name, tensor in model.state_dict().items():
        if tensor.data_ptr() not in seen or tensor.numel() == 0:
            seen.add(tensor.data_ptr())
            found[name] = tensor.detach().contiguous()
    return found


def _optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    names: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
    return {
        f"{names[parameter]}|{part}": torch.as_tensor(value).contiguous()
        for parameter, state in optimizer.state.items()
        for part, value in state.items()
    }


def _found(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("step-*") if path.suffix != ".part")


def _reason(error: Exception) -> str:
    return str(getattr(error, "strerror", None) or error).splitlines()[0]
