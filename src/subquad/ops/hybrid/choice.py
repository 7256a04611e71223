"""Chooses between the forms of the hybrid: native kernels on a CPU, PyTorch's operations elsewhere and when compiling."""

from jaxtyping import Float, Int
from torch import Tensor

from subquad.ops.autocast import prefers_parallel
from subquad.ops.hybrid import mixing, native, state
from subquad.ops.hybrid.state import HybridState
from subquad.ops.linear.native import serves
from subquad.ops.linear.sums import LinearState
from subquad.types import Maps


def attend(
    q: Float[Tensor, "b h n d"],
    k: Float[Tensor, "b h n d"],
    v: Float[Tensor, "b h n e"],
    maps: Maps,
    state: LinearState | None,
    total: Int[Tensor, "b"],
    log_gain: Float[Tensor, "h"],
    block: int,
) -> tuple[Float[Tensor, "b h n e"], LinearState | None]:
    """Returns the mixed values of sequences whose first `total` positions are real; causal if `state` is given.

    The returned state sums all blocks before the last two; the last one may be empty.
    """
    form = mixing.attend if prefers_parallel(q) or not serves(q) else native.attend
    return form(q, k, v, maps, state, total, log_gain, block)


def step(
    q: Float[Tensor, "b h 1 d"],
    k: Float[Tensor, "b h 1 d"],
    v: Float[Tensor, "b h 1 e"],
    maps: Maps,
    before: HybridState,
    log_gain: Float[Tensor, "h"],
    block: int,
    *,
    reuse: bool,
) -> tuple[Float[Tensor, "b h 1 e"], HybridState]:
    """Attends from one position, in time that does not depend on the number of positions before it."""
    is_native = not prefers_parallel(q) and serves(q) and native.step_serves(q, k, v, maps, before, log_gain)
    return (native.step if is_native else state.step)(q, k, v, maps, before, log_gain, block, reuse=reuse)
