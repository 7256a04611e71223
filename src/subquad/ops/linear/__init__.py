"""Linear attention: the equation (`reference`) and its fast forms, which agree up to rounding and share their states.

Every query sees every key (Katharopoulos et al. 2020, equation 5), or position i sees positions up to i (equation 8):

    out_i = sum over j of (phi(q_i) . phi(k_j)) v_j / sum over j of phi(q_i) . phi(k_j)

There are native kernels for a CPU and Triton kernels for CUDA (`native`, `gpu`, and `custom` for compiled code). Where these
are not there, a CPU loops over blocks (`bidirectional`, `chunks`), and on other devices and in compiled code everything is
computed at once (`parallel`). `fla` calls the package flash-linear-attention, where it is chosen.
`step` processes one position. `attend` and `attend_causal` choose between these forms.

Features may have exponents (see `subquad.types.Features`). Weights are then relative to the largest exponent that a query
sees, so that a large key does not change earlier positions, not even by rounding.
"""

from jaxtyping import Bool, Float
from torch import Tensor

from subquad.ops.autocast import prefers_parallel, without_autocast
from subquad.ops.linear import custom, fla, native, parallel
from subquad.ops.linear.bidirectional import attend_in_blocks
from subquad.ops.linear.chunks import attend_in_chunks
from subquad.ops.linear.native import quick_attend, quick_causal, quick_step
from subquad.ops.linear.step import step
from subquad.ops.linear.sums import LinearState, empty_state
from subquad.types import Maps


def attend(
    q: Float[Tensor, "b h n d"],
    k: Float[Tensor, "b h s d"],
    v: Float[Tensor, "b h s e"],
    maps: Maps,
    keep: Bool[Tensor, "b s"] | None = None,
) -> Float[Tensor, "b h n e"]:
    """Returns the mixed values, where every query sees every kept key."""
    with without_autocast(q):
        if fla.is_chosen(q):
            fla.refuse_bidirectional()
        if native.serves(q):
            return native.attend(q, k, v, maps, keep)
        if prefers_parallel(q):
            return (custom if custom.serves(q, maps) else parallel).attend(q, k, v, maps, keep)
        return attend_in_blocks(q, k, v, maps, keep)


def attend_causal(
    q: Float[Tensor, "b h n d"],
    k: Float[Tensor, "b h n d"],
    v: Float[Tensor, "b h n e"],
    maps: Maps,
    state: LinearState | None = None,
    keep: Bool[Tensor, "b n"] | None = None,
) -> tuple[Float[Tensor, "b h n e"], LinearState]:
    """Returns the mixed values and the new state; position i sees the keys in `state` and those up to i."""
    with without_autocast(q):
        if fla.is_chosen(q):
            return fla.attend_causal(q, k, v, maps, state, keep)
        if native.serves(q):
            return native.attend_causal(q, k, v, maps, state, keep)
        if prefers_parallel(q):
            if custom.serves(q, maps):
                return custom.attend_causal(q, k, v, maps, state, keep)
            before = empty_state(k, v, maps.keys) if state is None else state
            return parallel.attend_causal(q, k, v, maps, before, keep)
        return attend_in_chunks(q, k, v, maps, state, keep)


__all__ = [
    "LinearState",
    "attend",
    "attend_causal",
    "attend_in_blocks",
    "attend_in_chunks",
    "empty_state",
    "quick_attend",
    "quick_causal",
    "quick_step",
    "step",
]
