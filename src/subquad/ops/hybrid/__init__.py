"""Exact attention to near keys and linear attention to far keys, with one normaliser.

Positions are cut into blocks of equal length. A position attends exactly to its own block and its neighbours, and to all
others through features, with a gain g::

    out_i = sum over j of w_ij v_j / sum over j of w_ij
    w_ij = exp(q_i . k_j / sqrt d) for near j, g phi(q_i) . phi(k_j) for others

In the causal form, near keys are those of the block before and of the own block up to i. Weights are relative to the largest
in their row, so that nothing overflows; if the far features underflow, the near keys remain.

A CPU has native kernels for it, forward and backward (`native`, `calls`, and `fused` for whole sequences). PyTorch's
operations do the same (`mixing`): all blocks are processed at once for gradients, on a GPU and when compiling; otherwise a
few at a time, so that their scores stay in the cache. `attend` and `step` choose between them (`choice`).
"""

from subquad.ops.hybrid.choice import attend, step
from subquad.ops.hybrid.fused import quick_causal
from subquad.ops.hybrid.native import quick_step
from subquad.ops.hybrid.state import HybridState, continue_state, far_state, last_state

__all__ = ["HybridState", "attend", "continue_state", "far_state", "last_state", "quick_causal", "quick_step", "step"]
