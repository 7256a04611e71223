"""From probabilities of units and of the blank at each position to what was said, and how far that is from the truth."""

from collections.abc import Hashable, Sequence

import numpy as np
from jaxtyping import Float
from numpy import ndarray

BLANK = 0
"""Number of the blank; units are numbered from 1."""
LEAST = -12.0
"""Units with a lower log-probability at a position are not tried there by a beam search."""


def greedy(log_probabilities: Float[ndarray, "positions units"]) -> list[int]:
    """The likeliest unit or blank of each position, repetitions joined and blanks left out."""
    best = log_probabilities.argmax(1)
    changes = np.append(True, best[1:] != best[:-1]) if len(best) else np.zeros(0, bool)
    return [int(unit) for unit in best[changes] if unit != BLANK]


Beams = dict[tuple[int, ...], tuple[float, float]]
"""Log-probabilities of beginnings in two parts: of alignments that end with a blank, and with the last unit."""
NEVER = (-np.inf, -np.inf)


def beam_search(log_probabilities: Float[ndarray, "positions units"], width: int) -> list[int]:
    """The likeliest sequence of units over all ways to align it, among `width` beginnings kept at each position."""
    beams: Beams = {(): (0.0, -np.inf)}
    for at in log_probabilities:
        beams = dict(sorted(_extended(beams, at).items(), key=lambda beam: -np.logaddexp(*beam[1]))[:width])
    return list(next(iter(beams)))


def _extended(beams: Beams, at: Float[ndarray, "units"]) -> Beams:
    """All beginnings one position later.

    Repeating the last unit of a beginning continues it; after a blank, it is another unit (Hannun et al. 2014).
    """
    extended: Beams = {}
    tried = [int(unit) for unit in np.flatnonzero(at > LEAST) if unit != BLANK]
    for beginning, (blank, unit) in beams.items():
        total, last = np.logaddexp(blank, unit), beginning[-1] if beginning else BLANK
        old = extended.get(beginning, NEVER)
        again = unit + at[last] if beginning else -np.inf
        extended[beginning] = (np.logaddexp(old[0], total + at[BLANK]), np.logaddexp(old[1], again))
        for new in tried:
            longer = (*beginning, new)
            old = extended.get(longer, NEVER)
            extended[longer] = (old[0], np.logaddexp(old[1], (blank if new == last else total) + at[new]))
    return extended


def edits(first: Sequence[Hashable], second: Sequence[Hashable]) -> int:
    """The least number of insertions, deletions and replacements that turn one sequence into the other."""
    before = list(range(len(second) + 1))
    for number, left in enumerate(first, start=1):
        row = [number]
        for place, right in enumerate(second, start=1):
            row.append(min(before[place] + 1, row[-1] + 1, before[place - 1] + (left != right)))
        before = row
    return before[-1]
