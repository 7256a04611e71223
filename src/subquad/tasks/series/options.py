"""Options of the task series."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from subquad.checking import AtLeastTwo, Count, FileName, Seed, Whole, Words, check
from subquad.data.named import located
from subquad.errors import OptionError
from subquad.models import ModelOptions, Size, with_stack
from subquad.tasks.base import DataSize, Defaults, TaskOptions
from subquad.tasks.series.loading import load_series
from subquad.tasks.series.sets import Layout, Reading, SeriesSet
from subquad.tasks.series.simulator import Simulator
from subquad.tasks.targets.labels import ColumnTarget
from subquad.types import AttentionOptions

Goal = Literal["auto", "forecast", "label"]
SplitKind = Literal["auto", "series", "time"]
STEPS_A_BATCH = 4096
"""Default number of steps of series in a batch."""
MOST_SERIES = 32
"""Largest default number of series or windows in a batch."""
TYPICAL = 128
"""Number of steps of a series that defaults are for before the data are read."""


@dataclass(frozen=True)
class SeriesOptions(TaskOptions):
    """Options of the task series: the data, their columns, what is predicted, and what is evaluated."""

    data: FileName = ""  # CSV, Parquet, .npy, .npz, UCR's .tsv, UEA's .ts, a folder, or a hub dataset; default: made up
    goal: Goal = "auto"  # forecast: the next steps of each series; label: its class or number; auto: label if there are some
    layout: Layout = "auto"  # long: a step in each row; wide: a series in each row
    id_column: Words = ""  # column with the name of the series; default: "unique_id", "series" or a usual name
    time_column: Words = ""  # column with the time; default: "time", "date" or a usual name, or the order of rows
    value_columns: tuple[Words, ...] = ()  # columns with the values; default: all columns of numbers
    label_column: Words = ""  # column with the label of the series; default: "label" or "class"
    target: ColumnTarget = "auto"  # what labels are: classes, several labels between |, or a number
    label_file: FileName = ""  # table with the name and the label of each series, if they are in a table of their own
    horizon: Count | None = None  # number of steps to forecast; default: 24, or less for short series
    context: Count | None = None  # number of steps that forecasts are made from; default: four times the horizon
    season: Whole | None = None  # number of steps of a season, 0 for none; default: found in the training series
    linear: bool = True  # add a linear forecast from the context, shared by all channels, to that of the attention
    split: SplitKind = "auto"  # series: test on other series; time: on the last part; auto: time for fewer than 10 series
    reach: Count = 5  # number of neighbouring steps that are read together at each position
    latest: Count = 100_000  # to predict labels: largest number of steps of a series; the last ones are kept
    split_seed: Seed = 0  # seed for dividing series into training, development and test, if their names do not tell
    held_out: Count = 500  # largest number of forecasts in an evaluation during training
    tested: Count = 2000  # largest number of forecasts in the final evaluation
    evaluation_steps: Count = 32_768  # number of steps per batch in evaluations
    series: Count = 1000  # number of made-up series
    mean_length: AtLeastTwo = 192  # mean number of steps of made-up series
    data_seed: Seed = 0  # seed of the made-up series

    default_notes: ClassVar[str] = (
        "The defaults of --batch and --steps depend on the data: about 4096 steps of series in a batch, at most 32 of them, "
        "and 300 to 1500 batches."
    )

    def check(self) -> None:
        if self.reach % 2 == 0 or self.reach > 99:
            raise OptionError("reach", f"must be an odd number up to 99, but is {self.reach}")
        if self.label_file and not self.data:
            raise OptionError("label_file", "is for series in a file: give --data too")
        if not self.data:
            check(self.simulator)

    @property
    def source(self) -> str:
        """Name of the source of the series, for messages."""
        return self.data or "the made-up data"

    @property
    def simulator(self) -> Simulator:
        """Draws the made-up series."""
        return Simulator(self.series, self.mean_length, self.data_seed, self.goal == "label")

    @property
    def reading(self) -> Reading:
        """How a table is to be read, as far as it is named."""
        return Reading(self.layout, self.id_column, self.time_column, self.label_column, self.value_columns)

    def load(self) -> SeriesSet:
        """Reads the series, or makes them up."""
        if not self.data:
            return self.simulator.draw()
        return load_series(located(self.data), self.reading, label_file=self.label_file)

    def defaults(self, attention: str, data: DataSize | None = None) -> Defaults:
        """Returns options of a small model, with batches and steps by the size of the data."""
        length = TYPICAL if data is None else max(1, data.positions // max(1, data.sequences))
        batch = min(MOST_SERIES, max(4, STEPS_A_BATCH // length))
        rounds = 0 if data is None else 8 * data.sequences // batch
        training = {
            "batch": batch,
            "steps": min(1500, max(300, rounds)),
            "learning_rate": 2e-3,
            "optimizer": "adamw",
            "weight_decay": 0.01,
            "warm_up": 30,
            "schedule": "cosine",
            "evaluate_every": 50,
        }
        return Defaults({"layers": 2, "heads": 4, "head_dim": 16, "positions": "rotary", "dropout": 0.1}, training)

    def size(self, attention: AttentionOptions, model: ModelOptions) -> Size:
        """Lower bound on the size of the model for one channel, and of made-up series."""
        made_up = 0 if self.data else self.series * self.mean_length * 8
        return with_stack(self.reach * model.model_dim, attention, model)._replace(data_bytes=made_up)
