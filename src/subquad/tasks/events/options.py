"""Options of the task events."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from subquad.attention import require_causal
from subquad.checking import AtLeastTwo, Count, FileName, NonNegative, Seed, Whole, Words
from subquad.data.columns import read_kinds
from subquad.data.times import check_form
from subquad.errors import SubquadError
from subquad.models import ModelOptions, Size, with_stack
from subquad.tasks.base import DataSize, Defaults, TaskOptions
from subquad.tasks.events.faults import ON_PADDING, Fault
from subquad.tasks.events.files import Columns
from subquad.tasks.events.heads import HeadName
from subquad.tasks.events.likelihood import Integral
from subquad.tasks.events.model import HeadOptions, event_numbers
from subquad.tasks.events.repairs import Backwards, Broken, Repairs, Ties
from subquad.types import AttentionOptions

ATTENTION_DEFAULTS: dict[str, dict[str, Any]] = {"favor": {"features": 64}, "infinity": {"segment": 128, "basis": 64}}
EVENTS_A_STEP = 16_384
"""Largest number of events in a default batch, so that batches of long sequences are smaller."""
EVENTS_OF_ALL_STEPS = 2_000_000
"""Number of events that a training reads by default, in 100 to 500 steps, or more if three passes over the data need it."""
LONG = 1024
"""Mean number of events per sequence above which sequences count as long."""

SEQUENCE_BYTES = 500
"""Lower bound on the bytes of a simulated sequence: its name, and about thirty times and types."""


@dataclass(frozen=True)
class EventOptions(TaskOptions):
    """Options of the task events: the data, their columns, and the heads of the model."""

    data: FileName = ""  # a folder, a file, or a Hugging Face dataset such as easytpp/taxi; default: simulated sequences
    sequence_column: Words = ""  # column of a table that names the sequence; default: "sequence" or "id"
    time_column: Words = ""  # column of a table with the time, as numbers or dates; default: "time"
    time_form: Words = "auto"  # how times are written: seconds, milliseconds, compact, days, iso, day-first, month-first
    type_column: Words = ""  # column of a table with the type of the event; default: "type"
    column_kinds: tuple[Words, ...] = ()  # kinds of columns that are not as recognized, such as city=category note=unused
    further_columns: bool = True  # use all columns of a table as inputs, not only sequence, time and type
    rare: Count = 5  # in columns of more than 200 values, those that fewer training sequences have share hashed vectors
    hash_buckets: Count = 64  # number of vectors that rare values share
    ties: Ties = "keep"  # events at the same time: keep, refuse, drop, or spread them over half of the smallest gap
    backwards: Backwards = "refuse"  # events earlier than the previous one: refuse or sort them
    broken: Broken = "refuse"  # events without a valid time or type: refuse or drop them
    fold: Count = 1  # fold to use, for data that come in several folds
    split_seed: Seed = 0  # seed for dividing data that come without splits into training, development and test
    process: Literal["hawkes", "self-correcting", "renewal"] = "hawkes"  # process that simulated sequences are drawn from
    sequences: Count = 1500  # number of simulated training sequences; a fifth as many are for development, and for the test
    data_seed: Seed = 0  # seed of the simulated sequences
    head: HeadName = "mixture"  # mixture: log-normal mixture for the gap; hawkes: intensity of each type
    inner: Count = 64  # number of hidden units of the head
    integral: Integral = "monte-carlo"  # how the hawkes head integrates in training; evaluations use the trapezoid rule
    integral_points: AtLeastTwo = 16  # points of the hawkes head's integral in training; evaluations use twice as many
    components: Count = 16  # number of components of the mixture head
    returns: bool = True  # mixture head: look for types that come again after a fixed time, such as a year, and expect them
    types_see_gap: bool = True  # let the type depend on the gap in the mixture head
    type_weight: NonNegative = 0.0  # weight of the loss of an additional head that predicts only the type; 0 for none
    time_weight: NonNegative = 0.0  # weight of the loss of an additional head that predicts only the gap; 0 for none
    chunk: Whole = 512  # number of events after which gradients are cut, to save memory on long sequences; 0 for never
    evaluation_tokens: Count = 16_384  # number of events per batch in evaluations, padding included
    faults: tuple[Fault, ...] = ()  # faults of the code of Zuo et al. 2020 to put back in, only to see what they do

    default_notes: ClassVar[str] = (
        "The defaults of --batch, --steps, --learning-rate and --dropout depend on the data. With --data, those shown are "
        "for sequences of about 60 events. With longer ones, a batch has at most 16,384 events but at least 4 sequences, "
        "and all steps together read 2 million events, in at least 100 steps and three rounds over the data."
    )

    def check(self) -> None:
        read_kinds(self.column_kinds, "--column-kinds")
        check_form(self.time_form)
        if self.faults and (self.head != "hawkes" or self.chunk):
            raise SubquadError("--faults are those of an intensity on whole sequences: give --head hawkes and --chunk 0 too")
        if set(self.faults) & set(ON_PADDING) and not self.time_weight:
            raise SubquadError(f"the faults {' and '.join(ON_PADDING)} are of the head for the gap: give --time-weight too")

    @property
    def columns(self) -> Columns:
        """Names of the columns of a table, and which further ones are read."""
        kinds = read_kinds(self.column_kinds, "--column-kinds")
        names = (self.sequence_column, self.time_column, self.type_column)
        return Columns(*names, self.further_columns, self.time_form, kinds)

    @property
    def repairs(self) -> Repairs:
        """What to do with events that are not valid."""
        return Repairs(self.ties, self.backwards, self.broken)

    @property
    def heads(self) -> HeadOptions:
        """Options of the heads on top of the stack."""
        distribution = (self.head, self.inner, self.integral, self.integral_points, self.components, self.types_see_gap)
        return HeadOptions(*distribution, self.type_weight, self.time_weight)

    def defaults(self, attention: str, data: DataSize | None = None) -> Defaults:
        """Returns the options of `subquad reproduce events` for simulated sequences, for real ones, and for long ones."""
        training: dict[str, Any] = {"batch": 32, "steps": 600, "learning_rate": 3e-3}
        dropout = 0.0
        if self.data:
            mean_length = 1.0 if data is None else data.positions / data.sequences
            # a power of two, so that processes can share it
            batch = 2 ** int(math.log2(min(64, max(4, EVENTS_A_STEP / mean_length))))
            steps = min(500, max(100, EVENTS_OF_ALL_STEPS // (batch * mean_length)))
            rounds = 0 if data is None else 3 * data.sequences // batch
            is_long = mean_length > LONG
            dropout = 0.0 if is_long else 0.1
            training = {
                "batch": batch,
                "steps": int(max(steps, min(10_000, rounds))),
                "learning_rate": 3e-3 if is_long else 4e-3,
            }
        training |= {"optimizer": "adamw", "schedule": "cosine", "warm_up": 50}
        training |= {"evaluate_every": 100, "checkpoint_every": 100}
        model = {"layers": 2, "heads": 4, "head_dim": 16, "dropout": dropout}
        return Defaults(model, training, ATTENTION_DEFAULTS.get(attention, {}))

    def size(self, attention: AttentionOptions, model: ModelOptions, types: int = 1) -> Size:
        """Lower bound on the size of the model and of simulated sequences. The data determine the number of types."""
        size = with_stack(event_numbers(types, model.model_dim, self.heads), attention, model)
        return size._replace(data_bytes=0 if self.data else self.sequences * SEQUENCE_BYTES)

    def check_model(self, attention: AttentionOptions, model: ModelOptions) -> None:
        require_causal(attention)
