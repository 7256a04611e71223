"""Longer texts than a model was made for."""

from typing import TypeVar

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from subquad.errors import SubquadError

TABLES = ("position_embeddings", "position_embedding", "embed_positions", "wpe")
"""What families call their tables of positions."""
_LENGTHS = ("max_position_embeddings", "n_positions", "n_ctx")
_ROTARY = ("inv_freq", "rotary", "relative_attention_bias")

Model = TypeVar("Model", bound=PreTrainedModel)


def extend_positions(model: Model, length: int) -> Model:
    """Gives a model as many positions as a text has, and gives back the same model.

    A learned table is repeated, so that texts of the old length come out as before. Rotary and relative positions need
    nothing. A model whose positions are neither is refused in words.
    """
    config = model.config.get_text_config()
    told = {name: value for name in _LENGTHS if isinstance(value := getattr(config, name, None), int)}
    tables = {name: module for name, module in model.named_modules() if _is_table(name, module)}
    longest = min([*told.values(), *(table.num_embeddings - _reserved(table) for table in tables.values())], default=length)
    if longest >= length:
        return model
    parts = [name for name, _ in (*model.named_modules(), *model.named_buffers())]
    if not tables and not any(word in name for name in parts for word in _ROTARY):
        raise SubquadError(
            f"{type(model).__name__} takes {longest} positions and has no table of them that could be extended to {length}"
        )
    for table in tables.values():
        _repeat(table, length)
    more = length - longest  # not the length itself, for families count rows that no position has
    for module in model.modules():
        for name in ("position_ids", "token_type_ids"):
            if isinstance(held := module._buffers.get(name), Tensor):
                module._buffers[name] = _longer(held, more)
    for name, value in told.items():
        setattr(config, name, value + more)
    return model


def _is_table(name: str, module: nn.Module) -> bool:
    return isinstance(module, nn.Embedding) and name.rsplit(".", 1)[-1] in TABLES


def _reserved(table: nn.Embedding) -> int:
    """Rows at the front that no position has."""
    offset = getattr(table, "offset", 0)
    return offset if isinstance(offset, int) and offset else 0 if table.padding_idx is None else table.padding_idx + 1


def _repeat(table: nn.Embedding, length: int) -> None:
    first = _reserved(table)
    own, held = table.weight.detach()[:first], table.weight.detach()[first:]
    times = -(-length // len(held))
    table.weight = nn.Parameter(torch.cat([own, held.repeat(times, 1)[:length]]), table.weight.requires_grad)
    table.num_embeddings = first + length


def _longer(held: Tensor, more: int) -> Tensor:
    """Numbers that go on counting, or stay the same."""
    step = held[..., -1:] - held[..., -2:-1]
    return torch.cat([held, held[..., -1:] + step * torch.arange(1, more + 1, device=held.device)], dim=-1)
