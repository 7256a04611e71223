"""Attention to slots, into which keys and values are projected, by one native kernel (native/slots.h)."""

import torch
from jaxtyping import Float
from torch import Tensor

from subquad import native
from subquad.ops.autocast import is_traced, needs_gradient
from subquad.ops.linear.layout import NOT_FINITE, NUMBERS, TYPES, dense
from subquad.ops.threads import share_with_pytorch


def serves(q: Tensor, k: Tensor, v: Tensor, *weights: Tensor) -> bool:
    """Whether the kernel takes these inputs: on a CPU, without gradients, with a head for every thread."""
    if is_traced() or not q.is_cpu or q.dtype not in TYPES or not native.is_chosen():
        return False
    return q.shape[0] * q.shape[1] >= torch.get_num_threads() and not needs_gradient(q, k, v, *weights)


def attend(
    q: Float[Tensor, "b h n d"],
    k: Float[Tensor, "b h s d"],
    v: Float[Tensor, "b h s e"],
    key_weight: Float[Tensor, "g slots longest"],
    value_weight: Float[Tensor, "g slots longest"],
) -> Float[Tensor, "b h n e"] | None:
    """Returns softmax(q (E k)^T / sqrt d) F v, with E and F the first s columns of the weights; None if it is not finite.

    There are weights for each head, or one for all. All tensors are of one type, float32 or float64.
    """
    share_with_pytorch()
    q, k, v, key_weight, value_weight = (dense(x) for x in (q, k, v, key_weight, value_weight))
    b, h, n, d = q.shape
    e = v.shape[-1]
    groups, slots, _ = key_weight.shape
    mixed = torch.empty(b, h, n, e, dtype=q.dtype)
    arguments = [b, h, n, k.shape[2], d, e, slots, torch.get_num_threads()]
    for x in (q, k, v, mixed):
        arguments += (x.data_ptr(), *x.stride()[:3])
    arguments += [key_weight.data_ptr(), value_weight.data_ptr(), key_weight.stride(0) if groups > 1 else 0]
    status = native.call("slots", NUMBERS[q.dtype], [*arguments, key_weight.stride(1), 0])
    return None if status == NOT_FINITE else mixed
