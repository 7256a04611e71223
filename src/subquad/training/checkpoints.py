"""Checkpoints: folders of safetensors and JSON, written under a temporary name and renamed: complete or absent."""

import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import (
    Any,
    NamedTuple,
    Required,  # pydantic needs it below Python 3.12
)

import torch
from pydantic import ConfigDict
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from typing_extensions import TypedDict

from subquad.checking import Seed, Whole, read_as
from subquad.errors import SubquadError
from subquad.files import read_text
from subquad.training.scaling import ScalerFields
from subquad.training.shards import read_shards, shard_files

KEEP = 2
"""Number of checkpoints that are kept, so that an older one can be used if the newest cannot be read."""
PART, OLD, ASIDE = ".part", ".old", ".aside"
"""Suffixes of folders that are no checkpoints: still being written, being deleted, and set aside unused."""
MOMENTS = {"step", "exp_avg", "exp_avg_sq"}
"""Names of the tensors that optimizers of Adam's family keep for a parameter."""


class AboutFields(TypedDict, total=False):
    """Types of the fields of ``about.json``."""

    __pydantic_config__ = ConfigDict(extra="allow", strict=True, allow_inf_nan=False)  # type: ignore[misc]

    step: Required[Whole]
    seed: Seed
    rows: Whole
    moments: Whole
    scaler: ScalerFields


class Checkpoint(NamedTuple):
    """Weights and optimizer state after a step, with the contents of ``about.json``."""

    step: int
    model: dict[str, Tensor]
    optimizer: dict[str, Tensor]
    about: dict[str, Any]


def save(
    folder: Path,
    step: int,
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None,
    about: Mapping[str, Any],
    *,
    keep: int | None = KEEP,
) -> Path:
    """Writes a checkpoint and deletes the oldest ones beyond `keep`. Without an optimizer, it cannot be trained on."""
    beside = place_for(folder, step)
    try:
        begin(folder, step)
        moments = {} if optimizer is None else _optimizer_tensors(model, optimizer)
        save_file(model_tensors(model), beside / "model.safetensors")
        save_file(moments, beside / "optimizer.safetensors")
        return finish(beside, {**about, "step": step, "moments": len(moments)}, keep=keep)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(beside, ignore_errors=True)
        raise SubquadError(
            f"cannot write the checkpoint of step {step} to {folder}: {_reason(error)}; make room, then go on with --resume"
        ) from None


def place_for(folder: Path, step: int) -> Path:
    """The folder in which the checkpoint of a step is written before it gets its name."""
    return folder / f"step-{step:09d}{PART}"


def begin(folder: Path, step: int) -> None:
    """Makes the folder in which the checkpoint of a step is written, and deletes what killed processes left."""
    for left in (*folder.glob(f"step-*{PART}"), *folder.glob(f"step-*{OLD}")):
        shutil.rmtree(left, ignore_errors=True)
    place_for(folder, step).mkdir(parents=True)


def finish(beside: Path, about: Mapping[str, Any], *, keep: int | None = KEEP) -> Path:
    """Gives a checkpoint that is written its name, and deletes the oldest ones beyond `keep`."""
    (beside / "about.json").write_text(json.dumps(about))
    for file in beside.rglob("*"):
        if file.is_file():
            _synchronise(file)
    final = beside.with_suffix("")
    _discard(final)
    beside.replace(final)
    for old in checkpoint_folders(beside.parent)[:-keep] if keep else []:
        _discard(old)
    return final


def load(folder: Path, check: Callable[[Checkpoint], None] = lambda checkpoint: None) -> tuple[Checkpoint | None, list[str]]:
    """Returns the newest usable checkpoint in a folder, or None, and a sentence about each newer one that is not usable.

    `check` raises `SubquadError` for a checkpoint that can be read but not used.
    """
    complaints: list[str] = []
    for path in reversed(checkpoint_folders(folder)):
        try:
            checkpoint = read(path)
            check(checkpoint)
            return checkpoint, [f"{complaint}, so the one before it is used" for complaint in complaints]
        except SubquadError as error:
            complaints.append(str(error))
    return None, complaints


def read(path: Path) -> Checkpoint:
    """Reads the checkpoint in a folder. Raises `SubquadError` if it is damaged."""
    try:
        about = json.loads(read_text(path / "about.json"))
        read_as(AboutFields, about, "about.json:")
        if about["step"] != step_of(path):
            raise SubquadError(f"about.json is of step {about['step']}")
        if shards := shard_files(path):
            model, optimizer = read_shards(shards)
        else:
            model, optimizer = (load_file(path / f"{name}.safetensors") for name in ("model", "optimizer"))
        if len(optimizer) != about.get("moments", len(optimizer)):
            raise SubquadError(f"optimizer.safetensors has {len(optimizer)} tensors of {about['moments']}")
    except (OSError, SafetensorError, ValueError, RecursionError) as error:
        raise SubquadError(f"the checkpoint {path} cannot be read ({_reason(error)})") from None
    return Checkpoint(about["step"], model, optimizer, about)


