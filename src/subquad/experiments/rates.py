"""Search of the learning rate: which of several trainings is best on the development split."""

from collections.abc import Mapping
from pathlib import Path

from subquad.experiments.base import is_finished
from subquad.results import Row, Run


def best_rate(trainings: Mapping[float, Path]) -> float | None:
    """The learning rate with the highest accuracy on the development split, the first of equal ones; None until all ended.

    `trainings` has the folder of the training at each learning rate.
    """
    if not all(map(is_finished, trainings.values())):
        return None
    accuracies = {rate: _best_accuracy(path) for rate, path in trainings.items()}
    return max(accuracies, key=lambda rate: accuracies[rate])


def _best_accuracy(folder: Path) -> float:
    """The highest accuracy on the development split of a finished training."""
    return max(float(row["value"]) for row in Run.open(folder).rows() if _is_development(row))


def _is_development(row: Row) -> bool:
    return row["metric"] == "accuracy" and row.get("split") == "held out" and row["value"] is not None
