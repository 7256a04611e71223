"""Accuracies and state sizes of finished trainings on recall and induction."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from subquad.experiments.accuracies import Accuracies
from subquad.experiments.base import Trial
from subquad.experiments.recall.grid import Grid
from subquad.report.training import value_on_test
from subquad.results import Row


@dataclass(frozen=True, kw_only=True)
class Remembered(Accuracies):
    """Test accuracies by seed of a mechanism with a state of one size, and the bytes of the state."""

    task: str
    mechanism: str
    head_dim: int
    state_bytes: float


def remembered(trained: Mapping[str, Sequence[Row]], grid: Grid) -> list[Remembered]:
    """What was measured for each task, mechanism and size that has a finished seed."""
    groups: dict[tuple[str, str, int], list[Trial]] = {}
    for trial in grid.trials():
        groups.setdefault((trial.name.partition("-")[0], trial.variant, trial.length), []).append(trial)
    results = []
    for (task, mechanism, head_dim), group in groups.items():
        rows = {trial.seed: trained[trial.name] for trial in group if trial.name in trained}
        accuracies = {
            seed: value for seed, of_seed in rows.items() if (value := value_on_test(of_seed, "accuracy")) is not None
        }
        sizes = [value for of_seed in rows.values() if (value := value_on_test(of_seed, "state_bytes")) is not None]
        if accuracies and sizes:
            results.append(
                Remembered(
                    task=task,
                    mechanism=mechanism,
                    head_dim=head_dim,
                    accuracies=accuracies,
                    state_bytes=sizes[0],
                    planned=len(group),
                )
            )
    return results
