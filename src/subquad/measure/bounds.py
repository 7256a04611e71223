"""How many features or slots an error asks for: by measurement, and by published bounds.

The theorems state the growth of these numbers up to a constant factor, which is 1 here. They bound different errors: that of
the largest entry of the attention matrix before it is normalised (Performer), that of one head's output (Linformer), and
that of distances between points (Johnson and Lindenstrauss).
"""

import math
from collections.abc import Mapping

from subquad.measure.fits import pays_from


def features_for(error: float, errors_by_features: Mapping[int, float]) -> float | None:
    """Returns the number of features from which on the measured error stays below `error`, or None if it does not.

    It is interpolated on logarithmic scales, and is the smallest measured number if all errors are below.
    """
    features = sorted(errors_by_features)
    return pays_from(features, [error / errors_by_features[count] for count in features])


def performer_features(error: float, *, radius: float, head_dim: int) -> float:
    """Theorem 4 of Choromanski et al. 2021: trigonometric features that estimate every exp(q . k / sqrt d) within `error`.

    m = d / delta^2 log(4 d^(3/4) R / delta) with delta = error e^(-R^2 / sqrt d), where no query or key is longer than the
    radius R. Infinite where a float cannot hold it.
    """
    try:
        log_delta = math.log(error) - radius**2 / math.sqrt(head_dim)
        logarithm = math.log(4 * head_dim**0.75 * radius) - log_delta
        return max(1.0, head_dim * math.exp(-2 * log_delta) * logarithm)
    except OverflowError:
        return math.inf


def linformer_slots(error: float, *, length: int, head_dim: int) -> float:
    """Theorem 2 of Wang et al. 2020: k = min(9 d log d, 5 log n) / error^2 slots."""
    return max(1.0, min(9 * head_dim * math.log(head_dim), 5 * math.log(length)) / error**2)


def johnson_lindenstrauss_dimensions(error: float, *, points: int) -> float:
    """Dimensions that keep all distances of n points within a share `error` (Dasgupta and Gupta 2003).

    k = 4 ln n / (error^2 / 2 - error^3 / 3).
    """
    return max(1.0, 4 * math.log(points) / (error**2 / 2 - error**3 / 3))
