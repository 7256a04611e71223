"""The attention function that transformers calls for each mechanism.

As in transformers, scores are scaled by the model's factor (folded into the queries), grouped keys are shared by their
queries, padding is hidden, packed sequences do not see each other, and queries are aligned with the end of cached keys.
Mechanisms compute no attention weights, so `output_attentions` is refused and attention dropout has no effect; softmax
attention applies dropout as usual.
"""

import math
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn

from subquad.attention import require_causal
from subquad.errors import SubquadError
from subquad.hub._compat import collects_attentions, decides_causality, sdpa_attention_forward
from subquad.hub.attach import (
    ATTRIBUTE,
    SWAPPED,
    attached,
    find_options,
    getattr_int,
    hang,
    options_of,
    read_back,
    write_down,
)
from subquad.hub.cache import layer_of
from subquad.hub.masks import PATTERN, Visible, read_mask, refuse_tracing, without_pairs
from subquad.ops.reference import visible

# arguments by which some models change their scores, and what they do
_ADDED = {
    "position_bias": "adds a bias for each pair of positions to its scores",
    "softcap": "caps its scores",
    "s_aux": "adds a sink to its scores",
    "indices": "chooses the keys of each query",
    "block_indices": "chooses the keys of each query",
}


def mix(
    implementation: str,
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    **others: Any,  # transformers passes on all arguments of the model's call
) -> tuple[Tensor, None]:
    """Computes attention with the mechanism of a module; the result is ``b n h d``, as transformers expects."""
    refuse_tracing()
    attend = _mechanism(module, implementation, query)
    exact, bias, n = attend.traits.exact, others.get("position_bias"), query.shape[2]
    _check_arguments(module, attend, others)
    layer = layer_of(module, key)
    query, key, value = _of_one_type(query, key, value)
    sees = read_mask(attention_mask)
    if not exact:
        sees = without_pairs(sees, n, type(module).__name__)
    sees = _with_offsets(sees, others.get("cu_seq_lens_q"), query, key)
    causal = _is_causal(module, is_causal, sees)
    key, value = (x[:, :, : sees.width] for x in (key, value))
    if exact and (dropout or bias is not None or sees.dense is not None or sees.numbers is not None):
        dense = _dense(sees, n, key.shape[2], causal, query.device)
        sdpa_options: dict[str, Any] = {"dropout": dropout, "scaling": scaling, "position_bias": bias, "is_causal": False}
        return sdpa_attention_forward(module, query, key, value, dense, **sdpa_options)
    q = _scaled(query, scaling)
    k, v = (_for_each_head(x, query.shape[1]) for x in (key, value))
    if layer is not None:
        if sees.numbers is not None:
            raise SubquadError("packed sequences do not go on from a state: call the model with use_cache=False")
        new = None if sees.keep is None else sees.keep[:, -n:]  # the mask covers older keys for layers that keep all keys
        require_causal(attend)
        mixed = layer.attend(attend, q, k, v, new)
    elif sees.numbers is not None:
        mixed = _packed(attend, q, k, v, sees.numbers, causal)
    else:
        is_cross = not causal and _is_cross(module)
        if is_cross and attend.traits.mixes_queries:
            raise SubquadError(
                f"{attend.options.kind} mixes queries, so that a decoder would see later tokens by cross-attention: swap "
                "other layers, or choose another attention"
            )
        mixed = _mixed(attend, q, k, v, sees.keep, causal, cross=is_cross)
    return mixed.transpose(1, 2).contiguous(), None


def _is_causal(module: nn.Module, requested: bool | None, sees: Visible) -> bool:
    """Whether a query sees only keys up to its own position.

    The mask takes precedence over the module, since some decoders' modules have is_causal=False and rely on the mask. But a
    model that is called with ``is_causal=False`` is bidirectional if there is no padding, as in PyTorch's attention.
    """
    module_is_causal = bool(getattr(module, "is_causal", True))
    if sees.causal is None:
        return module_is_causal if requested is None else bool(requested)
    kind: Any = type(module)
    is_overruled = requested is not None and not requested and module_is_causal and not decides_causality(kind)
    return sees.causal and not (is_overruled and sees.keep is None and sees.numbers is None)


