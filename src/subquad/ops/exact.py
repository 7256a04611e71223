"""Softmax attention through PyTorch's fused kernels."""

import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor


def attend(
    q: Float[Tensor, "b h n d"],
    k: Float[Tensor, "b h s d"],
    v: Float[Tensor, "b h s e"],
    mask: Bool[Tensor, "... #n #s"] | None = None,
    *,
    causal: bool = False,
) -> Float[Tensor, "b h n e"]:
    """Returns softmax(q k^T / sqrt d) v over the pairs where `mask` is True.

    The fused kernels need values of the same dimension as the keys, so the smaller of the two is padded with zeros. Else
    PyTorch would materialise the matrix, with products that autocast rounds in the backward.
    """
    d, e = q.shape[-1], v.shape[-1]
    if d == e:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal)
    if d < e:
        q, k = F.pad(q, (0, e - d)), F.pad(k, (0, e - d))
    else:
        v = F.pad(v, (0, d - e))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal, scale=d**-0.5)[..., :e]
