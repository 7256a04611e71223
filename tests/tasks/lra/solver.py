"""Solves Pathfinder from the pixels alone: which pixels belong together, and which of them are discs."""

import numpy as np
from numpy import ndarray


def are_joined(picture: ndarray, reach: int, disc: int) -> bool:
    """Whether both discs are in one group of pixels, where pixels at most `reach` apart in either direction are together.

    A disc is a full square of 2 `disc` + 1 pixels. Groups grow from a pixel of the first disc until nothing is added.
    """
    lit = picture > 127
    centres = [
        (row, column)
        for row, column in np.argwhere(lit)
        if row >= disc
        and column >= disc
        and lit[row - disc : row + disc + 1, column - disc : column + disc + 1].all()
        and lit[row - disc : row + disc + 1, column - disc : column + disc + 1].size == (2 * disc + 1) ** 2
    ]
    group = np.zeros_like(lit)
    group[centres[0]] = True
    while True:
        grown = group.copy()
        for row, column in np.argwhere(group):
            grown[max(0, row - reach) : row + reach + 1, max(0, column - reach) : column + reach + 1] = True
        grown &= lit
        if (grown == group).all():
            break
        group = grown
    assert len(centres) > 1, "a picture has two discs"
    return all(bool(group[centre]) for centre in centres)
