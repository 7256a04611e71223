"""The page of the experiment on recall: accuracy against the size of the state, and induction heads."""

from collections.abc import Sequence
from pathlib import Path

from subquad.experiments.recall.grid import CAUSAL, INDUCTION, RECALL, SCALES, Grid
from subquad.experiments.recall.runs import Remembered, chosen_trials, remembered
from subquad.experiments.recall.verdicts import judge
from subquad.report.curves import curves
from subquad.report.page import Chapter, Fold, Page, Picture, paragraph, table
from subquad.report.ranges import Axis, ranged_lines
from subquad.report.tables import Cell, Table
from subquad.report.training import Trained, points
from subquad.report.verdicts import verdict_answer, verdict_fold
from subquad.results import Row, Run
from subquad.words import amount, between

TITLE = "Recall by the size of the state"
DIFFERENCES = (
    "Published (Arora et al. 2023, figure 2, and its public configuration): 64, 128 and 256 positions with 4, 8 and 16 "
    "pairs, 8192 tokens, width 64 to 512, one head, two layers of softmax or four of other mixers without feed-forward "
    "parts, 64 rounds over 100,000 sequences, the best of four learning rates from 1e-4 to 1e-2, most questions right after "
    "the pairs. Here all mechanisms have the same number of layers, with feed-forward parts, "
    "and the quick scale is smaller in everything."
)
SEARCH_NOTE = (
    "Each attention, with a state of each size, was tried at the same learning rates with the first seed; the best on the "
    "development split was used with the other seeds."
)
STATE_NOTE = (
    "The state is what all layers keep of one sequence after its last position, measured. That of softmax, LSH and sparse "
    "attention grows with the sequence; the others' do not."
)


def recall_page(folder: Path, scale: str) -> Page:
    """Returns the page: accuracy by the size of the state first, then tables and curves."""
    grid = SCALES[scale]
    trials = [trial for cell in grid.cells() for trial in chosen_trials(folder, grid, cell)]
    measured = remembered(folder, grid)
    verdicts = judge(folder, scale)
    by_size = [result for result in measured if result.task == RECALL]
    picture = state_picture(by_size, grid) if by_size else None
    curve_pictures = [
        _curves(folder, [trial.name for trial in trials if trial.name.startswith(task)], task)
        for task in (RECALL, INDUCTION)
    ]
    drawn = [picture for picture in curve_pictures if picture is not None]
    folds = [verdict_fold(verdicts)]
    if measured:
        notes = [paragraph(SEARCH_NOTE), paragraph(STATE_NOTE)]
        folds.append(Fold("Accuracy and state", [*notes, table(accuracy_table(measured))], is_open=True))
    folds.append(Fold("What was published, and what differs", [paragraph(DIFFERENCES)]))
    return Page(
        TITLE,
        verdict_answer(verdicts),
        about=f"Scale {scale}. Every training is a run in the same folder.",
        picture=picture,
        chapters=[Chapter("Accuracy by step", drawn)] if drawn else [],
        folds=folds,
    )


def state_picture(results: Sequence[Remembered], grid: Grid) -> Picture:
    """Share of values recalled against the bytes of the state, a line for each mechanism."""
    rows: list[Row] = []
    for result in sorted(results, key=lambda result: (CAUSAL.index(result.mechanism), result.state_bytes)):
        ends = result.accuracy.as_share._asdict() if len(result.accuracies) > 1 else {"value": result.accuracy.value}
        rows.append({"label": result.mechanism, "at": result.state_bytes, **ends})
    caption = (
        f"Share of {grid.recall.pairs} values recalled by the size of the state, with 95% intervals over seeds; "
        "dashed: naming the value that stands most often, whatever the key"
    )
    chart = ranged_lines(
        rows,
        Axis("state of one sequence, bytes", log=True),
        Axis("share of values recalled"),
        level=grid.recall.share_of_frequent,
    )
    return Picture("state", caption, chart)


def _curves(folder: Path, names: Sequence[str], task: str) -> Picture | None:
    """Accuracy by step of the trainings with the largest heads, or None if none is finished."""
    trained = []
    for name in names:
        run = Run.open(folder / name)
        trained.append((run.about["options"]["model"]["head_dim"], run))
    largest = max((head_dim for head_dim, _ in trained), default=0)
    chosen = [
        Trained(run, run.rows(), run.about["options"]["mechanism"]["kind"])
        for head_dim, run in trained
        if head_dim == largest
    ]
    rows = points(chosen, "accuracy")
    if not rows:
        return None
    return Picture(f"accuracy_{task}", f"Accuracy on {task} by step, heads of {largest}", curves(rows, "accuracy"))


def accuracy_table(measured: Sequence[Remembered]) -> Table:
    """Accuracy with its interval over seeds, and the size of the state, by task, mechanism and size of heads."""
    rows = [
        [
            Cell(result.task),
            Cell(result.mechanism),
            Cell(str(result.head_dim), result.head_dim),
            Cell(amount(result.state_bytes), result.state_bytes),
            Cell(f"{result.rate:g}", result.rate),
            Cell(str(len(result.accuracies)), len(result.accuracies)),
            Cell(between(result.accuracy.as_share, ".1%"), result.accuracy.value),
        ]
        for result in measured
    ]
    columns = ["task", "attention", "head dim", "state", "learning rate", "seeds", "accuracy (95% interval)"]
    return Table("On the test, at the end of training", columns, rows)
