"""The cells of `subquad error`, and the cells that show why dot products are divided by sqrt d."""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from typing import NamedTuple

import numpy as np
import torch

from subquad.measure.scores import Scores, random_scores
from subquad.results import Row
from subquad.statistics import mean_over_seeds

SCORES = "scores"
"""Metric of the rows of scores."""
SCORE_DIMS = (4, 16, 64, 256, 1024)
"""Dimensions of queries and keys whose scores are examined."""
SCORE_LENGTH = 256
"""Number of queries and of keys whose scores are examined."""


class Cell(NamedTuple):
    """Something to be measured."""

    about: Row
    """Fields that identify the cell: each of its rows has them."""
    rows: int
    """Number of rows that it gives."""
    measure: Callable[[], list[Row]]


def seeded(seed: int, *numbers: int) -> torch.Generator:
    """Returns a generator that differs for different numbers."""
    state = np.random.SeedSequence([seed, *numbers]).generate_state(1, np.uint64)[0]
    return torch.Generator().manual_seed(int(state) >> 1)


def score_cells(seed: int, draws: int) -> Iterator[Cell]:
    """Yields a cell for each dimension, with and without the division by sqrt d, on the same queries and keys."""
    for dim, scaled in product(SCORE_DIMS, (False, True)):
        about: Row = {"metric": SCORES, "dim": dim, "scaled": scaled}
        yield Cell(about, len(Scores._fields), partial(_score_rows, about, seed, draws))


def _score_rows(about: Row, seed: int, draws: int) -> list[Row]:
    """Returns a row for each figure of `Scores`, the mean over draws of queries and keys with its interval."""
    dim, scaled = about["dim"], about["scaled"]
    figures = [random_scores(dim, SCORE_LENGTH, seeded(seed, draw, dim), scaled=scaled) for draw in range(draws)]
    return [
        {**about, "what": name, **mean_over_seeds(values)._asdict(), "unit": "", "length": SCORE_LENGTH, "draws": draws}
        for name, values in zip(Scores._fields, zip(*figures, strict=True), strict=True)
    ]
