"""Small sets of sequences to test with."""

from itertools import pairwise

import numpy as np

from subquad.tasks.events import EventSequences


def random_sequences(
    lengths: list[int], types: int = 3, seed: int = 0, start: float = 0.0, unit: float = 1.0
) -> EventSequences:
    """Exponential gaps, some of them 0."""
    rng = np.random.default_rng(seed)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    gaps = rng.exponential(2.0, offsets[-1]) * (rng.random(offsets[-1]) > 0.1)
    times = np.concatenate([np.cumsum(gaps[a:b]) for a, b in pairwise(offsets)])
    times = start + unit * times
    first = [times[a] if b > a else start for a, b in pairwise(offsets)]
    last = [times[b - 1] if b > a else start for a, b in pairwise(offsets)]
    return EventSequences(
        names=[f"s{number}" for number in range(len(lengths))],
        offsets=offsets,
        times=times,
        types=rng.integers(types, size=offsets[-1]),
        type_names=[f"t{number}" for number in range(types)],
        starts=np.array(first),
        ends=np.array(last),
    )
