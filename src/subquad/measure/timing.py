"""Times of candidates relative to each other, on a machine with other load."""

import time
from collections.abc import Callable, Mapping


def interleave(
    candidates: Mapping[str, Callable[[], object]], *, seconds: float, at_least: int = 3, at_most: int = 50
) -> dict[str, list[float]]:
    """Seconds of each run of each candidate, round after round of all of them, so that drift hits all alike.

    One round warms up. Rounds end when `seconds` are over, within the limits on their number.
    """
    for candidate in candidates.values():
        candidate()
    taken: dict[str, list[float]] = {name: [] for name in candidates}
    start = time.perf_counter()
    for done in range(at_most):
        if done >= at_least and time.perf_counter() - start > seconds:
            break
        for name, candidate in candidates.items():
            before = time.perf_counter()
            candidate()
            taken[name].append(time.perf_counter() - before)
    return taken
