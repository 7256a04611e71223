"""Rows of comparisons that never ran, with costs that are known."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from subquad.results import Row

SETTING: Row = {"batch": 1, "heads": 8, "head_dim": 64, "threads": 1, "dtype": "float32", "device": "cpu"}
LENGTHS = (128, 256, 512, 1024, 2048, 4096)
Cost = Callable[[int], float]

# softmax takes L^2 microseconds; linear 300 L, so it pays from 300 on; favor 10^5 L, which does not pay within the lengths
SECONDS: dict[str, Cost] = {
    "softmax": lambda length: 1e-6 * length**2,
    "linear": lambda length: 3e-4 * length,
    "favor": lambda length: 1e-2 * length,
}
BYTES: dict[str, Cost] = {
    "softmax": lambda length: 40.0 * length**2,
    "linear": lambda length: 4e4 * length / 128,
    "favor": lambda length: 1e6,
}
TRAITS = {
    "softmax": {"exact": True, "time": "L^2 d", "space": "L d", "gives_up": "nothing"},
    "linear": {"exact": False, "time": "L m d", "space": "m d", "gives_up": "softmax's weights"},
    "favor": {"exact": False, "time": "L m d", "space": "m d", "gives_up": "exactness"},
}


def rows(
    seconds: Mapping[str, Cost] = SECONDS,
    peaks: Mapping[str, Cost] = BYTES,
    *,
    views: Sequence[tuple[str, str]] = (("bidirectional", "training"), ("causal", "training"), ("causal", "step")),
    lengths: Sequence[int] = LENGTHS,
    visits: int = 2,
    noise: float = 0.02,
    seed: int = 0,
) -> list[Row]:
    """Every mechanism at every length, each measured some times."""
    rng = np.random.default_rng(seed)
    made: list[Row] = []
    for form, what in views:
        for visit in range(visits):
            for name, cost in seconds.items():
                for length in lengths:
                    cell = {"mechanism": name, "form": form, "what": what, "length": length, "visit": visit} | SETTING
                    value = cost(length) * float(np.exp(rng.normal(0, noise)))
                    made.append({"metric": "seconds", "value": value, "unit": "s", "rounds": 5} | cell)
                    made.append({"metric": "peak_memory", "value": peaks[name](length), "unit": "bytes"} | cell)
    return made


def failed(mechanism: str, form: str, what: str, length: int, failure: str = "out of memory") -> Row:
    """A row of a cell that could not be measured."""
    cell = {"mechanism": mechanism, "form": form, "what": what, "length": length, "visit": 0} | SETTING
    return {"metric": "seconds", "value": None, "unit": "s", "failure": failure, "message": "because"} | cell
