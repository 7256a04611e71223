"""The cost of the next segment after contexts of several lengths, and the size of the memory's state."""

from collections.abc import Sequence
from pathlib import Path

import torch

from subquad.attention import Infinity, InfinityAttention, InfinityState
from subquad.experiments.base import open_part
from subquad.measure.timing import interleave
from subquad.results import Row
from subquad.statistics import median_interval, ratio_interval

CONTEXTS = (2048, 8192, 32768)
"""Numbers of tokens before the segment that is timed."""


def measure(folder: Path) -> None:
    """Measures all contexts in turns, unless all were measured before."""
    run = open_part(folder / "context", "context", "subquad reproduce infinity")
    if not any(row["metric"] == "state_bytes" and row["context"] == CONTEXTS[-1] for row in run.rows()):  # the last row
        run.keep_first_rows(0)
        run.append(context_rows(Infinity(), CONTEXTS, heads=8, head_dim=64))


def context_rows(
    options: Infinity, contexts: Sequence[int], *, heads: int, head_dim: int, seconds: float = 20.0
) -> list[Row]:
    """Rows for each context: seconds of the next segment, their ratio to the first context's, and bytes of the state."""
    attend = options.build(heads=heads, head_dim=head_dim, generator=torch.Generator().manual_seed(0)).eval()
    q, k, v = torch.randn(3, 1, heads, options.segment, head_dim, generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        states = {context: _streamed(attend, context) for context in contexts}
        candidates = {str(at): lambda state=state: attend.causal(q, k, v, state) for at, state in states.items()}
        taken = interleave(candidates, seconds=seconds, at_least=10, at_most=200)
    rows: list[Row] = []
    for context, state in states.items():
        taken_here = median_interval(taken[str(context)])
        times = ratio_interval(taken[str(context)], taken[str(contexts[0])])
        for name, interval, unit in (("seconds", taken_here, "s"), ("times_first", times, "times")):
            rows.append({"metric": name, **interval._asdict(), "unit": unit, "context": context})
        rows.append({"metric": "state_bytes", "value": sum(part.nbytes for part in state), "unit": "B", "context": context})
    return rows


def _streamed(attend: InfinityAttention, context: int) -> InfinityState:
    """The state after a context that is read segment by segment."""
    state, drawing = None, torch.Generator().manual_seed(2)
    for _ in range(context // attend.options.segment):
        q, k, v = torch.randn(3, 1, attend.heads, attend.options.segment, attend.head_dim, generator=drawing)
        _, state = attend.causal(q, k, v, state)
    assert state is not None
    return state
