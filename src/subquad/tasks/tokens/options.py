"""Options of the task tokens."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from subquad.attention import require_causal
from subquad.checking import AtLeastTwo, Count, FileName, Seed, Whole, Words, check
from subquad.data.named import located
from subquad.errors import OptionError
from subquad.models import ModelOptions, Size, decoder_size
from subquad.tasks.base import DataSize, Defaults, TaskOptions
from subquad.tasks.mlm.limits import check_length
from subquad.tasks.targets.labels import ColumnTarget
from subquad.tasks.tokens.forms import Form
from subquad.tasks.tokens.loading import Columns, SymbolSequences, load_symbols
from subquad.tasks.tokens.simulator import Simulator
from subquad.types import AttentionOptions

TOKENS_A_STEP = 4096
"""Default number of tokens in a batch."""
ROUNDS = 8
"""Number of rounds over the training sequences that the default of the steps aims at."""
MOST_SEQUENCES = 64
"""Largest default number of sequences in a batch."""
TYPICAL = 128
"""Number of tokens of a sequence that defaults are for before the data are read."""

Goal = Literal["auto", "next", "label"]


@dataclass(frozen=True)
class TokenOptions(TaskOptions):
    """Options of the task tokens: the data, their columns, the vocabulary, and what is evaluated."""

    data: FileName = ""  # lines of text, CSV, Parquet, .npy, FASTA, a folder, or a hub dataset OWNER/NAME; default: made up
    goal: Goal = "auto"  # next: predict each token from those before it; label; auto: label if there are labels
    characters: bool = False  # every character is a token, in place of words between spaces or commas
    sequence_column: Words = ""  # column of a table that has a sequence in each row; default: "sequence" or a usual name
    token_column: Words = ""  # column of a table that has a token in each row; default: "token" or a usual name
    id_column: Words = ""  # column that names the sequence of a row; default: "id" or a usual name
    order_column: Words = ""  # column by which the tokens of a sequence are ordered; default: a usual name, or the rows
    label_column: Words = ""  # column with the label of the sequence; default: "label" or a usual name
    target: ColumnTarget = "auto"  # what labels are: classes, several labels between |, or a number
    rare: Count = 2  # tokens that occur fewer times in the training sequences are unknown
    vocabulary_size: Count = 4096  # largest number of different tokens, the most frequent ones
    length: AtLeastTwo = 512  # to predict the next token: number of tokens that the model reads at a time
    context: Whole | None = None  # smallest number of tokens before each evaluated one; half of the length if not set
    latest: Count = 100_000  # to predict labels: largest number of tokens of a sequence; the last ones are kept
    split_seed: Seed = 0  # seed for dividing sequences into training, development and test, if their names do not tell
    held_out: Count = 65_536  # largest number of tokens in an evaluation during training
    tested: Count = 2_000_000  # largest number of tokens in the final evaluation
    evaluation_tokens: Count = 8192  # number of tokens per batch in evaluations
    sequences: Count = 1000  # number of made-up sequences
    symbols: AtLeastTwo = 16  # number of different symbols of made-up sequences
    mean_length: Count = 64  # mean length of made-up sequences
    data_seed: Seed = 0  # seed of the made-up sequences

    default_notes: ClassVar[str] = (
        "The defaults of --batch and --steps depend on the data: about 4096 tokens in a step, and eight rounds over the "
        "training sequences, from 300 to 2000 steps."
    )

    def check(self) -> None:
        if self.context is not None and self.context >= self.length:
            raise OptionError("context", f"must be below --length, which is {self.length}, but is {self.context}")
        if not self.data:
            check(self.simulator)

    @property
    def source(self) -> str:
        """Name of the source of the sequences, for messages."""
        return self.data or "the made-up data"

    @property
    def columns(self) -> Columns:
        """Names of the columns of a table."""
        names = (self.sequence_column, self.token_column, self.id_column, self.order_column)
        return Columns(*names, self.label_column)

    @property
    def simulator(self) -> Simulator:
        """Draws the made-up sequences."""
        return Simulator(self.sequences, self.symbols, self.mean_length, self.data_seed, self.goal == "label")

    @property
    def evaluated_context(self) -> int:
        """Smallest number of tokens before each evaluated token, except at the beginning of a sequence."""
        return self.length // 2 if self.context is None else self.context

    def load(self) -> SymbolSequences:
        """Reads the sequences, or makes them up."""
        if not self.data:
            return self.simulator.draw()
        form = Form(characters=True) if self.characters else None
        return load_symbols(located(self.data), self.columns, form=form, labels=self.goal != "next")

    def defaults(self, attention: str, data: DataSize | None = None) -> Defaults:
        """Returns options of a small model, with batches and steps by the size of the data."""
        length = TYPICAL if data is None else max(1, data.positions // max(1, data.sequences))
        if self.goal != "label":
            length = min(length, self.length)
        batch = min(MOST_SEQUENCES, max(1, TOKENS_A_STEP // length))
        rounds = 0 if data is None else ROUNDS * data.positions / (batch * length)
        training = {
            "batch": batch,
            "steps": min(2000, max(300, int(rounds))),
            "learning_rate": 3e-3,
            "optimizer": "adamw",
            "weight_decay": 0.01,
            "warm_up": 30,
            "schedule": "cosine",
            "evaluate_every": 50,
        }
        return Defaults({"layers": 2, "heads": 4, "head_dim": 16, "positions": "rotary"}, training)

    def size(self, attention: AttentionOptions, model: ModelOptions) -> Size:
        """Lower bound on the size of the model with the smallest vocabulary, and of made-up sequences."""
        made_up = 0 if self.data else self.sequences * self.mean_length * 8
        return decoder_size(2, attention, model, positions=0)._replace(data_bytes=made_up)

    def check_model(self, attention: AttentionOptions, model: ModelOptions) -> None:
        if self.goal == "next" or (self.goal == "auto" and not self.data):
            self.check_causal(attention, model)

    def check_causal(self, attention: AttentionOptions, model: ModelOptions) -> None:
        """Raises `SubquadError` if a model cannot predict the next token, or not of so many."""
        require_causal(attention)
        check_length(self.length, attention, model)
