"""Softmax attention in a sliding window, with global tokens and dilation (after Beltagy et al. 2020, Longformer).

The positions of a sequence are numbered from 0. Query i sees the keys j with::

    i - j a multiple of the dilation and |i - j| <= reach * dilation, or i < g, or j < g

where g is the number of global tokens; in the causal form j <= i as well. Time and memory are linear in the length.

On a CPU blocks of queries meet strips of keys, which are views (`strips`); on a GPU and when compiling, the keys of each
block are copied and all blocks computed at once (`parallel`). `reference` has the equation with the whole matrix.
"""

from jaxtyping import Float
from torch import Tensor

from subquad.ops import parts
from subquad.ops.autocast import precise, prefers_parallel
from subquad.ops.packing import Packed
from subquad.ops.window import parallel
from subquad.ops.window.state import WindowState, continue_state, last_state, step
from subquad.ops.window.strips import window_parts


def attend(
    packed: Packed, reach: int, dilation: int, global_tokens: int, *, causal: bool
) -> tuple[Float[Tensor, "b h n e"], Float[Tensor, "b h n"] | None]:
    """Returns the mixed values of packed sequences and, on a CPU, the logarithms of the normalisers."""
    q, k, v, total, places = packed
    if prefers_parallel(q):
        return parallel.attend(q, k, v, total, reach, dilation, global_tokens, causal=causal), None
    dtype = precise(q.dtype)

    def plan(sequences: slice, length: int) -> parts.Plan:
        return parts.Plan(sequences, window_parts(length, reach, dilation, global_tokens, dtype, causal=causal))

    if places is None:
        plans = [plan(slice(0, len(q)), q.shape[2])]
    else:
        plans = [plan(slice(at, at + 1), length) for at, length in enumerate(total.tolist())]
    return parts.attend(q.to(dtype), k.to(dtype), v.to(dtype), plans)


__all__ = ["WindowState", "attend", "continue_state", "last_state", "step", "window_parts"]
