"""Accuracies of finished trainings of the Long Range Arena, at the learning rate that was chosen for each mechanism."""

from dataclasses import dataclass
from pathlib import Path

from subquad.attention import MECHANISMS
from subquad.experiments.accuracies import Accuracies
from subquad.experiments.base import is_finished
from subquad.experiments.lra.grid import Grid, TaskPlan
from subquad.report.training import value_on_test
from subquad.results import Row, Run
from subquad.statistics import Interval


@dataclass(frozen=True, kw_only=True)
class Score(Accuracies):
    """Test accuracy of a mechanism on a task, by seed, and what it is compared with."""

    task: str
    mechanism: str
    rate: float
    guessing: float
    """Accuracy of always guessing the most frequent class."""
    tokens_per_second: float
    """Speed of training at the last evaluation, mean over seeds; trainings may have shared their core."""
    tested: Interval
    """Accuracy of the first seed, with its interval over test sequences."""

    @property
    def accuracy(self) -> Interval:
        """Mean over seeds with its interval; with one finished seed, the interval over test sequences."""
        return self.tested if len(self.accuracies) == 1 else super().accuracy


def scores(folder: Path, grid: Grid) -> list[Score]:
    """The scores of all mechanisms whose learning rate is chosen, task by task."""
    found = (_score(folder, grid, plan, name) for plan in grid.plans for name in MECHANISMS)
    return [score for score in found if score is not None]


def _score(folder: Path, grid: Grid, plan: TaskPlan, name: str) -> Score | None:
    rate = grid.best_rate(folder, plan, name)
    if rate is None:
        return None
    accuracies, guessing, speeds, tested = {}, 0.0, [], []
    for seed in plan.seeds:
        path = folder / grid.trial(plan, name, rate, seed).name
        rows = Run.open(path).rows() if is_finished(path) else []
        accuracy = value_on_test(rows, "accuracy")
        if accuracy is not None:
            accuracies[seed] = accuracy
            tested += [Interval(row["value"], row["low"], row["high"]) for row in rows if _is_tested(row)][:1]
            guessing = value_on_test(rows, "accuracy_of_most_frequent") or 0.0
            speeds += [row["value"] for row in rows if row["metric"] == "tokens_per_second"][-1:]
    if not accuracies:
        return None
    speed = sum(speeds) / len(speeds) if speeds else 0.0
    return Score(
        task=plan.task.kind,
        mechanism=name,
        rate=rate,
        accuracies=accuracies,
        guessing=guessing,
        tokens_per_second=speed,
        planned=len(plan.seeds),
        tested=tested[0],
    )


def _is_tested(row: Row) -> bool:
    return row["metric"] == "accuracy" and row.get("split") == "test"


def data_of(folder: Path, grid: Grid) -> dict[str, str]:
    """The path of the data of each task that has a run; empty for data that were drawn or that the task brings."""
    paths = {}
    for plan in grid.plans:
        for path in sorted(folder.glob(f"{plan.task.kind}-*/run.json"))[:1]:
            paths[plan.task.kind] = Run.open(path.parent).about["options"]["task"]["data"]
    return paths
