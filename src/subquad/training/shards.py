"""Checkpoints of tensors that are divided among processes: each writes a file of safetensors with its part.

`fully_shard` cuts tensors along their first axis. The file of a process names a part by its tensor and the index where
it begins, as ``model/embed.vectors@128``. Any number of processes reads what another number wrote.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.distributed.tensor import DTensor

from subquad.errors import SubquadError
from subquad.training import checkpoints

MODEL, OPTIMIZER = "model/", "optimizer/"
"""Beginnings of the names of weights and of moments."""


def save_shards(
    folder: Path, step: int, model: Mapping[str, Tensor], optimizer: Mapping[str, Tensor], about: Mapping[str, Any]
) -> None:
    """Writes a checkpoint of tensors of which each process holds a part. All processes call it together."""
    rank, number = dist.get_rank(), dist.get_world_size()
    beside = checkpoints.place_for(folder, step)
    parts: dict[str, Tensor] = {}
    for beginning, tensors in ((MODEL, model), (OPTIMIZER, optimizer)):
        for name, tensor in tensors.items():
            parts |= _part_of(beginning + name, tensor, rank, number)
    try:
        _together(lambda: checkpoints.begin(folder, step) if rank == 0 else None)
        _together(lambda: save_file(parts, beside / f"shard-{rank}-of-{number}.safetensors"))
        finished = {**about, "step": step, "moments": len(optimizer)}
        _together(lambda: checkpoints.finish(beside, finished) if rank == 0 else None)
    except OSError as error:
        raise SubquadError(
            f"cannot write the checkpoint of step {step} to {folder}: {error}; make room, then go on with --resume"
        ) from None


def _part_of(name: str, tensor: Tensor, rank: int, number: int) -> dict[str, Tensor]:
    """Returns the part of a tensor that this process writes; none if it holds none, or if the first one writes all."""
    if not isinstance(tensor, DTensor):
        return {f"{name}@0": tensor.detach().contiguous()} if rank == 0 else {}
    part, size = tensor.to_local().detach().contiguous(), -(-tensor.shape[0] // number)
    start = min(rank * size, tensor.shape[0])
    assert len(part) == min(start + size, tensor.shape[0]) - start, f"{name} is not cut along its first axis"
    return {f"{name}@{start}": part} if part.numel() else {}


def _together(work: Any) -> None:
    """Does something in each process; all of them raise `OSError` if one fails."""
    problem = None
    try:
        work()
    except (OSError, SafetensorError) as error:
        problem = str(getattr(error, "strerror", None) or error).splitlines()[0]
    problems: list[str | None] = [None] * dist.get_world_size()
    dist.all_gather_object(problems, problem)
    if first := next(filter(None, problems), None):
        raise OSError(first)


def shard_files(folder: Path) -> list[Path]:
    """The files of all processes in the folder of a checkpoint. Raises `SubquadError` if some are missing."""
    files = sorted(folder.glob("shard-*-of-*.safetensors"))
    numbers = {file.stem.rpartition("-")[2] for file in files}
    if files and numbers != {str(len(files))}:
        raise SubquadError(f"there are {len(files)} files of {' or '.join(sorted(numbers))} processes")
    return files


def read_shards(files: list[Path]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Returns the whole weights and moments in the files of a checkpoint."""
    parts: dict[str, dict[int, Tensor]] = {}
    for file in files:
        for key, part in load_file(file).items():
            name, _, start = key.rpartition("@")
            parts.setdefault(name, {})[int(start)] = part
    whole = {name: _joined(name, by_start) for name, by_start in parts.items()}
    model = {name.removeprefix(MODEL): tensor for name, tensor in whole.items() if name.startswith(MODEL)}
    optimizer = {name.removeprefix(OPTIMIZER): tensor for name, tensor in whole.items() if name.startswith(OPTIMIZER)}
    return model, optimizer


def _joined(name: str, by_start: Mapping[int, Tensor]) -> Tensor:
    reached = 0
    for start in sorted(by_start):
        if start != reached:
            raise SubquadError(f"{name} lacks its part from {reached} to {start}")
        reached += len(by_start[start]) if by_start[start].ndim else 1
    ordered = [by_start[start] for start in sorted(by_start)]
    return ordered[0] if len(ordered) == 1 else torch.cat(ordered)
