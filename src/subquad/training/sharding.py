"""Weights, gradients and moments that are divided among processes (FSDP), and checkpoints that each writes its part of.

accelerate divides models on GPUs only, so that PyTorch's `fully_shard` is called here, on any device. The first process also
keeps the whole model, with which it evaluates.
"""

import copy
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn

from subquad.errors import SubquadError
from subquad.models.block import Block
from subquad.models.stacks import Stack
from subquad.tasks.base import Task
from subquad.training import checkpoints
from subquad.training.options import TrainOptions
from subquad.training.shards import MODEL, OPTIMIZER, shard_name

WANTED = "ACCELERATE_USE_FSDP"
"""Environment variable that `accelerate launch --use_fsdp` sets."""


def is_wanted() -> bool:
    """Whether `accelerate launch --use_fsdp` started this process."""
    return os.environ.get(WANTED, "false").lower() == "true" and int(os.environ.get("WORLD_SIZE", 1)) > 1


@contextmanager
def hidden_from_accelerate() -> Iterator[None]:
    """Inside the block, accelerate does not see that weights are to be divided, which it refuses on a CPU."""
    value = os.environ.pop(WANTED, None)
    try:
        yield
    finally:
        if value is not None:
            os.environ[WANTED] = value


def check_sharding(task: Task[Any], model: nn.Module) -> None:
    """Raises `SubquadError` if the weights of a model cannot be divided among processes."""
    stacks = [module for module in model.modules() if isinstance(module, Stack)]
    if not task.can_be_cut or not stacks:
        raise SubquadError(
            f"the weights of a model of {task.kind} cannot be divided among processes: leave --use_fsdp out, or train lm, "
            "mlm, tokens, recall, induction or copy with a decoder"
        )
    if any(stack.options.share_attention > 1 or stack.options.reversible for stack in stacks):
        raise SubquadError(
            "layers that share attention weights or are reversible cannot be divided among processes: leave --use_fsdp, or "
            "--share-attention and --reversible, out"
        )


class Sharded(NamedTuple):
    """A model and its optimizer, of which each process holds a part."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    names: tuple[str, ...]
    """Names of the tensors of a checkpoint of the whole model."""

    def gather(self, whole: nn.Module) -> None:
        """Copies the weights of all processes into the whole model, which the first process has."""
        from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

        how = StateDictOptions(full_state_dict=True, cpu_offload=True)
        tensors = get_model_state_dict(self.model, options=how)
        if dist.get_rank() == 0:
            whole.load_state_dict({name: tensors[name] for name in self.names}, strict=False)

    def save(self, folder: Path, step: int, about: Mapping[str, Any]) -> None:
        """Writes a checkpoint of which each process writes its part."""
        weights = self.model.state_dict()
        parameters: dict[Tensor, str] = {parameter: name for name, parameter in self.model.named_parameters()}
        moments: dict[str, Tensor] = {
            f"{parameters[parameter]}|{part}": torch.as_tensor(value)
            for parameter, state in self.optimizer.state.items()
            for part, value in state.items()
        }
        save_shards(folder, step, {name: weights[name] for name in self.names}, moments, about)


def shard(whole: nn.Module, whole_optimizer: torch.optim.Optimizer, options: TrainOptions, device: torch.device) -> Sharded:
    """Divides a model and its optimizer's moments among all processes. Only the first one keeps the whole model."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions, set_optimizer_state_dict
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

    names = tuple(checkpoints.model_tensors(whole))
    by_parameter: dict[Tensor, str] = {parameter: name for name, parameter in whole.named_parameters()}
    moments: dict[str, Any] = {by_parameter[parameter]: dict(state) for parameter, state in whole_optimizer.state.items()}
    groups = [{**group, "params": list(by_parameter.values())} for group in whole_optimizer.state_dict()["param_groups"]]
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    model = copy.deepcopy(whole).to(device)
    for block in [module for module in model.modules() if isinstance(module, Block)]:
        fully_shard(block, mesh=mesh)
        register_fsdp_forward_method(block, "causal")
    fully_shard(model, mesh=mesh)
    optimizer = options.build_optimizer(model.parameters())
    if moments:
        how = StateDictOptions(full_state_dict=True)
        set_optimizer_state_dict(model, optimizer, {"state": moments, "param_groups": groups}, options=how)
    whole_optimizer.state.clear()
    if dist.get_rank():
        whole.to("meta")
    return Sharded(model, optimizer, names)


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
        _together(lambda: save_file(parts, beside / shard_name(rank, number)))
        finished = {**about, "step": step, "moments": len(optimizer)}
        _together(lambda: checkpoints.finish(beside, finished) if rank == 0 else None)
    except OSError as error:
        raise SubquadError(
            f"cannot write the checkpoint of step {step} to {folder}: {error}; make room, then go on with --resume"
        ) from None


def _part_of(name: str, tensor: Tensor, rank: int, number: int) -> dict[str, Tensor]:
    """Returns the part of a tensor that this process writes; none if it holds none, or if the first one writes all."""
    from torch.distributed.tensor import DTensor

    if not isinstance(tensor, DTensor):
        return {f"{name}@0": tensor.detach().contiguous()} if rank == 0 else {}
    part, size = tensor.to_local().detach().contiguous(), -(-tensor.shape[0] // number)
    start = min(rank * size, tensor.shape[0])
    assert len(part) == min(start + size, tensor.shape[0]) - start, f"{name} is not cut along its first axis"
    return {f"{name}@{start}": part} if part.numel() else {}


def _together(work: Callable[[], object]) -> None:
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
