"""Files of checkpoints whose tensors are divided among processes: each writes one of safetensors with its part.

`fully_shard` cuts tensors along their first axis. The file of a process names a part by its tensor and the index where it
begins, as ``model/embed.vectors@128``. Any number of processes reads what another number wrote.
"""

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from subquad.errors import SubquadError

MODEL, OPTIMIZER = "model/", "optimizer/"
"""Beginnings of the names of weights and of moments."""


def shard_name(rank: int, number: int) -> str:
    """Name of the file of one of so many processes."""
    return f"shard-{rank}-of-{number}.safetensors"


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
