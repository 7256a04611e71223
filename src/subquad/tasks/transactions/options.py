"""Options of the task transactions."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from subquad.checking import AtLeastTwo, BelowOne, Count, FileName, PositiveShare, Seed, Whole, Words, check
from subquad.data.columns import read_kinds
from subquad.data.times import check_form
from subquad.errors import OptionError, SubquadError
from subquad.tasks.base import DataSize, Defaults, TaskOptions
from subquad.tasks.targets.labels import TargetChoice
from subquad.tasks.transactions.collecting import Columns, Reading
from subquad.tasks.transactions.features import Amounts
from subquad.tasks.transactions.model import Pooling
from subquad.tasks.transactions.pretraining import Parts
from subquad.tasks.transactions.simulator import Simulator

Objective = Literal["label", "next", "contrastive", "both"]
ATTENTION_DEFAULTS: dict[str, dict[str, Any]] = {
    "favor": {"features": 64},
    "infinity": {"segment": 128, "basis": 64},
    "linformer": {"k": 64},
}
BATCH = 32
"""Default number of clients in a training step."""
CLIENT_BYTES, EVENT_BYTES = 64, 60
"""Lower bounds on the bytes of a simulated client's name, and of an event with its features."""


@dataclass(frozen=True)
class ClientOptions(TaskOptions):
    """Options of the task transactions: the data, their columns, the target, and what is learned from them."""

    data: FileName = ""  # table in CSV or Parquet, folder with events and clients, Sberbank's or Berka's; default: simulated
    label: Words = ""  # column with the label; for Berka's data, age (born before 1950) or gender
    labels: tuple[Words, ...] = ()  # columns of several labels at once, each with two values, instead of --label
    target: TargetChoice = "auto"  # classes, labels, number, or event: the time to it, with --observed-column
    observed_column: Words = ""  # column that tells if the event was observed by the time in the column --label
    client_table: FileName = ""  # table with a row for each client: its columns and labels; default: one in the folder
    column_kinds: tuple[Words, ...] = ()  # kinds of columns that are not as recognized, such as city=category note=unused
    further_columns: bool = True  # use all columns of a table, not only client, time, code, type, amount and label
    rare: Count = 5  # in columns of more than 200 values, those that fewer training clients have share hashed vectors
    hash_buckets: Count = 64  # number of vectors that rare values share
    time_form: Words = "auto"  # how times are written: seconds, milliseconds, compact, days, iso, day-first, month-first
    class_weights: Literal["none", "balanced"] = "none"  # balanced: all classes have the same weight in the loss
    wide: Literal["auto", "on", "off"] = "auto"  # add a linear model of counts; auto: if it beats the trivial answer
    baselines: bool = True  # measure a linear model of counts and gradient boosting on the same clients and columns
    importance: bool = True  # measure at the end which columns matter
    objective: Objective = "label"  # label, or without labels: next, contrastive, or both of these, for --start
    parts: Parts = "slices"  # parts of a history that are told apart without labels: slices, or samples of all events
    start: FileName = ""  # run without labels (--objective both) whose encoder and vocabularies the model starts with
    labelled_share: PositiveShare = 1.0  # share of the training and development clients whose labels are used
    client_column: Words = ""  # column with the name of the client; default: "client" or "customer_id"
    time_column: Words = ""  # column with the time, as seconds, ISO dates or "D HH:MM:SS"; default: "time" or "tr_datetime"
    code_column: Words = ""  # column with the code of what was bought; default: "code" or "mcc_code", if there is one
    type_column: Words = ""  # column with the type of payment; default: "type" or "tr_type", if there is one
    amount_column: Words = ""  # column with the amount; default: "amount", if there is one
    amounts: Amounts = "quantile"  # quantile: bins with equally many events; log: scaled logarithms
    pooling: Pooling = "mean"  # how the vectors of all events are combined into one
    latest: Count = 100_000  # largest number of events of a client; the last ones are kept
    folds: AtLeastTwo = 5  # number of folds that clients are divided into; one is the test split
    fold: Whole = 0  # number of the fold that is the test split, from 0
    split_seed: Seed = 0  # seed for dividing clients into folds
    clients: Count = 6000  # number of simulated clients
    shortest_history: Count = 60  # smallest number of events of a simulated client
    longest_history: Count = 400  # largest number of events of a simulated client
    codes: Count = 20  # number of different codes of simulated clients
    drift: BelowOne = 0.25  # strength of the habits of simulated clients, from 0 to below 1
    data_seed: Seed = 0  # seed of the simulated clients
    evaluation_tokens: Count = 32_768  # number of events per batch in evaluations, padding included

    default_notes: ClassVar[str] = (
        "The default of --steps is for up to 4,800 training clients. With more, it is two rounds over them, at most 5000."
    )

    @property
    def columns(self) -> Columns:
        """Names of the columns of a table."""
        names = (self.client_column, self.time_column, self.code_column, self.type_column, self.amount_column)
        return Columns(*names, self.label)

    @property
    def simulator(self) -> Simulator:
        """The simulator that draws clients if no data are given."""
        return Simulator(self.clients, self.shortest_history, self.longest_history, self.codes, self.drift, self.data_seed)

    def how(self) -> Reading:
        """How the data of a new run are read."""
        return Reading(
            labels=self.labels,
            observed=self.observed_column,
            target=self.target,
            kinds=read_kinds(self.column_kinds, "--column-kinds"),
            further=self.further_columns,
            clients=Path(self.client_table) if self.client_table else None,
            time_form=self.time_form,
        )

    def check(self) -> None:
        read_kinds(self.column_kinds, "--column-kinds")
        check_form(self.time_form)
        if self.target == "event" and self.data and not self.observed_column:
            raise SubquadError("--target event needs --observed-column, which tells if the event was observed")
        if self.label and self.labels:
            raise SubquadError("give --label for one column or --labels for several, not both")
        if self.parts == "samples" and self.objective in ("next", "both"):
            raise SubquadError("nothing follows a sample of all events: give --objective contrastive with --parts samples")
        if self.objective != "label" and self.start:
            raise SubquadError("--start is for learning labels: leave --objective out")
        if self.fold >= self.folds:
            raise OptionError("fold", f"must be below the number of folds, {self.folds}, but is {self.fold}")
        if not self.data:
            check(self.simulator)

    def defaults(self, attention: str, data: DataSize | None = None) -> Defaults:
        """Returns the options of `subquad reproduce transactions`, with more steps for more clients."""
        two_rounds = 0 if data is None else 2 * data.sequences // BATCH
        return Defaults(
            model={"layers": 1, "heads": 4, "head_dim": 16},
            training={
                "batch": BATCH,
                "steps": min(5000, max(300, two_rounds)),
                "learning_rate": 1e-2,
                "schedule": "cosine",
                "warm_up": 20,
                "evaluate_every": 50,
                "checkpoint_every": 100,
            },
            attention=ATTENTION_DEFAULTS.get(attention, {}),
        )
