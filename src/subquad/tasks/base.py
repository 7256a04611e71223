"""The contract of a task: its data, model, loss and metrics, and the questions that its models can answer.

`TaskOptions` are the options of a task, a frozen dataclass. They can be written to a file, and they tell the size of a model
before data are read. `TaskOptions.prepare` returns the `Task` itself, with data, batches, models, losses and metrics. A task
without data can be both in one class, as `Copy` is.

A new task is one file and one line in `TASKS`. Methods that a task does not implement raise an error with a sentence for
the user.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal, NamedTuple, Protocol, TypeVar

import torch
from jaxtyping import Float
from numpy import ndarray
from torch import Tensor, nn

from subquad.checking import BelowOne, Checked, Count, NonNegative, Positive, Seed
from subquad.errors import SubquadError
from subquad.models import ModelOptions, Size
from subquad.results import Row
from subquad.tasks.comparing import Best as Best
from subquad.tasks.comparing import Comparable
from subquad.types import AttentionOptions

Batch = TypeVar("Batch", bound=tuple[Tensor, ...])
"""A named tuple of tensors. The first axis of each is the sequences; the second axis of the first is the positions."""

LineForm = Literal["words", "text", "none"]


DATA_FIELDS = ("data", "text", "label")
"""Names of task options that choose the data."""


class Counted(NamedTuple):
    """The sum of some losses and their number, so that the losses of parts of a batch can be added."""

    total: Tensor
    number: int


class DataSize(NamedTuple):
    """The size of the training data of a task."""

    sequences: int
    positions: int
    """Number of positions in all sequences together: events, tokens or characters, depending on the task."""


class Defaults(NamedTuple):
    """Values of options that work well for a task, by name. Options not named have the defaults of their class."""

    model: Mapping[str, Any] = {}
    training: Mapping[str, Any] = {}
    attention: Mapping[str, Any] = {}


class Cut(NamedTuple):
    """A task whose models read only a part of each sequence."""

    options: "TaskOptions"
    end: Literal["first", "last"]
    """Which positions are read."""


class Predictions(NamedTuple):
    """A table with the answers for a file of sequences, and sentences about rows of the file that were left out."""

    columns: list[str]
    lines: list[list[str]]
    complaints: tuple[str, ...]


class Vectors(NamedTuple):
    """A vector for each sequence or event of a file, and sentences about rows of the file that were left out."""

    unit: str
    """What the names are those of, such as "client"."""
    names: list[str]
    vectors: Float[ndarray, "vectors width"]
    complaints: tuple[str, ...]
    places: list[int] | None = None
    """Number of the event in its sequence, from 1, for each vector; None if there is one vector for each sequence."""


@dataclass(frozen=True)
class Completion(Checked):
    """How a text is continued."""

    tokens: Count = 200  # number of tokens to write
    temperature: NonNegative = 0.8  # 0 always takes the likeliest token; 1 draws as the model predicts
    seed: Seed = 0  # seed of the draws


@dataclass(frozen=True)
class Outlook(Checked):
    """How events after the last one are forecast by sampling."""

    events: Count = 10  # number of events to forecast for each sequence
    samples: Count = 100  # number of random continuations of each sequence
    window: Positive | None = None  # length of the time in which events are counted, instead of a number of events
    points: Count = 1  # number of equal parts of the window in which events are counted
    seed: Seed = 0  # seed of the draws


@dataclass(frozen=True)
class Drawing(Checked):
    """Which pictures a model draws, and how."""

    number: Count = 8  # number of pictures
    known: BelowOne = 0.5  # share of each picture that is given to the model, from the top; 0 draws new pictures
    temperature: NonNegative = 1.0  # 0 always takes the likeliest value; 1 draws as the model predicts
    seed: Seed = 0  # seed of the draws


class Stream(Protocol):
    """Reads events of several sequences as they come, and forecasts the next event of each sequence."""

    forgotten: int
    """How many times a sequence was forgotten because too many were active at once."""

    @property
    def columns(self) -> list[str]:
        """Names of the columns of a forecast."""
        ...

    @property
    def known(self) -> Iterable[str]:
        """Names of the sequences that are remembered."""
        ...

    def take(self, words: Sequence[str]) -> str | None:
        """Reads one event and returns the name of its sequence, or None if the words ended a sequence."""
        ...

    def take_record(self, record: Mapping[str, str]) -> str | None:
        """Reads one event whose parts are named as the columns of a table, and returns the name of its sequence."""
        ...

    def forecast(self, name: str) -> list[str]:
        """The fields of a forecast of the next event of a sequence."""
        ...


class Task(Comparable, ABC, Generic[Batch]):
    """A task with its data: batches, model, loss and metrics. It does not know how it is trained."""

    @property
    @abstractmethod
    def kind(self) -> str:
        """Name of the task in `TASKS`."""

    best: ClassVar[Best | None] = None
    """The metric that decides a run's best weights. With None, a run ends with its last weights."""

    @property
    def chosen_by(self) -> Best | None:
        """The metric that decides a run's best weights: `best`, unless it depends on the data."""
        return self.best

    units: ClassVar[Mapping[str, str]] = {}
    """Units of metrics, by name. A metric that is not listed is a share of a whole."""
    line_form: ClassVar[LineForm] = "none"
    """How `reply` takes a sequence: as words separated by spaces or commas, as a text with its commas, or not at all."""
    takes: ClassVar[str] = "does not answer single sequences"
    """Says what `subquad predict` can give a model of this task instead, as the rest of "a model of KIND ..."."""
    completes: ClassVar[bool] = False
    """Whether `complete` continues texts."""
    draws: ClassVar[bool] = False
    """Whether `draw` finishes pictures and draws new ones."""
    reads_files: ClassVar[bool] = False
    """Whether a single word that names a file or folder stands for its sequences, so that `predict` answers it."""
    reads_texts: ClassVar[bool] = False
    """Whether `examples` can be taken from arbitrary texts."""

    @abstractmethod
    def build(self, attention: AttentionOptions, model: ModelOptions, generator: torch.Generator | None = None) -> nn.Module:
        """Returns a model for the task with initial weights."""

    @abstractmethod
    def batch(self, size: int, generator: torch.Generator) -> Batch:
        """Returns a batch of `size` training sequences."""

    @abstractmethod
    def loss(self, model: nn.Module, batch: Batch) -> Counted:
        """Returns the loss to be minimized, summed over a batch, and the number of its terms."""

    @abstractmethod
    def count(self, batch: Batch) -> int:
        """Number of terms of the loss of a batch, without computing it."""

    @abstractmethod
    def evaluate(self, model: nn.Module, generator: torch.Generator) -> dict[str, float]:
        """Metrics on held-out sequences, measured during training."""

    def pieces(self, batch: Batch) -> int:
        """Number of pieces that `losses` cuts a batch into."""
        return 1

    def losses(self, model: nn.Module, batch: Batch) -> Iterator[Counted]:
        """Yields the loss of each piece of a batch in turn.

        The gradient of a piece is computed before the next piece, so only one piece's activations are held at a time.
        """
        yield self.loss(model, batch)

    @property
    def needs_whole_batch(self) -> bool:
        """Whether the loss compares the sequences of a batch with each other, so that a batch cannot be divided."""
        return False

    @property
    def can_be_cut(self) -> bool:
        """Whether `cut_loss` gives the loss of a stretch of each sequence, so that processes can share sequences."""
        return False

    def model_length(self, batch: Batch) -> int:
        """Number of positions that the model of a task that can be cut gets for a batch."""
        return batch[0].shape[1]

    def cut_loss(self, model: nn.Module, batch: Batch, start: int, stop: int) -> Tensor:
        """Sum of the losses at the positions from `start` to `stop`, by a model that is given these only.

        By default each tensor of a batch has a value for each position.
        """
        return self.loss(model, type(batch)(*(tensor[:, start:stop] for tensor in batch))).total

    def samples(self, model: nn.Module, generator: torch.Generator, count: int) -> list[dict[str, str]]:
        """Questions, the model's answers and the right answers: fields ``given``, ``answered`` and ``right`` of rows."""
        return []

    def final(self, model: nn.Module) -> list[Row]:
        """Rows about the trained model with metric, value and split, and with low and high if an interval is known."""
        return []

    @property
    def learned(self) -> dict[str, Any] | None:
        """What a run stores so that its model can read new data without the training data; None if nothing is needed."""
        return None

    @property
    def complaints(self) -> tuple[str, ...]:
        """Sentences about what was left out of the data."""
        return ()

    @property
    def description(self) -> list[str]:
        """Lines that say what the data hold, printed before training."""
        return []

    @property
    def data_size(self) -> DataSize | None:
        """The size of the data, for a task whose default options depend on it; None for other tasks."""
        return None

    def cut(self, length: int) -> Cut | None:
        """The same task with sequences cut to `length` positions and the same answers, or None if that has no meaning."""
        return None

    def begin(self, model: nn.Module, trained: nn.Module) -> None:
        """Copies weights of the trained model into a new one."""
        raise SubquadError(f"a model of {self.kind} starts with fresh weights: leave --start out")

    def words(self, line: str) -> list[str]:
        """Splits a line of input into words for `reply`."""
        return (line if self.line_form == "text" else line.replace(",", " ")).split()

    def require_reply(self) -> None:
        """Raises `SubquadError` if the task has no `reply`, before any sequence is read."""
        if self.line_form == "none":
            raise SubquadError(f"a model of {self.kind} {self.takes}")

    def reply(self, model: nn.Module, words: Sequence[str]) -> str:
        """The model's answer to a user's sequence. A task that implements it also sets `line_form`."""
        raise SubquadError(f"a model of {self.kind} {self.takes}")

    def require_completion(self) -> None:
        """Raises `SubquadError` if the task does not continue texts, before any text is read."""
        if not self.completes:
            raise SubquadError(
                f"a model of {self.kind} continues no text: leave out --text, --tokens, --temperature and --seed"
            )

    def complete(self, model: nn.Module, text: str, how: Completion) -> str:
        """The continuation of a text, without the text. A task that implements it also sets `completes`."""
        raise NotImplementedError

    def require_drawing(self) -> None:
        """Raises `SubquadError` if the task draws no pictures, before any is read."""
        if not self.draws:
            raise SubquadError(f"a model of {self.kind} draws no pictures: leave out --complete and --samples")

    def draw(self, model: nn.Module, how: Drawing, path: Path | None = None) -> bytes:
        """A PNG file with pictures that the model finished or drew; those to finish are in `path`, or in the test split.

        A task that implements it also sets `draws`.
        """
        raise NotImplementedError

    def predict(self, model: nn.Module, path: Path) -> Predictions:
        """The model's answers for all sequences in a file or folder."""
        raise SubquadError(f"a model of {self.kind} answers sequences and gives no scores: give a sequence, not --data")

    def embed(self, model: nn.Module, path: Path) -> Vectors:
        """A vector for each sequence, or for each event, in a file or folder."""
        raise SubquadError(
            f"a model of {self.kind} gives no vectors: subquad embed is for runs on transactions and on events"
        )

    def forecast(self, model: nn.Module, path: Path, outlook: Outlook) -> Predictions:
        """Forecasts of the events after the last one of each sequence in a file or folder, by sampling."""
        raise SubquadError(
            f"a model of {self.kind} forecasts no events: leave out --horizon, --samples, --window and --points"
        )

    def follow(self, model: nn.Module, sequences: int, *, score: bool = False) -> Stream:
        """Returns a reader of event streams that remembers up to `sequences` sequences.

        With `score`, it says how unusual each event is instead of forecasting the next one.
        """
        raise SubquadError(f"a model of {self.kind} follows no stream: --follow is for runs on events")

    def require_texts(self) -> None:
        """Raises `SubquadError` if the task's examples cannot be taken from texts, before any text is read."""
        if not self.reads_texts:
            raise SubquadError(
                f"a model of {self.kind} is looked at with sequences of its task: leave --text and --length out"
            )

    def examples(
        self,
        count: int,
        generator: torch.Generator,
        *,
        texts: Sequence[str] | None = None,
        length: int | None = None,
    ) -> list[Batch]:
        """Returns up to `count` batches of one sequence each, for examining a model's attention.

        A task with `reads_texts` accepts texts other than its own, and a length in tokens.
        """
        return [self.batch(1, generator) for _ in range(count)]


@dataclass(frozen=True)
class TaskOptions(Checked, ABC):
    """Options of a task: a frozen dataclass, whose `asdict` is the file format."""

    @property
    @abstractmethod
    def kind(self) -> str:
        """Name of the task in `TASKS`."""

    @property
    def start(self) -> str:
        """Folder of the run whose weights a new model starts with; empty for random initial weights."""
        return ""

    default_notes: ClassVar[str] = ""
    """A sentence for the help about defaults that depend on the data."""

    def defaults(self, attention: str, data: DataSize | None = None) -> Defaults:
        """Returns default options of model, training and attention for the task. `data` is None before the data are read."""
        return Defaults()

    @abstractmethod
    def size(self, attention: AttentionOptions, model: ModelOptions) -> Size:
        """Lower bounds on the memory of the model and of a training step, known before data are read."""

    def check_model(self, attention: AttentionOptions, model: ModelOptions) -> None:
        """Raises `SubquadError` if a model with these options cannot learn the task, before data are read."""

    @abstractmethod
    def prepare(self, learned: Mapping[str, Any] | None = None) -> Task[Any]:
        """Returns the task. If `learned` is given, which an earlier run stored, data are read only on first use."""