def _of_one_type(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Casts queries, keys and values to one dtype: autocast's if enabled, else that of the values.

    Rotary positions leave queries and keys in float32 when autocast has made the values bfloat16.
    """
    device, dtype = query.device.type, value.dtype
    if torch.is_autocast_enabled(device) and dtype != torch.float64:
        dtype = torch.get_autocast_dtype(device)
    return query.to(dtype), key.to(dtype), value.to(dtype)


def _mechanism(module: nn.Module, implementation: str, query: Tensor) -> Any:
    """Returns the mechanism attached to a module; one that is chosen by name is built at its first call."""
    attend, config = attached(module), getattr(module, "config", None)
    if implementation == SWAPPED:
        return attend if attend is not None else _as_described(module, config, query)
    if attend is not None and getattr(options_of(module), "kind", None) == implementation.removeprefix("subquad_"):
        return attend
    options = find_options(implementation, config)
    attend = hang(module, options, getattr_int(module, "layer_idx"), like=query)
    if config is not None:
        write_down(config, None, options)
    return attend


def _as_described(module: nn.Module, config: Any, query: Tensor) -> Any:
    """Builds the mechanism of a saved model that was loaded without subquad, if the mechanism has no tensors."""
    described = [] if config is None else read_back(config) or []
    options = described[0] if described else None
    if options is not None and all(other == options for other in described):
        attend = hang(module, options, 0, like=query)
        if not attend.state_dict():
            return attend
        delattr(module, ATTRIBUTE)
    raise SubquadError(
        "this model was saved with subquad's mechanisms, whose tensors from_pretrained leaves behind: load it with "
        "subquad.hub.load(folder), or give it new ones with subquad.hub.swap(model, 'favor')"
    )


def _check_arguments(module: nn.Module, attend: Any, others: dict[str, Any]) -> None:
    """Raises `SubquadError` for arguments that a mechanism does not support."""
    name = attend.options.kind
    if others.get("output_attentions") or collects_attentions():
        raise SubquadError(
            f"{name} makes no attention weights to give out: call the model without output_attentions, or after "
            "model.set_attn_implementation('eager')"
        )
    for argument, does in _ADDED.items():
        if others.get(argument) is not None and not (argument == "position_bias" and attend.traits.exact):
            raise SubquadError(
                f"{type(module).__name__} {does}, which {name} cannot follow: leave the model its own attention"
            )


def _with_offsets(sees: Visible, offsets: Tensor | None, query: Tensor, key: Tensor) -> Visible:
    """Adds the sequence numbers of packed sequences, from the offsets `cu_seq_lens_q` if the model was called with them."""
    if offsets is None or sees.dense is not None or sees.numbers is not None:
        return sees
    n = query.shape[2]
    if len(query) != 1 or n != key.shape[2] or int(offsets[-1]) != n:
        raise SubquadError(
            f"cu_seq_lens_q must be the offsets of sequences in one row of {n} positions, and end with {n}, but there are "
            f"{len(query)} rows, {key.shape[2]} keys and the end is {int(offsets[-1])}"
        )
    numbers = torch.repeat_interleave(torch.arange(1, len(offsets), device=offsets.device), offsets.diff())[None]
    return sees._replace(numbers=numbers if sees.keep is None else numbers * sees.keep)


def _mixed(
    attend: Any, q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None, causal: bool, *, cross: bool = False
) -> Tensor:
    """Attention for one sequence in each row. In a causal layer the last query is aligned with the last key."""
    if cross and attend.traits.aligned and q.shape[2] == k.shape[2] > 1:
        # equally many queries and keys would be taken as aligned; in cross-attention all queries come after the keys
        return torch.cat([attend(part, k, v, keep=keep) for part in (q[:, :, :1], q[:, :, 1:])], dim=2)
    if not causal:
        return attend(q, k, v, keep=keep)
    require_causal(attend)
    past = k.shape[2] - q.shape[2]
    if past < 0:
        raise SubquadError(f"there are {q.shape[2]} queries for {k.shape[2]} keys: a causal layer has a key for each query")
    if past == 0:
        return attend.causal(q, k, v, keep=keep)[0]
    before, new = (None, None) if keep is None else (keep[:, :past], keep[:, past:])
    state = attend.remember(k[:, :, :past], v[:, :, :past], keep=before)
    return attend.causal(q, k[:, :, past:], v[:, :, past:], state, keep=new)[0]


def _packed(attend: Any, q: Tensor, k: Tensor, v: Tensor, numbers: Int[Tensor, "b s"], causal: bool) -> Tensor:
    """Attention for several sequences in each row; padding, which has the number 0, gives zeros."""
    (b, s), past = numbers.shape, k.shape[2] - q.shape[2]
    at, size = torch.arange(s, device=q.device).expand(b, s), int(numbers.max()) + 1
    first = at.new_full((b, size), s).scatter_reduce_(1, numbers, at, "amin").tolist()
    last = at.new_full((b, size), -1).scatter_reduce_(1, numbers, at, "amax").tolist()
    mixed = v.new_zeros(b, q.shape[1], q.shape[2], v.shape[3])
    for row in range(b):
        for number in range(1, size):
            start, stop = first[row][number], last[row][number] + 1
            if stop <= max(start, past):
                continue
            keep = numbers[row : row + 1, start:stop] == number
            span = slice(max(0, start - past), stop - past)
            part, keys, values = q[row : row + 1, :, span], k[row : row + 1, :, start:stop], v[row : row + 1, :, start:stop]
            mixed[row : row + 1, :, span] = _mixed(attend, part, keys, values, None if bool(keep.all()) else keep, causal)
    return mixed


def _dense(sees: Visible, n: int, s: int, causal: bool, device: torch.device) -> Tensor:
    """Returns the dense mask ``b 1 n s`` for PyTorch's softmax attention."""
    if sees.dense is not None:
        return sees.dense.bool() if sees.dense.dtype == PATTERN else sees.dense
    numbers = sees.numbers
    if numbers is None:
        return visible(n, s, sees.keep, causal, device)
    together = numbers[:, None, s - n :, None] == numbers[:, None, None, :]
    return visible(n, s, numbers > 0, causal, device) & together


def _scaled(q: Tensor, scaling: float | None) -> Tensor:
    """Multiplies queries by the model's scaling divided by the mechanisms' 1 / sqrt d."""
    factor = 1.0 if scaling is None else scaling * math.sqrt(q.shape[3])
    return q if abs(factor - 1.0) < 1e-6 else q * factor


def _for_each_head(x: Tensor, heads: int) -> Tensor:
    """Repeats grouped keys or values so that every query head has its own."""
    return x if x.shape[1] == heads else x.repeat_interleave(heads // x.shape[1], dim=1)


def _is_cross(module: nn.Module) -> bool:
    """Whether a module is cross-attention, which model families mark in several ways."""
    marked = getattr(module, "is_cross_attention", False) or "CrossAttention" in type(module).__name__
    return bool(marked or (getattr(module, "is_decoder", False) and not getattr(module, "is_causal", True)))
