"""Files of a checkpoint that several processes wrote together, by PyTorch's distributed checkpoints."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from subquad.errors import SubquadError
from subquad.training import checkpoints

SHARDS = "shards"
"""Name of the folder in a checkpoint that holds the files of all processes."""
MODEL, OPTIMIZER = "model/", "optimizer/"
"""Beginnings of the names of weights and of moments."""


def save_shards(
    folder: Path, step: int, model: Mapping[str, Tensor], optimizer: Mapping[str, Tensor], about: Mapping[str, Any]
) -> None:
    """Writes a checkpoint of tensors of which each process holds a part. All processes call it together."""
    import torch.distributed.checkpoint as dcp

    is_first = dist.get_rank() == 0
    beside = checkpoints.place_for(folder, step)
    problem: list[str | None] = [None]
    if is_first:
        try:
            checkpoints.begin(folder, step)
        except OSError as error:
            problem = [str(error.strerror or error)]
    dist.broadcast_object_list(problem)
    if problem[0] is not None:
        raise SubquadError(f"cannot write the checkpoint of step {step} to {folder}: {problem[0]}; make room, then --resume")
    named = {**{MODEL + name: tensor for name, tensor in model.items()}}
    named |= {OPTIMIZER + name: tensor for name, tensor in optimizer.items()}
    try:
        dcp.save(named, checkpoint_id=beside / SHARDS)
    except (OSError, dcp.CheckpointException) as error:
        reason = str(error).splitlines()[0]
        raise SubquadError(
            f"cannot write the checkpoint of step {step} to {folder}: {reason}; make room, then --resume"
        ) from None
    if is_first:
        checkpoints.finish(beside, {**about, "step": step, "moments": len(optimizer)})
    dist.barrier()


def read_shards(folder: Path) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Returns the whole weights and moments of a checkpoint, by one process and whatever number wrote it."""
    import torch.distributed.checkpoint as dcp

    reader = dcp.FileSystemReader(folder)
    try:
        described = reader.read_metadata().state_dict_metadata
        tensors = {
            name: torch.empty(each.size, dtype=each.properties.dtype)
            for name, each in described.items()
            if isinstance(each, dcp.TensorStorageMetadata)
        }
        dcp.load(tensors, storage_reader=reader, no_dist=True)
    except (OSError, RuntimeError, ValueError, EOFError, dcp.CheckpointException) as error:
        raise SubquadError(f"{folder.name}: {str(error).splitlines()[0]}") from None
    model = {name.removeprefix(MODEL): tensor for name, tensor in tensors.items() if name.startswith(MODEL)}
    optimizer = {name.removeprefix(OPTIMIZER): tensor for name, tensor in tensors.items() if name.startswith(OPTIMIZER)}
    return model, optimizer
