"""The equation of attention in a sliding window as written: the mask of the pairs of positions that count."""

from jaxtyping import Bool
from torch import Tensor


def visible(
    kept: Bool[Tensor, "b n"], reach: int, dilation: int, global_tokens: int, causal: bool
) -> Bool[Tensor, "b 1 n n"]:
    """Mask of the pairs that count: real keys within reach, and all pairs with one of the first `global_tokens`.

    A key is within reach if its distance, counted in kept positions, is a multiple of `dilation` and at most
    reach * dilation. If causal, keys after the query do not count.
    """
    place = kept.cumsum(1) - 1
    distance = place[:, :, None] - place[:, None, :]
    near = (distance.abs() <= reach * dilation) & (distance % dilation == 0)
    is_global = place < global_tokens
    seen = near | is_global[:, :, None] | is_global[:, None, :]
    if causal:
        seen = seen & (distance >= 0)
    return (seen & kept[:, :, None] & kept[:, None, :])[:, None]
