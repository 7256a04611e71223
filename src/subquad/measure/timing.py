"""Compares run times of candidates on a machine with other load."""

import time
from collections.abc import Callable, Mapping


def interleave(
    candidates: Mapping[str, Callable[[], object]], *, seconds: float, at_least: int = 3, at_most: int = 50
) -> dict[str, list[float]]:
    """Runs all candidates in rounds, so that drift affects all alike, and returns the seconds of each run.

    The first round is a warm-up. Rounds end after `seconds`, but there are `at_least` and `at_most` so many.
    """
    for candidate in candidates.values():
        candidate()
    seconds_by_name: dict[str, list[float]] = {name: [] for name in candidates}
    start = time.perf_counter()
    for finished_rounds in range(at_most):
        if finished_rounds >= at_least and time.perf_counter() - start > seconds:
            break
        for name, candidate in candidates.items():
            before = time.perf_counter()
            candidate()
            seconds_by_name[name].append(time.perf_counter() - before)
    return seconds_by_name