def check_fit(checkpoint: Checkpoint, model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> None:
    """Raises `SubquadError` if the tensors differ in name, shape or type from those of `model` and `optimizer`."""
    if _forms(model_tensors(model)) != _forms(checkpoint.model):
        raise SubquadError(
            f"the checkpoint of step {checkpoint.step} does not fit the model: it was made with other options"
        )
    if optimizer is None:
        return
    moments = _by_parameter(checkpoint.optimizer)
    parameters = dict(zip(_names(model, optimizer), _parameters(optimizer), strict=True))
    fitting = all(
        name in parameters and parts.keys() == MOMENTS and _fits(parts, parameters[name]) for name, parts in moments.items()
    )
    if not fitting or (not moments and checkpoint.step):
        raise SubquadError(f"the checkpoint of step {checkpoint.step} does not have what the optimizer needs to go on")


def restore(checkpoint: Checkpoint, model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> None:
    """Loads a checkpoint into a model and, if given, its optimizer."""
    check_fit(checkpoint, model, optimizer)
    model.load_state_dict(checkpoint.model, strict=False)  # tensors that share memory are saved once
    if optimizer is None:
        return
    places = {name: place for place, name in enumerate(_names(model, optimizer))}
    state = {places[name]: parts for name, parts in _by_parameter(checkpoint.optimizer).items()}
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def forget(folder: Path, *, after: int, aside: bool = False) -> None:
    """Deletes the checkpoints after the step `after`, or with `aside` renames them so that they are not used."""
    for path in checkpoint_folders(folder):
        if step_of(path) > after:
            _put_aside(path) if aside else _discard(path)


def forget_before(folder: Path, step: int) -> None:
    """Deletes the checkpoints that are older than the newest one at or before a step."""
    for path in [path for path in checkpoint_folders(folder) if step_of(path) <= step][:-1]:
        _discard(path)


def checkpoint_folders(folder: Path) -> list[Path]:
    """The folders of the checkpoints in `folder`, the oldest first."""
    return sorted(path for path in folder.glob("step-*") if path.name.removeprefix("step-").isdecimal())


def step_of(path: Path) -> int:
    """The step in the name of a checkpoint's folder."""
    return int(path.name.removeprefix("step-"))


def model_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers by name. Tensors that share memory are listed once."""
    seen: set[int] = set()
    tensors: dict[str, Tensor] = {}
    for name, tensor in model.state_dict().items():
        if tensor.data_ptr() not in seen or tensor.numel() == 0:
            seen.add(tensor.data_ptr())
            tensors[name] = tensor.detach().contiguous()
    return tensors


def _optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    names: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
    return {
        f"{names[parameter]}|{part}": torch.as_tensor(value).contiguous()
        for parameter, state in optimizer.state.items()
        for part, value in state.items()
    }


def _by_parameter(moments: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """Groups the optimizer's tensors by the name of the parameter that they belong to."""
    tensors_of: dict[str, dict[str, Tensor]] = {}
    for key, value in moments.items():
        name, _, part = key.rpartition("|")
        tensors_of.setdefault(name, {})[part] = value
    return tensors_of


def _fits(parts: Mapping[str, Tensor], parameter: Tensor) -> bool:
    count, means = parts["step"], [parts[part] for part in MOMENTS - {"step"}]
    return count.shape == () and all((mean.shape, mean.dtype) == (parameter.shape, parameter.dtype) for mean in means)


def _forms(tensors: Mapping[str, Tensor]) -> dict[str, tuple[torch.Size, torch.dtype]]:
    return {name: (tensor.shape, tensor.dtype) for name, tensor in tensors.items()}


def _parameters(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """The parameters in the optimizer's order."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _names(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[str]:
    names: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
    return [names[parameter] for parameter in _parameters(optimizer)]


def _discard(path: Path) -> None:
    """Deletes a checkpoint. It is renamed first, so that a killed process leaves no incomplete checkpoint."""
    if path.exists():
        old = path.with_suffix(OLD)
        shutil.rmtree(old, ignore_errors=True)
        path.replace(old)
        shutil.rmtree(old, ignore_errors=True)


def _put_aside(path: Path) -> None:
    beside = path.with_suffix(ASIDE)
    shutil.rmtree(beside, ignore_errors=True)
    path.replace(beside)


def _synchronise(file: Path) -> None:
    """Flushes a file to disk, so that a rename that follows never takes effect before the contents are written."""
    with file.open("rb") as opened:
        os.fsync(opened.fileno())


def _reason(error: Exception) -> str:
    return str(getattr(error, "strerror", None) or error).splitlines()[0]
