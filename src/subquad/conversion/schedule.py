"""How long the texts of a step are, how large its step is, and how many steps fit into a time."""

from collections.abc import Sequence

CYCLE = (1, 8, 32, 2, 16, 4)
"""The longest length over that of each step, in turn. All are there: what was learned at one length fails at others."""
TIMED = 2 * len(CYCLE) + 1
"""The steps that tell how long the others will take, all lengths twice; not the first, which makes room for the others."""
WARM_UP = TIMED
SHORTEST = 8


def length_of(step: int, longest: int) -> int:
    """Tokens of each text in a step."""
    return max(min(SHORTEST, longest), longest // CYCLE[step % len(CYCLE)])


def share(step: int, total: int | None) -> float:
    """Of the learning rate: up to the whole of it in a few steps, then down to zero. The end may not be known at first."""
    warm_up = WARM_UP if total is None else min(WARM_UP, max(1, total // 4))
    if step < warm_up:
        return (step + 1) / warm_up
    assert total is not None, "the end is known by the end of the warm-up"
    return (total - step) / max(1, total - warm_up)


def planned(timed: Sequence[float], seconds: float) -> int:
    """How many steps fit into a time, those that were timed among them. All of these count, however late it is.

    It is asked again after each cycle, as a machine may become slower, or faster, on the way.
    """
    newest = timed[1:][-2 * len(CYCLE) :]
    usual = sum(newest) / max(1, len(newest))
    return len(timed) + max(0, int((seconds - sum(timed)) / max(usual, 1e-9)))
