"""Text classification with a new encoder or the encoder of a masked language model (Devlin et al. 2019, section 3.2)."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, NotRequired

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from numpy import ndarray
from torch import nn
from typing_extensions import TypedDict

from subquad.checking import STRICT, Count, FileName, Seed, Whole, Words, excerpt, read_as
from subquad.data.buckets import Buckets, bounded
from subquad.data.datasets import Columns, load_rows
from subquad.data.splits import SplitName
from subquad.errors import SubquadError
from subquad.models import ModelOptions, Size, linear_numbers, with_stack
from subquad.results import Row, Run, place_of
from subquad.statistics import grouped_mean
from subquad.tasks.base import Best, Counted, Cut, DataSize, Defaults, LineForm, Predictions, Task, TaskOptions
from subquad.tasks.classify.batches import EncodedTexts, TextBatch, encode, pad_texts
from subquad.tasks.classify.labelled import Labelled, load_labelled
from subquad.tasks.classify.model import TextClassifier
from subquad.tasks.comparing import Judged, Rival, judged_means, share_rows
from subquad.tasks.counting import class_rivals
from subquad.tasks.mlm.limits import check_length, length_bytes
from subquad.tasks.mlm.model import MaskedModel
from subquad.tasks.mlm.vocabulary import (
    Vocabulary,
    VocabularyKind,
    learn_vocabulary,
    vocabulary_from,
)
from subquad.types import AttentionOptions

BATCH = 32
"""Default number of texts in a training step."""
SHOWN = 200  # number of characters shown of a text in a sample


@dataclass(frozen=True)
class Classify(TaskOptions):
    """Classify texts: your own, or Python's docstrings by package. Starts from scratch or from a run of the task mlm."""

    text: FileName = ""  # JSON lines, CSV, TSV, Parquet, a folder, or a hub dataset OWNER/NAME; default: docstrings
    test_text: FileName = ""  # labelled texts for the test, in the same format; default: the data's own, or a tenth
    text_column: Words = ""  # column that holds the text; default: text, sentence, or the first of a usual pair
    pair_column: Words = ""  # column that holds the second text of a pair; default: that of a usual pair, as in GLUE
    label_column: Words = ""  # column that holds the label; default: label, or a usual name
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
    pairs: NotRequired[bool]  # runs of older versions lack it


