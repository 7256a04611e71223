"""What the tasks of the Long Range Arena (Tay et al. 2020) share: options, batches, loss, accuracy and answers."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from numpy import ndarray
from torch import nn
from typing_extensions import TypedDict

from subquad.attention import require_length
from subquad.checking import STRICT, Count, FileName, Whole, excerpt, read_as
from subquad.data.buckets import bounded
from subquad.errors import SubquadError
from subquad.models import ModelOptions, Size, with_stack
from subquad.results import Row, place_of
from subquad.statistics import share_interval
from subquad.tasks.base import Best, Counted, DataSize, Defaults, LineForm, Predictions, Task, TaskOptions
from subquad.tasks.comparing import Judged, Rival, judged_means, share_rows
from subquad.tasks.counting import MOST_COUNTED, class_rivals
from subquad.tasks.lra.model import Pooling, SequenceClassifier, head_numbers
from subquad.tasks.lra.sources import FIRST, Example, Loaded, SequenceBatch, Source, collate
from subquad.tasks.mlm.limits import length_bytes
from subquad.types import AttentionOptions


class Unlabelled(NamedTuple):
    """Sequences of a user's file with their names, and sentences about what was left out."""

    names: list[str]
    examples: list[Example]
    complaints: tuple[str, ...] = ()


