"""The functions that transformers calls as attention, one for each mechanism.

As with transformers' own, scores are scaled as the model says (which is folded into the queries), grouped keys serve their
groups, padding is not seen, packed sequences do not see each other, and queries stand at the end of the keys that a cache
holds. Attention weights are nowhere made, so none can be given out (`output_attentions` is refused), and none are dropped in
training: all other dropout stays, and softmax drops its weights as ever.
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

# what some models add to their scores, by the argument in which they say so
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
    **others: Any,  # transformers passes on whatever a model was called with
) -> tuple[Tensor, None]:
    """Mixes values, with positions before heads in the result, as transformers wants it."""
    refuse_tracing()
    attend = _mechanism(module, implementation, query)
    exact, bias, n = attend.options.traits.exact, others.get("position_bias"), query.shape[2]
    _check_asked(module, attend, others)
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
        given: dict[str, Any] = {"dropout": dropout, "scaling": scaling, "position_bias": bias, "is_causal": False}
        return sdpa_attention_forward(module, query, key, value, dense, **given)
    q = _scaled(query, scaling)
    k, v = (_for_each_head(x, query.shape[1]) for x in (key, value))
    if layer is not None:
        if sees.numbers is not None:
            raise SubquadError("packed sequences do not go on from a state: call the model with use_cache=False")
        new = None if sees.keep is None else sees.keep[:, -n:]  # layers that keep all keys need the others
        require_causal(attend)
        mixed = layer.attend(attend, q, k, v, new)
    elif sees.numbers is not None:
        mixed = _packed(attend, q, k, v, sees.numbers, causal)
    else:
        mixed = _mixed(attend, q, k, v, sees.keep, causal, cross=not causal and _is_cross(module))
    return mixed.transpose(1, 2).contiguous(), None


def _is_causal(module: nn.Module, asked: bool | None, sees: Visible) -> bool:
    """Whether a query sees nothing ahead of it.

    The mask knows best, for some decoders' modules say that they are not causal and trust in it. But a model that is called
    with ``is_causal=False`` looks both ways where nothing is padding, as with PyTorch's attention.
    """
    says = bool(getattr(module, "is_causal", True))
    if sees.causal is None:
        return says if asked is None else bool(asked)
    kind: Any = type(module)
    is_overruled = asked is not None and not asked and says and not decides_causality(kind)
    return sees.causal and not (is_overruled and sees.keep is None and sees.numbers is None)


def _of_one_type(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """All in the type that PyTorch's attention would take: autocast's, or else that of the values.

    Rotary positions leave queries and keys in float32 where autocast has made the values bfloat16.
    """
    device, dtype = query.device.type, value.dtype
    if torch.is_autocast_enabled(device) and dtype != torch.float64:
        dtype = torch.get_autocast_dtype(device)
    return query.to(dtype), key.to(dtype), value.to(dtype)


def _mechanism(module: nn.Module, implementation: str, query: Tensor) -> Any:
    """What hangs on the module. By a mechanism's own name it is made when it is first called."""
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
    """A model that was saved with a mechanism and loaded as if it had none: what has no tensors can be made again."""
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


def _check_asked(module: nn.Module, attend: Any, others: dict[str, Any]) -> None:
    """Refuses what a mechanism cannot follow."""
    name = attend.options.kind
    if others.get("output_attentions") or collects_attentions():
        raise SubquadError(
            f"{name} makes no attention weights to give out: call the model without output_attentions, or after "
            "model.set_attn_implementation('eager')"
        )
    for argument, does in _ADDED.items():
        if others.get(argument) is not None and not (argument == "position_bias" and attend.options.traits.exact):
            raise SubquadError(
                f"{type(module).__name__} {does}, which {name} cannot follow: leave the model its own attention"
            )


def _with_offsets(sees: Visible, offsets: Tensor | None, query: Tensor, key: Tensor) -> Visible:
    """The numbers of packed sequences from the offsets at which they begin, where a model was called with these."""
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
    """One sequence in each row. In a causal layer the last query stands beside the last key."""
    if cross and attend.options.traits.aligned and q.shape[2] == k.shape[2] > 1:
        # as many queries as keys would be taken to stand at their places; fewer stand behind all keys, as here all do
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
    """Several sequences in each row, one after the other; padding, which has the number 0, gives zeros."""
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
            here = slice(max(0, start - past), stop - past)
            part, keys, values = q[row : row + 1, :, here], k[row : row + 1, :, start:stop], v[row : row + 1, :, start:stop]
            mixed[row : row + 1, :, here] = _mixed(attend, part, keys, values, None if bool(keep.all()) else keep, causal)
    return mixed


def _dense(sees: Visible, n: int, s: int, causal: bool, device: torch.device) -> Tensor:
    """The mask that PyTorch's attention takes, ``b 1 n s``: for softmax, whose weights are as many."""
    if sees.dense is not None:
        return sees.dense.bool() if sees.dense.dtype == PATTERN else sees.dense
    numbers = sees.numbers
    if numbers is None:
        return visible(n, s, sees.keep, causal, device)
    together = numbers[:, None, s - n :, None] == numbers[:, None, None, :]
    return visible(n, s, numbers > 0, causal, device) & together


def _scaled(q: Tensor, scaling: float | None) -> Tensor:
    """Queries times what the model scales its scores by, over the 1 / sqrt d that mechanisms scale theirs by."""
    factor = 1.0 if scaling is None else scaling * math.sqrt(q.shape[3])
    return q if abs(factor - 1.0) < 1e-6 else q * factor


def _for_each_head(x: Tensor, heads: int) -> Tensor:
    """Keys or values for every head of the queries, where a group of them shares one."""
    return x if x.shape[1] == heads else x.repeat_interleave(heads // x.shape[1], dim=1)


def _is_cross(module: nn.Module) -> bool:
    """Whether a module attends to another sequence than its own, which families say in several ways."""
    marked = getattr(module, "is_cross_attention", False) or "CrossAttention" in type(module).__name__
    return bool(marked or (getattr(module, "is_decoder", False) and not getattr(module, "is_causal", True)))