class ClassifyTask(Task[TextBatch]):
    """Batches, model, loss and metrics for labelled texts."""

    kind = "classify"
    best: ClassVar[Best | None] = Best("accuracy", "high")
    line_form: ClassVar[LineForm] = "text"

    def __init__(self, options: Classify, learned: Mapping[str, Any] | None = None) -> None:
        self.options = options
        self.kept = None if learned is None else read_as(LearnedFields, learned, f"{place_of(learned)}: learned")

    @cached_property
    def labelled(self) -> Labelled:
        """The labelled texts of each split. Raises `SubquadError` if they differ from those that the run was made with."""
        options = self.options
        columns = Columns(options.text_column, options.pair_column, options.label_column)
        labelled = load_labelled(options.text, options.test_text, columns, options.split_seed)
        if self.kept is not None and (had := self.kept["texts"]) != (has := len(labelled.documents.texts)):
            raise SubquadError(
                f"the texts in {options.source} are not those that the run was made with: it had {had:,}, they are "
                f"{has:,}; start a new run"
            )
        return labelled

    @cached_property
    def is_paired(self) -> bool:
        """Whether pairs of texts are classified."""
        return bool(self.labelled.documents.seconds) if self.kept is None else self.kept.get("pairs", False)

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """The vocabulary of the run to start from, or a vocabulary learned from the training texts."""
        if self.kept is not None:
            return vocabulary_from(self.kept["vocabulary"])
        options = self.options
        if options.start:
            return vocabulary_from(started(options.start)["learned"]["vocabulary"])
        train, most = self.labelled.splits["train"], options.examples or None
        texts = [*train.texts[:most], *train.seconds[:most]]
        return learn_vocabulary(options.vocabulary, texts, most=options.vocabulary_size, lowercase=options.lowercase)

    @cached_property
    def labels(self) -> list[str]:
        """Names of the classes."""
        if self.kept is not None:
            return list(self.kept["labels"])
        labels = sorted(set(self.labelled.splits["train"].labels[: self.options.examples or None]))
        if len(labels) < 2:
            raise SubquadError(
                f"all texts in {self.options.source} have the label {excerpt(labels[0])}: there is nothing to learn"
            )
        splits = self.labelled.splits
        _require_known({*splits["development"].labels[: self.options.held_out], *splits["test"].labels}, labels)
        return labels

    @cached_property
    def train(self) -> EncodedTexts:
        """The training texts."""
        return self._split("train", self.options.examples or None)

    @cached_property
    def development(self) -> EncodedTexts:
        """The texts that are evaluated during training."""
        return self._split("development", self.options.held_out)

    @cached_property
    def test(self) -> EncodedTexts:
        """The texts that are evaluated at the end."""
        return self._split("test")

    @cached_property
    def buckets(self) -> Buckets:
        """Indices of the training texts, grouped by length."""
        lengths = np.array([len(tokens) for tokens in self.train.tokens])
        return Buckets(np.arange(len(lengths)), lengths)

    @property
    def learned(self) -> dict[str, Any]:
        """The vocabulary, the labels and the number of texts, which a run stores."""
        return {
            "vocabulary": self.vocabulary.as_json(),
            "labels": self.labels,
            "texts": len(self.labelled.documents.texts),
            "pairs": self.is_paired,
        }

    @property
    def data_size(self) -> DataSize:
        """Numbers of training texts and of their tokens."""
        return DataSize(len(self.train.tokens), sum(map(len, self.train.tokens)))

    @property
    def complaints(self) -> tuple[str, ...]:
        """Sentences about texts that were left out."""
        return self.labelled.complaints

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

    def cut(self, length: int) -> Cut:
        """The same task with the first tokens of each text only."""
        return Cut(replace(self.options, length=min(length, self.options.length)), "first")

    def batch(self, size: int, generator: torch.Generator) -> TextBatch:
        """Training texts of similar length."""
        return pad_texts(self.train, self.buckets.draw(size, generator))

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

    def lengths(self) -> dict[str, Int[ndarray, "sequences"]]:
        splits = {"train": self.train, "development": self.development, "test": self.test}
        return {name: np.array([len(tokens) for tokens in split.tokens]) for name, split in splits.items()}

    def data_rows(self) -> list[Row]:
        """Shares of the classes among the training texts."""
        counts = np.bincount(self.train.labels, minlength=len(self.labels))
        return share_rows("train", "class", dict(zip(self.labels, (counts / counts.sum()).tolist(), strict=True)))

    def judge(self, model: nn.Module) -> Judged:
        """Whether the class of each test text is right."""
        right = self._right(model, self.test)
        return judged_means("accuracy", "high", "share", right, np.ones(len(right)))

    def rivals(self) -> dict[str, Rival]:
        """The most frequent class, and a linear model of the counts of tokens."""
        return class_rivals(self.train.tokens, self.train.labels, self.test.tokens, self.test.labels)

    def samples(self, model: nn.Module, generator: torch.Generator, count: int) -> list[dict[str, str]]:
        """Texts of the development split with predicted and true classes."""
        split = self.development
        rows = torch.randperm(len(split.texts), generator=generator)[:count].numpy()
        chosen = EncodedTexts([split.texts[at] for at in rows], [split.tokens[at] for at in rows], split.labels[rows])
        answers = self.scores(model, chosen).argmax(1)
        return [
            {"given": text[:SHOWN], "answered": self.labels[answer], "right": self.labels[label]}
            for text, answer, label in zip(chosen.texts, answers, chosen.labels, strict=True)
        ]

    def words(self, line: str) -> list[str]:
        """The words of a text, or the two texts of a pair, which a tab separates."""
        return line.split("\t") if self.is_paired else super().words(line)

    def reply(self, model: nn.Module, words: Sequence[str]) -> str:
        """The most probable class of a user's text or pair of texts, followed by the probability of each class."""
        if self.is_paired and len(words) != 2:
            raise SubquadError(
                f"the model classifies pairs of texts, but there are {len(words)}: give two, each in quotation marks, or a "
                "line with a tab between them"
            )
        (tokens,) = self._encode(words[:1], words[1:]) if self.is_paired else self._encode([" ".join(words)])
        scores = self.scores(model, EncodedTexts([""], [tokens], np.zeros(1, np.int64)))[0]
        order = scores.argsort()[::-1]
        return f"{self.labels[order[0]]}  ({', '.join(f'{self.labels[at]} {scores[at]:.0%}' for at in order)})"

    def predict(self, model: nn.Module, path: Path) -> Predictions:
        """The class of each text or pair in a file or folder, and the probability of each class."""
        options = self.options
        documents = load_rows(path, Columns(options.text_column, options.pair_column), paired=self.is_paired)
        if bool(documents.seconds) != self.is_paired:
            raise SubquadError(
                f"{path} has {'single texts' if self.is_paired else 'pairs of texts'}, but the model classifies "
                f"{'pairs of texts' if self.is_paired else 'single texts'}: give what it was trained on"
            )
        tokens = self._encode(documents.texts, documents.seconds)
        scores = self.scores(model, EncodedTexts(documents.texts, tokens, np.zeros(len(tokens), np.int64)))
        lines = [
            [name, self.labels[row.argmax()], *(f"{share:.4f}" for share in row)]
            for name, row in zip(documents.names, scores, strict=True)
        ]
        return Predictions(["text", "label", *self.labels], lines, documents.complaints)

    @torch.no_grad()
    def scores(self, model: nn.Module, split: EncodedTexts) -> Float[ndarray, "texts classes"]:
        """Probability of each class for each text."""
        model.eval()
        device = next(model.parameters()).device
        probabilities = np.zeros((len(split.tokens), len(self.labels)))
        for rows in bounded(np.array([len(tokens) for tokens in split.tokens]), self.options.evaluation_tokens):
            batch = pad_texts(split, rows)
            logits = model(batch.tokens.to(device), keep=batch.keep.to(device))
            probabilities[rows] = logits.double().softmax(1).cpu().numpy()
        return probabilities

    def _split(self, split: SplitName, most: int | None = None) -> EncodedTexts:
        documents = self.labelled.splits[split]
        numbers = {label: number for number, label in enumerate(self.labels)}
        texts, labels = documents.texts[:most], documents.labels[:most]
        seconds = (documents.seconds or [""] * len(texts))[:most] if self.is_paired else []
        _require_known(labels, numbers)
        shown = [f"{first} | {second}" for first, second in zip(texts, seconds, strict=True)] if seconds else texts
        labels_of = np.array([numbers[label] for label in labels], dtype=np.int64)
        return EncodedTexts(list(shown), self._encode(texts, seconds), labels_of)

    def _encode(self, texts: Sequence[str], seconds: Sequence[str] = ()) -> list[Int[ndarray, "n"]]:
        return encode(self.vocabulary, texts, seconds, self.options.length)

    def _right(self, model: nn.Module, split: EncodedTexts) -> Float[ndarray, "texts"]:
        return (self.scores(model, split).argmax(1) == split.labels).astype(float)


def started(folder: str) -> Mapping[str, Any]:
    """Returns the contents of the run.json of a masked language model."""
    about = Run.open(Path(folder), "train").about
    kind = about["options"]["task"]["kind"]
    if kind != "mlm":
        raise SubquadError(f"{folder} is a run of the task {kind}: --start takes one of the task mlm")
    return about


def _require_known(labels: Iterable[str], known: Collection[str]) -> None:
    """Raises `SubquadError` for a label that no text to learn from has."""
    if unknown := sorted(set(labels) - set(known)):
        raise SubquadError(
            f"a held-out text has the label {excerpt(unknown[0])}, which no text to learn from has: give more"
        )