@dataclass(frozen=True)
class ArenaOptions(TaskOptions):
    """Options of all tasks of the Long Range Arena."""

    data: FileName = ""  # files of the task, as released or as described in docs/train.md; default: what the task brings
    pooling: Pooling = "mean"  # what is classified: the mean over positions, or the vector of a class token put in front
    held_out: Count = 512  # largest number of sequences in an evaluation
    tested: Whole = 2000  # largest number of sequences in the test; 0 for all
    evaluation_tokens: Count = 32_768  # number of tokens per batch in evaluations

    paired: ClassVar[bool] = False
    """Whether pairs of sequences are classified."""

    @property
    @abstractmethod
    def vocabulary(self) -> int:
        """Number of different tokens of the task."""

    @property
    @abstractmethod
    def longest(self) -> int:
        """Largest number of positions of a sequence, as far as it is known before data are read."""

    @abstractmethod
    def load(self) -> Loaded:
        """Reads or draws the sequences."""

    @abstractmethod
    def parse(self, words: Sequence[str], longest: int) -> Example:
        """Converts a user's sequence. Raises `SubquadError` if it is not one, or longer than `longest`."""

    @abstractmethod
    def spell(self, example: Example) -> str:
        """Writes a sequence in a few words."""

    def read_unlabelled(self, path: Path, longest: int) -> Unlabelled:
        """Reads a user's file of sequences without their classes."""
        raise SubquadError(f"a model of {self.kind} answers single sequences: give one, or --file with one in each line")

    def split_words(self, line: str) -> list[str]:
        """Splits a line of input into words for `parse`."""
        return line.split()

    def defaults(self, attention: str, data: DataSize | None = None) -> Defaults:
        """Returns a small model that learns each task in minutes, by the length of the sequences."""
        training = {
            "batch": max(4, min(32, 16_384 // self.longest)),
            "steps": 1000,
            "learning_rate": 2e-3,
            "optimizer": "adamw",
            "weight_decay": 0.01,
            "schedule": "cosine",
            "warm_up": 100,
            "evaluate_every": 100,
        }
        model = {"layers": 2, "heads": 4, "head_dim": 16}
        return Defaults(model, training, mechanism_sizes(attention, self.longest + 1))

    def size(self, attention: AttentionOptions, model: ModelOptions) -> Size:
        """Lower bound on the size of the model and of a training step, with two classes."""
        numbers = (self.vocabulary + FIRST) * model.model_dim + head_numbers(model, 2, paired=self.paired)
        return with_stack(numbers, attention, model)._replace(data_bytes=length_bytes(self.longest))

    def check_model(self, attention: AttentionOptions, model: ModelOptions) -> None:
        self.check_positions(self.longest, attention, model)

    def check_positions(self, longest: int, attention: AttentionOptions, model: ModelOptions) -> None:
        """Raises `SubquadError` if sequences are longer than the attention or learned positions allow."""
        positions = longest + (self.pooling == "first")
        if model.positions == "learned" and model.longest < positions:
            raise SubquadError(
                f"sequences have up to {positions} positions, but the model learns {model.longest}: give a larger --longest"
            )
        try:
            require_length(attention, positions)
        except SubquadError as error:
            raise SubquadError(f"sequences have up to {positions} positions: {error}") from None

    def prepare(self, learned: Mapping[str, Any] | None = None) -> "ArenaTask":
        """Returns the task. If `learned` is given, data are read only on first use."""
        return ArenaTask(self, learned)


def mechanism_sizes(attention: str, length: int) -> dict[str, int]:
    """Sizes with which a mechanism costs less than softmax at a length, in the proportions of the published comparison."""
    quarter = max(2, min(256, length // 4))
    sizes: dict[str, dict[str, int]] = {
        "favor": {"features": 64},
        "linformer": {"k": quarter, "max_length": length},
        "nystrom": {"landmarks": min(64, quarter)},
        "hybrid": {"block": min(32, quarter)},
        "window": {"reach": min(64, quarter)},
        "sparse": {"block": max(2, min(32, quarter // 2))},
        "lsh": {"chunk": min(32, quarter)},
        "infinity": {"segment": min(512, 2 * quarter), "basis": 2 * min(32, quarter // 2), "points": min(64, quarter)},
        "cosformer": {"max_length": length},
    }
    return sizes.get(attention, {})


class LearnedFields(TypedDict):
    """Types of the fields that a run stores about its sequences."""

    __pydantic_config__ = STRICT  # type: ignore[misc]

    labels: list[str]
    longest: Count
    sequences: Count


class ArenaTask(Task[SequenceBatch]):
    """Batches, model, loss and accuracy for labelled sequences."""

    best: ClassVar[Best | None] = Best("accuracy", "high")
    line_form: ClassVar[LineForm] = "text"

    def __init__(self, options: ArenaOptions, learned: Mapping[str, Any] | None = None) -> None:
        self.options = options
        self.kept = None if learned is None else read_as(LearnedFields, learned, f"{place_of(learned)}: learned")

    @property
    def kind(self) -> str:
        return self.options.kind

    @cached_property
    def loaded(self) -> Loaded:
        """The sequences. Raises `SubquadError` if they are not as many as those that the run was made with."""
        loaded = self.options.load()
        if len(loaded.labels) < 2:
            raise SubquadError(
                f"all sequences have the label {excerpt(loaded.labels[0])}: there is nothing to learn; give other data"
            )
        has = loaded.splits["train"].count
        if self.kept is not None and (had := self.kept["sequences"]) != has:
            raise SubquadError(
                f"the data in {self.options.data or 'this task'} are not those that the run was made with: it had {had:,} "
                f"training sequences, they are {has:,}; start a new run"
            )
        return loaded

    @property
    def labels(self) -> list[str]:
        """Names of the classes."""
        return self.loaded.labels if self.kept is None else list(self.kept["labels"])

    @property
    def longest(self) -> int:
        """Largest number of positions of a sequence, without the class token."""
        return self.loaded.longest if self.kept is None else int(self.kept["longest"])

    @property
    def train(self) -> Source:
        """The training sequences."""
        return self.loaded.splits["train"]

    @cached_property
    def development(self) -> list[Example]:
        """The sequences that are evaluated during training."""
        return self.loaded.splits["development"].first(self.options.held_out)

    @cached_property
    def test(self) -> list[Example]:
        """The sequences that are evaluated at the end."""
        source = self.loaded.splits["test"]
        return source.first(self.options.tested or source.count)

    @property
    def learned(self) -> dict[str, Any]:
        """The names of the classes, the largest length and the number of sequences, which a run stores."""
        return {"labels": self.labels, "longest": self.longest, "sequences": self.train.count}

    @property
    def complaints(self) -> tuple[str, ...]:
        """Sentences about what was left out of the data."""
        return self.loaded.complaints

    def build(
        self, attention: AttentionOptions, model: ModelOptions, generator: torch.Generator | None = None
    ) -> SequenceClassifier:
        options = self.options
        options.check_positions(self.longest, attention, model)
        return SequenceClassifier(
            options.vocabulary + FIRST,
            len(self.labels),
            attention,
            model,
            pooling=options.pooling,
            paired=options.paired,
            generator=generator,
        )

    def batch(self, size: int, generator: torch.Generator) -> SequenceBatch:
        """Training sequences."""
        return self.collate(self.train.draw(size, generator))

    def collate(self, examples: Sequence[Example]) -> SequenceBatch:
        """Sequences as a batch, with the class token in front of each if it is what is classified."""
        return collate(examples, class_token=self.options.pooling == "first")

    def loss(self, model: nn.Module, batch: SequenceBatch) -> Counted:
        """Cross-entropy of the class of each sequence."""
        logits = model(*batch[:-1]).float()
        return Counted(F.cross_entropy(logits, batch.label, reduction="sum"), self.count(batch))

    def count(self, batch: SequenceBatch) -> int:
        return len(batch.label)

    def evaluate(self, model: nn.Module, generator: torch.Generator) -> dict[str, float]:
        """Accuracy on the development split."""
        return {"accuracy": float(self._right(model, self.development).mean())}

    def final(self, model: nn.Module) -> list[Row]:
        """Accuracy on the test with its interval, and that of always guessing the class most frequent in development."""
        right = self._right(model, self.test)
        usual = np.bincount([example.label for example in self.development]).argmax()
        guessed = float(np.mean([example.label == usual for example in self.test]))
        return [
            {"metric": "accuracy", "split": "test", **share_interval(int(right.sum()), len(right))._asdict()},
            {"metric": "accuracy_of_most_frequent", "split": "test", "value": guessed},
        ]

    def lengths(self) -> dict[str, Int[ndarray, "sequences"]]:
        splits = {"development": self.development, "test": self.test}
        known = {name: np.array([example.positions for example in examples]) for name, examples in splits.items()}
        return {**super().lengths(), **known}

    def data_rows(self) -> list[Row]:
        """Shares of the classes among the development sequences."""
        counts = np.bincount([example.label for example in self.development], minlength=len(self.labels))
        return share_rows("development", "class", dict(zip(self.labels, (counts / counts.sum()).tolist(), strict=True)))

    def judge(self, model: nn.Module) -> Judged:
        """Whether the class of each test sequence is right."""
        right = self._right(model, self.test)
        return judged_means("accuracy", "high", "share", right, np.ones(len(right)))

    def rivals(self) -> dict[str, Rival]:
        """The most frequent class and, of single sequences that are stored, a linear model of the counts of tokens."""
        if self.options.paired:
            return {}
        train, test = self.train.first(MOST_COUNTED), self.test
        known, asked = ([example.tokens for example in examples] for examples in (train, test))
        labels, truth = (np.array([example.label for example in examples]) for examples in (train, test))
        return class_rivals(known, labels, asked, truth)

    def samples(self, model: nn.Module, generator: torch.Generator, count: int) -> list[dict[str, str]]:
        """Sequences of the development split with predicted and true classes."""
        order = torch.randperm(len(self.development), generator=generator)[:count].tolist()
        chosen = [self.development[place] for place in order]
        answers = self.scores(model, chosen).argmax(1)
        return [
            {"given": self.options.spell(example), "answered": self.labels[answer], "right": self.labels[example.label]}
            for example, answer in zip(chosen, answers, strict=True)
        ]

    def words(self, line: str) -> list[str]:
        return self.options.split_words(line)

    def reply(self, model: nn.Module, words: Sequence[str]) -> str:
        """The most probable class of a user's sequence, followed by the probability of each class."""
        scores = self.scores(model, [self.options.parse(words, self.longest)])[0]
        order = scores.argsort()[::-1]
        return f"{self.labels[order[0]]}  ({', '.join(f'{self.labels[at]} {scores[at]:.0%}' for at in order)})"

    def predict(self, model: nn.Module, path: Path) -> Predictions:
        """The class of each sequence in a file or folder, and the probability of each class."""
        unlabelled = self.options.read_unlabelled(path, self.longest)
        lines = [
            [name, self.labels[row.argmax()], *(f"{share:.4f}" for share in row)]
            for name, row in zip(unlabelled.names, self.scores(model, unlabelled.examples), strict=True)
        ]
        return Predictions(["sequence", "label", *self.labels], lines, unlabelled.complaints)

    @torch.no_grad()
    def scores(self, model: nn.Module, examples: Sequence[Example]) -> Float[ndarray, "sequences classes"]:
        """Probability of each class for each sequence."""
        model.eval()
        device = next(model.parameters()).device
        probabilities = np.zeros((len(examples), len(self.labels)))
        for rows in bounded(np.array([example.positions for example in examples]), self.options.evaluation_tokens):
            batch = self.collate([examples[row] for row in rows])
            logits = model(*(part.to(device) for part in batch[:-1]))
            probabilities[rows] = logits.double().softmax(1).cpu().numpy()
        return probabilities

    def _right(self, model: nn.Module, examples: Sequence[Example]) -> Float[ndarray, "sequences"]:
        labels = np.array([example.label for example in examples])
        return (self.scores(model, examples).argmax(1) == labels).astype(float)
