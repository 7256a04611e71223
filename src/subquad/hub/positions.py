"""Extends the position embeddings of a model to longer texts."""

from typing import TypeVar

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from subquad.errors import SubquadError

TABLES = ("position_embeddings", "position_embedding", "embed_positions", "wpe")
"""Names of position embeddings in model families."""
_LENGTHS = ("max_position_embeddings", "n_positions", "n_ctx")
_ROTARY = ("inv_freq", "rotary", "relative_attention_bias")

Model = TypeVar("Model", bound=PreTrainedModel)


def extend_positions(model: Model, length: int) -> Model:
    """Extends a model to `length` positions in place, and returns it.

    Learned position embeddings are repeated, so that outputs for texts of the old length do not change, and sinusoids go on.
    Longer tables stay as they are, and rotary and relative positions need no change.

    Raises `SubquadError` for any other kind of positions.
    """
    config = model.config.get_text_config()
    stated_lengths = {name: value for name in _LENGTHS if isinstance(value := getattr(config, name, None), int)}
    tables = {name: module for name, module in model.named_modules() if _is_table(name, module)}
    longest = min(
        [*stated_lengths.values(), *(table.num_embeddings - _reserved(table) for table in tables.values())], default=length
    )
    if longest >= length:
        return model
    parts = [name for name, _ in (*model.named_modules(), *model.named_buffers())]
    if not tables and not any(word in name for name in parts for word in _ROTARY):
        raise SubquadError(
            f"{type(model).__name__} takes {longest} positions and has no table of them that could be extended to {length}"
        )
    for table in tables.values():
        if table.num_embeddings - _reserved(table) < length:
            _lengthen(table, length)
    more = length - longest  # families count reserved rows differently, so sizes grow by the difference
    for module in model.modules():
        for name in ("position_ids", "token_type_ids"):
            if isinstance(held := module._buffers.get(name), Tensor):
                module._buffers[name] = _longer(held, more)
    for name, value in stated_lengths.items():
        setattr(config, name, value + more)
    return model


def _is_table(name: str, module: nn.Module) -> bool:
    return isinstance(module, nn.Embedding) and name.rsplit(".", 1)[-1] in TABLES


def _reserved(table: nn.Embedding) -> int:
    """Number of reserved rows at the front, which belong to no position."""
    offset = getattr(table, "offset", 0)
    return offset if isinstance(offset, int) and offset else 0 if table.padding_idx is None else table.padding_idx + 1


def _lengthen(table: nn.Embedding, length: int) -> None:
    """Repeats learned positions, and goes on with those that are sines and cosines."""
    if callable(make := getattr(table, "create_weight", None)):
        device, dtype = table.weight.device, table.weight.dtype
        table.weight = nn.Parameter(torch.empty(length, table.embedding_dim), requires_grad=False)
        table.weight = nn.Parameter(make().to(device, dtype), requires_grad=False)
        table.num_embeddings = length
        return
    first = _reserved(table)
    reserved_rows, rows = table.weight.detach()[:first], table.weight.detach()[first:]
    times = -(-length // len(rows))
    table.weight = nn.Parameter(torch.cat([reserved_rows, rows.repeat(times, 1)[:length]]), table.weight.requires_grad)
    table.num_embeddings = first + length


def _longer(held: Tensor, more: int) -> Tensor:
    """Extends a buffer by `more` entries that continue its last step: 1 for positions, 0 for constants."""
    step = held[..., -1:] - held[..., -2:-1]
    return torch.cat([held, held[..., -1:] + step * torch.arange(1, more + 1, device=held.device)], dim=-1)
