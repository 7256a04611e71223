"""Accuracies and state sizes of finished trainings on recall and induction, at the learning rates that were chosen."""

from dataclasses import dataclass
from pathlib import Path

from subquad.experiments.accuracies import Accuracies
from subquad.experiments.base import Trial, finished_rows, is_finished
from subquad.experiments.recall.grid import Cell, Grid
from subquad.report.training import value_on_test


@dataclass(frozen=True, kw_only=True)
class Remembered(Accuracies):
    """Test accuracies by seed of a mechanism with a state of one size, and the bytes of the state."""

    task: str
    mechanism: str
    head_dim: int
    rate: float
    """The learning rate that was best on the development split."""
    state_bytes: float


def chosen_trials(folder: Path, grid: Grid, cell: Cell) -> list[Trial]:
    """The finished trainings at the best learning rate; none until all rates were tried."""
    rate = grid.best_rate(folder, cell)
    trials = [] if rate is None else [grid.trial(cell, rate, seed) for seed in grid.seeds]
    return [trial for trial in trials if is_finished(folder / trial.name)]


def remembered(folder: Path, grid: Grid) -> list[Remembered]:
    """What was measured for each task, mechanism and size whose learning rate is chosen."""
    found = (_remembered(folder, grid, cell) for cell in grid.cells())
    return [result for result in found if result is not None]


def _remembered(folder: Path, grid: Grid, cell: Cell) -> Remembered | None:
    rate, trials = grid.best_rate(folder, cell), chosen_trials(folder, grid, cell)
    rows = finished_rows(folder, trials)
    accuracies = {
        trial.seed: value for trial in trials if (value := value_on_test(rows[trial.name], "accuracy")) is not None
    }
    sizes = [value for found in rows.values() if (value := value_on_test(found, "state_bytes")) is not None]
    if rate is None or not accuracies or not sizes:
        return None
    return Remembered(
        task=cell.task.kind,
        mechanism=cell.mechanism,
        head_dim=cell.size.head_dim,
        rate=rate,
        accuracies=accuracies,
        state_bytes=sizes[0],
        planned=len(grid.seeds),
    )
