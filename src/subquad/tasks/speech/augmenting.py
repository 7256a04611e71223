"""Changes of training recordings: tempo, and stretches of time and of features that are hidden (Park et al. 2019)."""

import numpy as np
from jaxtyping import Float
from numpy import ndarray

MASKS = 2
"""Number of stretches of time, and of features, that are hidden."""
LONGEST_MASK = 20
"""Largest number of frames of a hidden stretch, which is also at most an eighth of the recording."""
WIDEST_MASK = 0.17
"""Largest share of the features in a hidden range."""

Frames = Float[ndarray, "frames features"]


def stretched(frames: Frames, factor: float) -> Float[ndarray, "others features"]:
    """The recording with so many times its length, by interpolation between frames."""
    length = max(2, round(len(frames) * factor))
    at = np.linspace(0, len(frames) - 1, length)
    before = np.floor(at).astype(int)
    share = (at - before)[:, None].astype(frames.dtype)
    return frames[before] * (1 - share) + frames[np.minimum(before + 1, len(frames) - 1)] * share


def masked(frames: Frames, rng: np.random.Generator) -> Frames:
    """The recording with some stretches of time and some ranges of features set to their mean, which is zero."""
    length, width = frames.shape
    hidden = frames.copy()
    for _ in range(MASKS):
        span = rng.integers(0, min(LONGEST_MASK, max(1, length // 8)) + 1)
        start = rng.integers(0, length - span + 1)
        hidden[start : start + span] = 0
        span = rng.integers(0, int(WIDEST_MASK * width) + 1)
        start = rng.integers(0, width - span + 1)
        hidden[:, start : start + span] = 0
    return hidden
