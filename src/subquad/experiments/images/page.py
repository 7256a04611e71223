"""The page of the experiment on images: bits per dimension by step, images a second, and finished pictures."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from subquad.experiments.base import labelled_runs, part_rows
from subquad.experiments.images.grid import SCALES
from subquad.experiments.images.throughput import METHODS
from subquad.experiments.images.verdicts import METRIC, judge, tested
from subquad.report.curves import curves
from subquad.report.page import Fold, Page, Picture, paragraph, table
from subquad.report.tables import NOTHING, Cell, Table
from subquad.report.training import points, sample_table
from subquad.report.verdicts import verdict_answer, verdict_fold
from subquad.results import Row
from subquad.statistics import Interval, mean_over_seeds
from subquad.words import between

TITLE = "Images, pixel by pixel"
SPEED_NOTE = (
    "The paper's models with random weights. The time of one value is measured at five places of an image (linear: one, as "
    "it does not depend on the place) with the draw, the methods in turns, and integrated over the image. Cached keys and "
    "values grow by concatenation, as in the paper's code. The paper measured on a GPU."
)


def images_page(folder: Path, scale: str) -> Page:
    """Returns the page: bits per dimension by step, verdicts, speed, quality and pictures."""
    grid = SCALES[scale]
    trials, verdicts = list(grid.trials()), judge(folder, scale)
    runs = labelled_runs(folder, trials)
    curve_points = points(runs, METRIC)
    chart = curves(curve_points, "bits per dimension") if curve_points else None
    is_drawn = not any(training.run.about["options"]["task"]["data"] for training in runs)
    speeds = part_rows(folder / "throughput", "throughput") or []
    bits = tested({training.run.folder.name: training.rows for training in runs}, trials)
    return Page(
        TITLE,
        verdict_answer(verdicts),
        about=f"Scale {scale}; {'drawn shapes' if is_drawn else 'the images that were given'}.",
        picture=None if chart is None else Picture("bits", "Bits per dimension by step", chart),
        folds=[
            verdict_fold(verdicts),
            Fold("Images a second", [paragraph(SPEED_NOTE), table(speed_table(speeds))]),
            Fold("Bits per dimension", [table(quality_table(bits))]),
            Fold(
                "Pictures: given half, completed, original",
                [table(sample_table([training for training in runs if training.run.about["seed"] == grid.seeds[0]]))],
            ),
        ],
    )


def speed_table(rows: Sequence[Row]) -> Table:
    """Images a second of each method and batch, with the ratio of the best batch to softmax recomputed."""
    lines = []
    for row in rows:
        if row["metric"] == "images_per_second":
            rate = Cell(between(Interval.of_row(row), ".3g"), row["value"])
            batch, values = Cell(str(row["batch"]), row["batch"]), Cell(str(row["values"]), row["values"])
            lines.append([values, Cell(METHODS[row["method"]]), batch, rate, NOTHING])
        elif row["metric"].startswith("times_"):
            ratio = Cell(between(Interval.of_row(row)), row["value"])
            what = f"{METHODS[row['method']]}, best batch, times {METHODS[row['metric'].removeprefix('times_')]}"
            lines.append([Cell(str(row["values"]), row["values"]), Cell(what), NOTHING, NOTHING, ratio])
    return Table("Images a second", ["values", "method", "batch", "images/s", "ratio"], lines)


def quality_table(bits: Mapping[str, Mapping[int, float]]) -> Table:
    """Bits per dimension on the test split by attention: mean over seeds."""
    lines = []
    for name, by_seed in bits.items():
        mean = mean_over_seeds(list(by_seed.values()))
        lines.append([Cell(name), Cell(str(len(by_seed)), len(by_seed)), Cell(between(mean, ".3f"), mean.value)])
    return Table("On the test split", ["attention", "seeds", "bits per dimension"], lines)
