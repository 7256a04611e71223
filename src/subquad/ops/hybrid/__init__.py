"""Exact attention to what is near, linear attention to the rest, under one normaliser.

Positions are cut into blocks of equal length. A position sees its own block and its neighbours exactly, all others through
features, with a gain g::

    out_i = sum over j of w_ij v_j / sum over j of w_ij
    w_ij = exp(q_i . k_j / sqrt d) for near j, g phi(q_i) . phi(k_j) for others

The causal form has the block before and its own up to i as near. Every weight of a row is relative to the row's largest, so
nothing overflows, and where the features of the rest underflow the near keys are left.

Where a gradient is wanted, on a GPU and for compilers, all blocks are worked on at once; without, a CPU takes a few at a
time, whose scores stay in its cache.
"""

from subquad.ops.hybrid.mixing import attend
from subquad.ops.hybrid.state import HybridState, continue_state, far_state, last_state, step

__all__ = ["HybridState", "attend", "continue_state", "far_state", "last_state", "step"]
