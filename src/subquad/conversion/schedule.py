"""How long the texts of a step are, how large its step is, and how many steps fit into a time."""

from collections.abc import Sequence

CYCLE = (1, 8, 32, 2, 16, 4)
"""The longest length over that of each step, in turn. All are there: what was learned at one length fails at others."""
WARM_UP = 2 * len(CYCLE) + 1
SHORTEST = 8  # tokens of the shortest texts


def length_of(step: int, longest: int) -> int:
    """Tokens of each text in a step."""
    return max(min(SHORTEST, longest), longest // CYCLE[step % len(CYCLE)])


def share(step: int, total: int) -> float:
    """Learning-rate multiplier at a step: linear warm-up, then linear decay to zero."""
    warm_up = min(WARM_UP, max(1, total // 4))
    return (step + 1) / warm_up if step < warm_up else (total - step) / max(1, total - warm_up)


def planned(timed: Sequence[float], seconds: float, guess: float) -> int:
    """How many steps fit into a time, those that were timed among them.

    It is asked again after each step, as a machine may become slower, or faster, on the way. The first step makes room for
    the others and says little of how long they take. `guess` is how long a step takes before one was timed.
    """
    newest = timed[1:][-2 * len(CYCLE) :] or timed or [guess]
    usual = max(sum(newest) / len(newest), 1e-9)
    return len(timed) + max(0, int((seconds - sum(timed)) / usual))
