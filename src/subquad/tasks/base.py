"""The contract of a task: what is to be learned, and what its models can be asked.

`TaskOptions` are the options of a task, a frozen dataclass: they can be written to a file, and say how large a model will be
before anything is read. `TaskOptions.prepare` gives the `Task` itself, which has the data, batches, models, losses and
metrics. A task without data can be both in one class, as `Copy` is.

A new task is one file and one line in `TASKS`. What a task cannot do it leaves out: the defaults below say so in a sentence
where a command asks for it.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor, nn

from subquad.checking import Checked
from subquad.errors import SubquadError
from subquad.models import ModelOptions, Size
from subquad.results import Row
from subquad.types import AttentionOptions

Batch = TypeVar("Batch", bound=tuple[Tensor, ...])
"""A named tuple of tensors. The first axis of each is the sequences; the first tensor's second axis is the positions."""

LineForm = Literal["words", "text", "none"]


class Counted(NamedTuple):
    """The sum of some losses and their number, so that the parts of a batch add up to the whole."""

    total: Tensor
    number: int


class Best(NamedTuple):
    """The metric of `Task.evaluate` that tells which weights of a run are the best."""

    metric: str
    good: Literal["low", "high"]


class DataSize(NamedTuple):
    """The size of the data that a task learns from."""

    sequences: int
    positions: int
    """Positions of all sequences together: events, tokens or characters, as the task counts them."""


class Defaults(NamedTuple):
    """Values of options that work well for a task, by the names of the options. Others have the defaults of their class."""

    model: Mapping[str, Any] = {}
    training: Mapping[str, Any] = {}
    attention: Mapping[str, Any] = {}


class Predictions(NamedTuple):
    """A table with the answers for a file of sequences, and sentences about rows of the file that were left out."""

    columns: list[str]
    lines: list[list[str]]
    complaints: tuple[str, ...]


class Stream(Protocol):
    """Reads events of several sequences as they come, and forecasts what follows in each."""

    forgotten: int
    """How many times a sequence was forgotten because too many went on at once."""

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

    def forecast(self, name: str) -> list[str]:
        """One line with the forecast of a sequence's next event."""
        ...


class Task(ABC, Generic[Batch]):
    """What is to be learned: batches, the model, the loss, the metrics. It does not know how it is trained."""

    @property
    @abstractmethod
    def kind(self) -> str:
        """Name of the task in `TASKS`."""

    best: ClassVar[Best | None] = None
    """What tells a run's best weights. With None, a run ends with its last weights."""
    units: ClassVar[Mapping[str, str]] = {}
    """Units of the metrics that are not shares of a whole."""
    line_form: ClassVar[LineForm] = "none"
    """How `reply` takes a sequence: as words between spaces or commas, as a text in which commas count, or not at all."""
    takes: ClassVar[str] = "does not answer single sequences"
    """The rest of the sentence "a model of KIND ...", which says what `subquad predict` can give a model instead."""
    reads_texts: ClassVar[bool] = False
    """Whether `examples` can be taken from any text."""

    @abstractmethod
    def build(self, attention: AttentionOptions, model: ModelOptions, generator: torch.Generator | None = None) -> nn.Module:
        """A model for the task with fresh weights."""

    @abstractmethod
    def batch(self, size: int, generator: torch.Generator) -> Batch:
        """Sequences to learn from."""

    @abstractmethod
    def loss(self, model: nn.Module, batch: Batch) -> Counted:
        """The loss that training makes small."""

    @abstractmethod
    def count(self, batch: Batch) -> int:
        """How many losses a batch has, without computing them."""

    @abstractmethod
    def evaluate(self, model: nn.Module, generator: torch.Generator) -> dict[str, float]:
        """Metrics on held-out sequences, measured while training."""

    def pieces(self, batch: Batch) -> int:
        """How many pieces `losses` cuts a batch into."""
        return 1

    def losses(self, model: nn.Module, batch: Batch) -> Iterator[Counted]:
        """The loss of one piece of a batch after the other.

        The gradient of each is taken before the next is computed, so only one piece's activations are held at a time.
        """
        yield self.loss(model, batch)

    def samples(self, model: nn.Module, generator: torch.Generator, count: int) -> list[dict[str, str]]:
        """Questions, the model's answers and the right ones: the fields ``given``, ``answered`` and ``right`` of rows."""
        return []

    def final(self, model: nn.Module) -> list[Row]:
        """Rows about the trained model: metric, value and split, and low and high where an interval is known."""
        return []

    @property
    def learned(self) -> dict[str, Any] | None:
        """What a run keeps so that its model can read new data without the old ones; None if nothing is needed."""
        return None

    @property
    def complaints(self) -> tuple[str, ...]:
        """Sentences about what was left out of the data."""
        return ()

    @property
    def data_size(self) -> DataSize | None:
        """The size of the data, for a task whose default options depend on it."""
        return None

    def begin(self, model: nn.Module, trained: nn.Module) -> None:
        """Puts weights of a model that was trained before into a fresh one."""
        raise SubquadError(f"a model of {self.kind} starts with fresh weights: leave --start out")

    def words(self, line: str) -> list[str]:
        """A line of input as `reply` takes it."""
        return (line if self.line_form == "text" else line.replace(",", " ")).split()

    def require_reply(self) -> None:
        """Refuses a task without `reply`, before any sequence is read."""
        if self.line_form == "none":
            raise SubquadError(f"a model of {self.kind} {self.takes}")

    def reply(self, model: nn.Module, words: Sequence[str]) -> str:
        """The answer to a user's sequence. A task that has one also sets `line_form`."""
        raise SubquadError(f"a model of {self.kind} {self.takes}")

    def predict(self, model: nn.Module, path: Path) -> Predictions:
        """The answers for all sequences in a file or folder."""
        raise SubquadError(f"a model of {self.kind} answers sequences and gives no scores: give a sequence, not --data")

    def follow(self, model: nn.Module, sequences: int) -> Stream:
        """A reader of streams that remembers up to so many sequences."""
        raise SubquadError(f"a model of {self.kind} follows no stream: --follow is for runs on events")

    def require_texts(self) -> None:
        """Refuses a task whose examples cannot be taken from texts, before any text is read."""
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
        """Batches of one sequence each, up to so many, for looking at a model's attention.

        A task with `reads_texts` takes other texts than its own, and a length in tokens.
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
        """Folder of the run whose weights a new model starts with; empty for fresh weights."""
        return ""

    default_notes: ClassVar[str] = ""
    """A sentence for the help about defaults that depend on the data."""

    def defaults(self, attention: str, data: DataSize | None = None) -> Defaults:
        """Options of the model, the training and the named attention that work well; `data` is None before they are read."""
        return Defaults()

    @abstractmethod
    def size(self, attention: AttentionOptions, model: ModelOptions) -> Size:
        """Lower bounds for the memory of the model and of a training step, known before data are read."""

    def check_model(self, attention: AttentionOptions, model: ModelOptions) -> None:
        """Refuses an attention or a model that cannot learn the task, before data are read."""

    @abstractmethod
    def prepare(self, learned: Mapping[str, Any] | None = None) -> Task[Any]:
        """The task. With what a run learned before, the data are read only when they are needed."""
