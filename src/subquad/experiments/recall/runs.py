"""Accuracies and state sizes of finished trainings on recall and induction."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from subquad.experiments.base import Trial
from subquad.experiments.recall.grid import Grid
from subquad.report.training import value_on_test
from subquad.results import Row
from subquad.statistics import Interval, mean_over_seeds


class Remembered(NamedTuple):
    """Test accuracies by seed of a mechanism with a state of one size, and the bytes of the state."""

    task: str
    mechanism: str
    head_dim: int
    accuracies: Mapping[int, float]
    state_bytes: float
    planned: int
    """Number of seeds that the scale has."""

    @property
    def accuracy(self) -> Interval:
        """Mean over seeds with its interval."""
        return mean_over_seeds(list(self.accuracies.values()))

    @property
    def is_complete(self) -> bool:
        """Whether all seeds are finished."""
        return len(self.accuracies) == self.planned


def remembered(trained: Mapping[str, Sequence[Row]], grid: Grid) -> list[Remembered]:
    """What was measured for each task, mechanism and size that has a finished seed."""
    groups: dict[tuple[str, str, int], list[Trial]] = {}
    for trial in grid.trials():
        groups.setdefault((trial.name.partition("-")[0], trial.variant, trial.length), []).append(trial)
    results = []
    for key, group in groups.items():
        rows = {trial.seed: trained[trial.name] for trial in group if trial.name in trained}
        accuracies = {
            seed: value for seed, of_seed in rows.items() if (value := value_on_test(of_seed, "accuracy")) is not None
        }
        sizes = [value for of_seed in rows.values() if (value := value_on_test(of_seed, "state_bytes")) is not None]
        if accuracies and sizes:
            results.append(Remembered(*key, accuracies, sizes[0], len(group)))
    return results
