"""Text classification with a new encoder or the encoder of a masked language model (Devlin et al. 2019, section 3.2)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from numpy import ndarray
from torch import Tensor, nn
from typing_extensions import TypedDict

from subquad.checking import STRICT, Count, FileName, Seed, Whole, excerpt, read_as
from subquad.data.buckets import Buckets, bounded
from subquad.data.ragged import keep_of, pad
from subquad.data.splits import shuffled
from subquad.data.texts import Documents, load_texts, python_docstrings
from subquad.errors import SubquadError
from subquad.models import ModelOptions, Size, linear_numbers, with_stack
from subquad.results import Row, Run, place_of
from subquad.statistics import grouped_mean
from subquad.tasks.base import Best, Counted, DataSize, Defaults, LineForm, Task, TaskOptions
from subquad.tasks.classify.model import TextClassifier
from subquad.tasks.mlm.limits import check_length, length_bytes
from subquad.tasks.mlm.model import MaskedModel
from subquad.tasks.mlm.vocabulary import (
    PAD,
    UNKNOWN,
    Vocabulary,
    VocabularyKind,
    learn_vocabulary,
    vocabulary_from,
)
from subquad.types import AttentionOptions

BATCH = 32
"""Default number of texts in a training step."""
SHOWN = 200  # number of characters shown of a text in a sample
LEAST = 10  # smallest number of labelled texts that can be split


@dataclass(frozen=True)
class Classify(TaskOptions):
    """Classify texts: your own, or Python's docstrings by package. Starts from scratch or from a run of the task mlm."""

    text: FileName = ""  # *.jsonl(.gz) with "text" and "label" in each line, or a folder; default: Python's docstrings
    test_text: FileName = ""  # labelled texts for the test, in the same format; default: a tenth of the texts
    start: FileName = ""  # run of the task mlm to start from; its attention, model options, weights and vocabulary are used
    frozen: bool = False  # train only the head and keep the encoder of --start fixed
    examples: Whole = 0  # largest number of training texts; 0 for all
    vocabulary: VocabularyKind = "wordpiece"  # kind of tokens, if --start is not given
    vocabulary_size: Count = 4096  # largest number of different tokens, if --start is not given
    lowercase: bool = True  # convert text to lower case, for wordpiece, if --start is not given
    length: Count = 256  # number of tokens of each text that are read, from its beginning
    split_seed: Seed = 0  # seed for dividing texts into training, development and test
    held_out: Count = 1000  # largest number of texts in an evaluation
    evaluation_tokens: Count = 16_384  # number of tokens per batch in evaluations
    kind: str = field(default="classify", init=False)

    default_notes: ClassVar[str] = (
        "The default of --steps is for up to 1,600 training texts. With more, it is two rounds over them, at most 5000."
    )

    def check(self) -> None:
        if self.frozen and not self.start:
            raise SubquadError("--frozen is for an encoder that has learned something: give --start RUN too")

    @property
    def source(self) -> str:
        """Name of the source of the texts, for messages."""
        return self.text or "this Python"

    def defaults(self, attention: str, data: DataSize | None = None) -> Defaults:
        """Returns the options of the classifiers in `subquad reproduce linformer`, with more steps for more texts."""
        two_rounds = 0 if data is None else 2 * data.sequences // BATCH
        training = {
            "batch": BATCH,
            "steps": min(5000, max(100, two_rounds)),
            "learning_rate": 2e-3,
            "optimizer": "adamw",
            "schedule": "cosine",
            "warm_up": 20,
            "evaluate_every": 25,
        }
        slots = {"k": max(1, self.length // 2), "max_length": self.length} if attention == "linformer" else {}
        return Defaults({"layers": 2, "heads": 4, "head_dim": 16, "positions": "rotary"}, training, slots)

    def size(self, attention: AttentionOptions, model: ModelOptions, symbols: int = 0, classes: int = 2) -> Size:
        """Lower bound on the size of the model, given the numbers of tokens and classes, which the texts determine."""
        head = linear_numbers(model.model_dim, classes)
        size = with_stack(symbols * model.model_dim + head, attention, model)
        return size._replace(trained=head if self.frozen else size.trained, data_bytes=length_bytes(self.length))

    def check_model(self, attention: AttentionOptions, model: ModelOptions) -> None:
        check_length(self.length, attention, model)

    def prepare(self, learned: Mapping[str, Any] | None = None) -> "ClassifyTask":
        """Returns the task. If `learned` is given, the texts are read only on first use."""
        return ClassifyTask(self, learned)


class LearnedFields(TypedDict):
    """Types of the fields that a run stores about its texts."""

    __pydantic_config__ = STRICT  # type: ignore[misc]

    vocabulary: dict[str, Any]
    labels: list[str]
    texts: Whole


class TextBatch(NamedTuple):
    """Token ids of texts, a mask that is false at padding, and class indices."""

    tokens: Int[Tensor, "b n"]
    keep: Bool[Tensor, "b n"]
    label: Int[Tensor, "b"]


class _Split(NamedTuple):
    """Texts with their token ids and class indices."""

    texts: list[str]
    tokens: list[Int[ndarray, "n"]]
    labels: Int[ndarray, "texts"]


class ClassifyTask(Task[TextBatch]):
    """Batches, model, loss and metrics for labelled texts."""

    kind = "classify"
    best: ClassVar[Best | None] = Best("accuracy", "high")
    line_form: ClassVar[LineForm] = "text"

    def __init__(self, options: Classify, learned: Mapping[str, Any] | None = None) -> None:
        self.options = options
        self.kept = None if learned is None else read_as(LearnedFields, learned, f"{place_of(learned)}: learned")

    @cached_property
    def documents(self) -> Documents:
        """All labelled texts but those of --test-text."""
        text = self.options.text
        documents = load_texts(Path(text), labelled=True) if text else python_docstrings()
        if self.kept is not None and (had := self.kept["texts"]) != len(documents.texts):
            raise SubquadError(
                f"the texts in {self.options.source} are not those that the run was made with: it had {had:,}, they are "
                f"{len(documents.texts):,}; start a new run"
            )
        return documents

    @cached_property
    def tested(self) -> Documents | None:
        """The texts of --test-text, without duplicates of the other texts; None if the option is not given."""
        if not self.options.test_text:
            return None
        documents, known = load_texts(Path(self.options.test_text), labelled=True), set(self.documents.texts)
        new = [at for at, text in enumerate(documents.texts) if text not in known]
        if not new:
            raise SubquadError(f"all texts in {self.options.test_text} are in {self.options.source} too: give others")
        lost = len(documents.texts) - len(new)
        complaint = (f"{lost:,} texts for the test are left out, which are in {self.options.source} too",) if lost else ()
        columns = (documents.names, documents.texts, documents.labels)
        names, texts, labels = ([column[at] for at in new] for column in columns)
        return Documents(names, texts, labels, (*documents.complaints, *complaint))

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """The vocabulary of the run to start from, or a vocabulary learned from the training texts."""
        if self.kept is not None:
            return vocabulary_from(self.kept["vocabulary"])
        options = self.options
        if options.start:
            return vocabulary_from(started(options.start)["learned"]["vocabulary"])
        texts = [self.documents.texts[at] for at in self._places["train"]]
        return learn_vocabulary(options.vocabulary, texts, most=options.vocabulary_size, lowercase=options.lowercase)

    @cached_property
    def labels(self) -> list[str]:
        """Names of the classes."""
        if self.kept is not None:
            return list(self.kept["labels"])
        labels = sorted({self.documents.labels[at] for at in self._places["train"]})
        if len(labels) < 2:
            raise SubquadError(
                f"all texts in {self.options.source} have the label {excerpt(labels[0])}: there is nothing to learn"
            )
        return labels

    @cached_property
    def train(self) -> _Split:
        """The training texts."""
        return self._split(self.documents, self._places["train"])

    @cached_property
    def development(self) -> _Split:
        """The texts that are evaluated during training."""
        return self._split(self.documents, self._places["development"][: self.options.held_out])

    @cached_property
    def test(self) -> _Split:
        """The texts that are evaluated at the end."""
        if self.tested is not None:
            return self._split(self.tested, np.arange(len(self.tested.texts)))
        return self._split(self.documents, self._places["test"])

    @cached_property
    def buckets(self) -> Buckets:
        """Indices of the training texts, grouped by length."""
        lengths = np.array([len(tokens) for tokens in self.train.tokens])
        return Buckets(np.arange(len(lengths)), lengths)

    @property
    def learned(self) -> dict[str, Any]:
        """The vocabulary, the labels and the number of texts, which a run stores."""
        return {"vocabulary": self.vocabulary.as_json(), "labels": self.labels, "texts": len(self.documents.texts)}

    @property
    def data_size(self) -> DataSize:
        """Numbers of training texts and of their tokens."""
        return DataSize(len(self.train.tokens), sum(map(len, self.train.tokens)))

    @property
    def complaints(self) -> tuple[str, ...]:
        """Sentences about texts that were left out."""
        return (*self.documents.complaints, *(() if self.tested is None else self.tested.complaints))

    def build(
        self, attention: AttentionOptions, model: ModelOptions, generator: torch.Generator | None = None
    ) -> TextClassifier:
        self.options.check_model(attention, model)
        built = TextClassifier(self.vocabulary.size, len(self.labels), attention, model, generator)
        built.encoder.requires_grad_(not self.options.frozen)
        return built

    def begin(self, model: nn.Module, trained: nn.Module) -> None:
        """Copies the encoder of a masked language model into the classifier."""
        assert isinstance(model, TextClassifier)
        assert isinstance(trained, MaskedModel)
        model.encoder.load_state_dict(trained.encoder.state_dict())

    def batch(self, size: int, generator: torch.Generator) -> TextBatch:
        """Training texts of similar length."""
        return _pad(self.train, self.buckets.draw(size, generator))

    def loss(self, model: nn.Module, batch: TextBatch) -> Counted:
        """Cross-entropy of the class of each text."""
        logits = model(batch.tokens, keep=batch.keep).float()
        return Counted(F.cross_entropy(logits, batch.label, reduction="sum"), self.count(batch))

    def count(self, batch: TextBatch) -> int:
        return len(batch.label)

    def evaluate(self, model: nn.Module, generator: torch.Generator) -> dict[str, float]:
        """Accuracy on the development split."""
        return {"accuracy": float(self._right(model, self.development).mean())}

    def final(self, model: nn.Module) -> list[Row]:
        """Accuracy on the test split with its interval, and that of always guessing the most frequent training class."""
        right = self._right(model, self.test)
        usual = float((self.test.labels == np.bincount(self.train.labels).argmax()).mean())
        return [
            {"metric": "accuracy", "split": "test", **grouped_mean(right, np.ones(len(right), np.int64))._asdict()},
            {"metric": "accuracy_of_most_frequent", "split": "test", "value": usual},
        ]

    def samples(self, model: nn.Module, generator: torch.Generator, count: int) -> list[dict[str, str]]:
        """Texts of the development split with predicted and true classes."""
        split = self.development
        rows = torch.randperm(len(split.texts), generator=generator)[:count].numpy()
        chosen = _Split([split.texts[at] for at in rows], [split.tokens[at] for at in rows], split.labels[rows])
        answers = self.scores(model, chosen).argmax(1)
        return [
            {"given": text[:SHOWN], "answered": self.labels[answer], "right": self.labels[label]}
            for text, answer, label in zip(chosen.texts, answers, chosen.labels, strict=True)
        ]

    def reply(self, model: nn.Module, words: Sequence[str]) -> str:
        """The most probable class of a user's text, followed by the probability of each class."""
        (tokens,) = self._encode([" ".join(words)])
        scores = self.scores(model, _Split([""], [tokens], np.zeros(1, np.int64)))[0]
        order = scores.argsort()[::-1]
        return f"{self.labels[order[0]]}  ({', '.join(f'{self.labels[at]} {scores[at]:.0%}' for at in order)})"

    @torch.no_grad()
    def scores(self, model: nn.Module, split: _Split) -> Float[ndarray, "texts classes"]:
        """Probability of each class for each text."""
        model.eval()
        device = next(model.parameters()).device
        probabilities = np.zeros((len(split.tokens), len(self.labels)))
        for rows in bounded(np.array([len(tokens) for tokens in split.tokens]), self.options.evaluation_tokens):
            batch = _pad(split, rows)
            logits = model(batch.tokens.to(device), keep=batch.keep.to(device))
            probabilities[rows] = logits.double().softmax(1).cpu().numpy()
        return probabilities

    @cached_property
    def _places(self) -> dict[str, Int[ndarray, "texts"]]:
        """Indices of the texts of each split, in an order that depends on their names and the seed."""
        documents, options = self.documents, self.options
        number = len(documents.texts)
        if number < LEAST:
            raise SubquadError(f"{options.source} has {number} labelled texts, too few to be split: give at least {LEAST}")
        order = shuffled(documents.names, options.split_seed)
        tenth = number // 10
        test = 0 if options.test_text else tenth
        train = order[test + tenth :]
        return {
            "test": order[:test],
            "development": order[test : test + tenth],
            "train": train[: options.examples] if options.examples else train,
        }

    def _split(self, documents: Documents, places: Int[ndarray, "texts"]) -> _Split:
        numbers = {label: number for number, label in enumerate(self.labels)}
        texts = [documents.texts[at] for at in places]
        labels = [documents.labels[at] for at in places]
        if unknown := sorted(set(labels) - set(numbers)):
            raise SubquadError(
                f"a held-out text has the label {excerpt(unknown[0])}, which no text to learn from has: give more"
            )
        return _Split(texts, self._encode(texts), np.array([numbers[label] for label in labels], dtype=np.int64))

    def _encode(self, texts: Sequence[str]) -> list[Int[ndarray, "n"]]:
        encoded = self.vocabulary.encode(texts)
        return [tokens[: self.options.length] if len(tokens) else np.array([UNKNOWN]) for tokens in encoded]

    def _right(self, model: nn.Module, split: _Split) -> Float[ndarray, "texts"]:
        return (self.scores(model, split).argmax(1) == split.labels).astype(float)


def started(folder: str) -> Mapping[str, Any]:
    """Returns the contents of the run.json of a masked language model."""
    about = Run.open(Path(folder), "train").about
    kind = about["options"]["task"]["kind"]
    if kind != "mlm":
        raise SubquadError(f"{folder} is a run of the task {kind}: --start takes one of the task mlm")
    return about


def _pad(split: _Split, places: Int[ndarray, "b"]) -> TextBatch:
    texts = [torch.from_numpy(split.tokens[at]) for at in places]
    return TextBatch(pad(texts, PAD), keep_of([len(text) for text in texts]), torch.from_numpy(split.labels[places]))
