"""The page of the experiment on speech: error rates by step, on the test, and costs against the length of a sound."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from subquad.experiments.base import Trial, labelled_runs, part_rows
from subquad.experiments.speech.grid import PUBLISHED, SCALES
from subquad.experiments.speech.verdicts import METRIC, judge, results_on_test, said
from subquad.report.curves import curves
from subquad.report.page import Fold, Page, Picture, paragraph, table
from subquad.report.tables import NOTHING, Cell, Table
from subquad.report.training import points, sample_table
from subquad.report.verdicts import verdict_answer, verdict_fold
from subquad.results import Row
from subquad.statistics import Interval
from subquad.words import amount, between

TITLE = "Speech"
NOTE = (
    "Error rates are edits divided by the units that were said, with 95% intervals from drawing recordings again. The "
    "paper's are phone error rates on 80 hours of WSJ, with models of nine layers: its order is compared, not its figures."
)
COST_NOTE = (
    "Models with random weights and one sound of random features, encoders in turns; memory is the peak of a training step "
    "beyond what the process had."
)


def speech_page(folder: Path, scale: str) -> Page:
    """Returns the page: error rates by step, verdicts, error rates on the test, costs and answers."""
    grid = SCALES[scale]
    trials, verdicts = list(grid.trials()), judge(folder, scale)
    runs = labelled_runs(folder, trials)
    curve_points = points(runs, METRIC)
    chart = curves(curve_points, "error rate") if curve_points else None
    is_given = any(training.run.about["options"]["task"]["data"] for training in runs)
    by_name = {training.run.folder.name: training.rows for training in runs}
    costs = part_rows(folder / "costs", "costs") or []
    first = [training for training in runs if training.run.about["seed"] == grid.seeds[0]]
    return Page(
        TITLE,
        verdict_answer(verdicts),
        about=f"Scale {scale}; {'the recordings that were given' if is_given else 'synthesised tones that spell words'}.",
        picture=None if chart is None else Picture("errors", "Error rate on development recordings by step", chart),
        folds=[
            verdict_fold(verdicts),
            Fold("Error rates on the test", [paragraph(NOTE), table(rate_table(by_name, trials))]),
            Fold("Costs", [paragraph(COST_NOTE), table(cost_table(costs))]),
            Fold("What was heard", [table(sample_table(first))]),
        ],
    )


def rate_table(trained: Mapping[str, Sequence[Row]], trials: Sequence[Trial]) -> Table:
    """Error rates of each encoder: greedy, by beam search, of words, and the paper's."""
    metrics = (METRIC, "beam_error_rate", "word_error_rate")
    by_metric = [results_on_test(trained, trials, metric) for metric in metrics]
    lines = []
    for name in dict.fromkeys(trial.variant for trial in trials):
        cells = [Cell(said(results[name])) if name in results else NOTHING for results in by_metric]
        published = Cell(f"{PUBLISHED[name]:.2f}%", PUBLISHED[name]) if name in PUBLISHED else NOTHING
        lines.append([Cell(name), *cells, published])
    columns = ["encoder", "error rate", "by beam search", "of words", "the paper's, phones of WSJ"]
    return Table("On the test split", columns, lines)


def cost_table(rows: Sequence[Row]) -> Table:
    """Time for a second of sound and peak memory, by length of the sound."""
    known = {(row["metric"], row["encoder"], row["sound_seconds"], row["work"]): row for row in rows}
    lines = []
    for name, seconds in dict.fromkeys((row["encoder"], row["sound_seconds"]) for row in rows):
        cells = [Cell(name), Cell(f"{seconds}", seconds)]
        for work in ("recognition", "training"):
            time, times = (known.get((metric, name, seconds, work)) for metric in ("seconds_per_second", "times_softmax"))
            cells.append(NOTHING if time is None else Cell(f"{1000 * time['value']:.3g} ms", time["value"]))
            cells.append(NOTHING if times is None else Cell(between(Interval.of_row(times)), times["value"]))
        peak = known.get(("peak_bytes", name, seconds, "training"))
        lines.append([*cells, NOTHING if peak is None else Cell(amount(peak["value"]), peak["value"])])
    columns = ["encoder", "seconds of sound", "recognition", "times softmax", "training", "times softmax", "memory"]
    return Table("Time for each second of sound", columns, lines)
