"""Text length and learning rate of each training step, and the number of steps that fit into a time."""

from collections.abc import Sequence

CYCLE = (1, 8, 32, 2, 16, 4)
"""Divisors of the longest length, used in turn: a model trained at one length fails at others."""
WARM_UP = 2 * len(CYCLE) + 1  # largest number of warm-up steps
SHORTEST = 8  # length in tokens of the shortest texts


def length_of(step: int, longest: int) -> int:
    """Number of tokens of each text in a step."""
    return max(min(SHORTEST, longest), longest // CYCLE[step % len(CYCLE)])


def share(step: int, total: int) -> float:
    """Learning-rate multiplier at a step: linear warm-up, then linear decay to zero."""
    warm_up = min(WARM_UP, max(1, total // 4))
    return (step + 1) / warm_up if step < warm_up else (total - step) / max(1, total - warm_up)


def planned(timed: Sequence[float], seconds: float, guess: float) -> int:
    """Number of steps that fit into `seconds`, including those already timed.

    It is called again after each step, as the speed of a machine may change. The first step allocates memory and is left out
    of the average. `guess` is the expected duration of a step before one was timed.
    """
    newest = timed[1:][-2 * len(CYCLE) :] or timed or [guess]
    usual = max(sum(newest) / len(newest), 1e-9)
    return len(timed) + max(0, int((seconds - sum(timed)) / usual))
