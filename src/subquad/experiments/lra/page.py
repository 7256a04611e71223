"""The page of the Long Range Arena: accuracies by task, beside speed and memory, and beside the published ones."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from subquad.attention import MECHANISMS
from subquad.compare.views import BASELINE, Comparison, View
from subquad.experiments.base import part_rows
from subquad.experiments.lra.charts import accuracy_picture, short_name, tradeoff_picture
from subquad.experiments.lra.grid import SCALES, Grid
from subquad.experiments.lra.published import ACCURACIES, DIFFERENCES, LENGTH, MEMORY, SPEEDS, TASKS
from subquad.experiments.lra.runs import Score, data_of, scores
from subquad.experiments.lra.verdicts import judge
from subquad.report.page import Chapter, Fold, Page, bullets, paragraph, table
from subquad.report.tables import NOTHING, Cell, Table
from subquad.report.verdicts import verdict_answer, verdict_fold
from subquad.words import amount, between, digits

TITLE = "Long Range Arena"
MADE = {
    "lra-listops": "drawn by the grammar",
    "lra-text": "Python's docstrings by package",
    "lra-retrieval": "pairs of Python's docstrings, of one module or two",
    "lra-image": "1,797 digits of scikit-learn",
    "lra-pathfinder": "drawn here",
}
"""What tasks are trained on if no data are given."""
SEARCH_NOTE = (
    "The same model and number of steps for all. Each attention was tried at the same learning rates with the first seed; "
    "the best on the development split was used with the other seeds. Accuracies are on the test, means over seeds with 95% "
    "intervals; those of one seed are over test sequences, and say nothing of other seeds. Guessing is always the "
    "class most frequent in development."
)


def lra_page(folder: Path, scale: str) -> Page:
    """Returns the page: accuracies first, then accuracy against speed, then tables beside what was published."""
    grid = SCALES[scale]
    measured, verdicts, paths = scores(folder, grid), judge(folder, scale), data_of(folder, grid)
    timing = Comparison(part_rows(folder / "timing", "compare") or [])
    view = timing.views[0] if timing.views else None
    folds = [verdict_fold(verdicts)]
    if measured:
        folds.append(
            Fold(
                "Accuracy, speed and memory",
                [paragraph(SEARCH_NOTE), table(result_table(measured, timing, view))],
                is_open=True,
            )
        )
        folds.append(Fold("Every task", [paragraph(SEARCH_NOTE), table(task_table(measured))]))
    folds.append(Fold("Models and trainings of this scale", [table(setting_table(grid, paths))]))
    folds.append(Fold("Published", [table(published_table())], is_open=True))
    folds.append(Fold("What differs from what was published", [bullets(DIFFERENCES)]))
    tradeoff = tradeoff_picture(measured, timing, view)
    return Page(
        TITLE,
        verdict_answer(verdicts),
        about=f"Scale {scale}. {_about_data(paths)} Every training is a run in the same folder.",
        picture=accuracy_picture(measured) if measured else None,
        chapters=[Chapter("Accuracy and speed", [tradeoff])] if tradeoff is not None else [],
        folds=folds,
    )


def _about_data(paths: Mapping[str, str]) -> str:
    """Says what the tasks were trained on."""
    parts = [f"{short_name(task)}: {path or MADE[task]}" for task, path in paths.items()]
    return f"Data: {'; '.join(parts)}." if parts else ""


def result_table(measured: Sequence[Score], timing: Comparison, view: View | None) -> Table:
    """Accuracy on each task with its interval, their mean and, once timed, speed and memory, by mechanism."""
    tasks = list(dict.fromkeys(score.task for score in measured))
    by_key = {(score.task, score.mechanism): score for score in measured}
    length = None if view is None else max(timing.lengths(view, BASELINE), default=None)
    rows = []
    for name in MECHANISMS:
        group = [by_key.get((task, name)) for task in tasks]
        if not any(group):
            continue
        known = [score.accuracy.value for score in group if score is not None]
        mean = Cell(f"{sum(known) / len(known):.1%}", sum(known) / len(known)) if len(known) == len(tasks) else NOTHING
        spent = [] if view is None or length is None else _cost_cells(timing, view, name, length)
        rows.append([Cell(name), *(_accuracy_cell(score) for score in group), mean, *spent])
    guessed = [next(score.guessing for score in measured if score.task == task) for task in tasks]
    costs = [] if length is None else [f"times as fast as fused softmax, {length} tokens", f"memory, {length} tokens"]
    rows.append([Cell("guessing"), *(Cell(f"{share:.1%}", share) for share in guessed), *[NOTHING] * (1 + len(costs))])
    return Table("Accuracy on the test", ["attention", *map(short_name, tasks), "mean", *costs], rows)


def _accuracy_cell(score: Score | None) -> Cell:
    if score is None:
        return NOTHING
    return Cell(between(score.accuracy.as_share, ".1%"), score.accuracy.value)


def _cost_cells(timing: Comparison, view: View, name: str, length: int) -> list[Cell]:
    """Speed-up over fused softmax with its interval, and peak memory, at a length."""
    speedup, peak = timing.speedup(view, name, length), timing.peak(view, name, length)
    speed = NOTHING if speedup is None else Cell(between(speedup), speedup.value)
    return [Cell("1", 1.0) if name == BASELINE else speed, NOTHING if peak is None else Cell(amount(peak), peak)]


def task_table(measured: Sequence[Score]) -> Table:
    """Every score with the chosen learning rate, the number of seeds and the speed of training."""
    rows = [
        [
            Cell(short_name(score.task)),
            Cell(score.mechanism),
            Cell(f"{score.rate:g}", score.rate),
            Cell(f"{len(score.accuracies)} of {score.planned}", len(score.accuracies)),
            _accuracy_cell(score),
            Cell(f"{score.guessing:.1%}", score.guessing),
            Cell(f"{score.tokens_per_second:,.0f}", score.tokens_per_second),
        ]
        for score in measured
    ]
    columns = ["task", "attention", "learning rate", "seeds", "accuracy (95% interval)", "guessing", "tokens/s in training"]
    return Table("Every task", columns, rows)


def setting_table(grid: Grid, paths: Mapping[str, str]) -> Table:
    """The largest length, the model, the steps and the search of each task. `paths` has the data of each task."""
    longest = {plan.task.kind: replace(plan.task, data=paths.get(plan.task.kind, "")).longest for plan in grid.plans}
    rows = [
        [
            Cell(short_name(plan.task.kind)),
            Cell(f"{longest[plan.task.kind]:,}", longest[plan.task.kind]),
            Cell(str(plan.model.layers), plan.model.layers),
            Cell(f"{plan.model.heads} of {plan.model.head_dim}", plan.model.heads),
            Cell(f"{plan.training.steps:,} of {plan.training.batch}", plan.training.steps),
            Cell(", ".join(f"{rate:g}" for rate in plan.rates), plan.rates[0]),
            Cell(str(len(plan.seeds)), len(plan.seeds)),
        ]
        for plan in grid.plans
    ]
    columns = ["task", "longest", "layers", "heads", "steps, sequences in each", "learning rates", "seeds"]
    return Table("The same for every attention", columns, rows)


def published_table() -> Table:
    """Published accuracies, speeds and memory."""
    rows = []
    for model, accuracies in ACCURACIES.items():
        speed, memory = SPEEDS.get(model), MEMORY.get(model)
        mean = sum(accuracies) / len(accuracies)
        rows.append(
            [
                Cell(model),
                *(Cell(f"{value:.2f}", value) for value in accuracies),
                Cell(f"{mean:.2f}", mean),
                Cell("1", 1.0) if model == "Transformer" else NOTHING if speed is None else Cell(digits(speed), speed),
                NOTHING if memory is None else Cell(f"{memory:.2f} GB", memory),
            ]
        )
    caption = (
        f"Tay et al. 2020: accuracy in percent; steps in a second against the Transformer and memory at {LENGTH} tokens"
    )
    return Table(caption, ["model", *map(short_name, TASKS), "mean", "times as fast", "memory"], rows)
