"""Measures errors by slots and length, and what projections learned, in parts that are each done once."""

import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Float
from rich.progress import track
from torch import Tensor

from subquad.experiments.base import is_finished, open_part, part_rows
from subquad.experiments.linformer.errors import error_rows, record_calls
from subquad.experiments.linformer.grid import Grid, Variant
from subquad.experiments.linformer.projections import projection_rows, weight_rows
from subquad.measure.lowrank import gram
from subquad.results import Row
from subquad.runs import load

SLOTS = "slots"
"""Name of the folder, and kind of the run, of these measurements."""
DONE = "seconds_of_part"
"""Metric of the last row of each part."""


class Part(NamedTuple):
    """A measurement that is repeated if it was interrupted."""

    name: str
    rows: Callable[[], Iterable[Row]]


def measure_slots(folder: Path, grid: Grid, scale: str) -> None:
    """Measures all parts that are missing."""
    run = open_part(folder / SLOTS, SLOTS, f"subquad reproduce linformer --scale {scale}")
    done = {row["part"] for row in run.rows() if row["metric"] == DONE}
    run.keep_rows(lambda row: row["part"] in done)
    missing = [part for part in parts(folder, grid) if part.name not in done]
    for part in track(missing, "slots and projections", transient=True, disable=not missing):
        start = time.perf_counter()
        rows = [*part.rows(), {"metric": DONE, "value": time.perf_counter() - start, "unit": "s"}]
        run.append({**row, "part": part.name} for row in rows)


def slot_rows(folder: Path) -> list[Row]:
    """The rows of all finished parts."""
    rows = part_rows(folder / SLOTS, SLOTS) or []
    done = {row["part"] for row in rows if row["metric"] == DONE}
    return [row for row in rows if row["part"] in done and row["metric"] != DONE]


def parts(folder: Path, grid: Grid) -> Iterator[Part]:
    """Yields the errors at each length, the closeness of projections at each length, and the weights for heat maps."""
    shown = grid.shared._replace(sharing="heads")
    for seed in grid.seeds:
        for length in grid.effort.lengths:
            yield Part(f"errors-{length}-{seed}", partial(_errors, folder, grid, length, seed))
        for length in sorted({variant.length for variant in grid.variants if variant.k}):
            yield Part(f"projections-{length}-{seed}", partial(_projections, folder, grid, length, seed))
    first = grid.seeds[0]
    yield Part(f"weights-{first}", lambda: weight_rows(str(folder / shown.name(first)), shown, first))


def _errors(folder: Path, grid: Grid, length: int, seed: int) -> Iterator[Row]:
    model = load(folder / Variant(grid.spectrum_length).name(seed))
    return error_rows(model, length, grid.effort, seed)


def _projections(folder: Path, grid: Grid, length: int, seed: int) -> Iterator[Row]:
    """Yields the closeness of the projections of all models of a length, beside softmax's matrices at this length."""
    grams = _grams(folder / Variant(length).name(seed), length, grid.effort.fit_sequences)
    for variant in grid.variants:
        if variant.k and variant.length == length and is_finished(folder / variant.name(seed)):
            yield from projection_rows(str(folder / variant.name(seed)), variant, seed, grams)


def _grams(folder: Path, length: int, sequences: int) -> list[Float[Tensor, "h n n"]]:
    """The mean of P^T P over training texts, for each layer and head of a softmax model."""
    model = load(folder)
    texts = model.task.splits.train  # type: ignore[attr-defined]
    calls = record_calls(model, texts, length, sequences, torch.Generator().manual_seed(0))
    return [gram(call.matrix()) for call in calls]
