"""Causal language modelling: predict each token of a text from those before it, with any causal attention."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from numpy import ndarray
from torch import Tensor, nn

from subquad.attention import require_causal
from subquad.checking import AtLeastTwo, Count, FileName, Seed, Whole, Words
from subquad.data.datasets import Columns
from subquad.data.splits import SplitName
from subquad.errors import OptionError, SubquadError
from subquad.models import Decoder, ModelOptions, Size, decoder_size
from subquad.results import Row
from subquad.statistics import Interval, grouped_sums
from subquad.tasks.base import Best, Completion, Counted, Cut, DataSize, Defaults, LineForm, Task, TaskOptions
from subquad.tasks.comparing import Judged, Rival, judged_means
from subquad.tasks.lm.corpus import HELD_OUT, HeldOutName, Stream, Texts, load_splits
from subquad.tasks.lm.ngrams import ORDER, byte_bits, ngram_bits
from subquad.tasks.lm.reading import Read, read_through
from subquad.tasks.lm.vocabulary import BEGIN, LEAST, Lossless, LosslessKind, learn_lossless, lossless_from, spell
from subquad.tasks.lm.writing import write
from subquad.tasks.mlm.finding import perplexity
from subquad.tasks.mlm.kept import check_texts, read_kept
from subquad.tasks.mlm.limits import check_length, length_bytes
from subquad.types import AttentionOptions

TOKENS_A_STEP = 2048
"""Default number of tokens in a batch."""
ROUNDS = 8
"""Number of rounds over the training text that the default of the steps aims at."""
BPE_CHARACTERS = 4
"""Number of characters that a token of the kind bpe stands for, about."""
LARGE = 5_000_000
"""Number of characters of training text above which the default is a larger model."""
GIVEN, ANSWERED = 64, 48  # number of tokens of a sample that the model reads, and that it writes


@dataclass(frozen=True)
class Lm(TaskOptions):
    """Predict the next token of a text and continue texts: your own texts, or Python's help."""

    text: FileName = ""  # text, JSON lines, CSV, TSV, Parquet, a folder, or a hub dataset; default: Python's help topics
    text_column: Words = ""  # column of JSON lines and tables that holds the text; default: text, or a usual name
    vocabulary: LosslessKind = "bpe"  # kind of tokens; bpe merges frequent bytes and needs the package tokenizers
    vocabulary_size: Count = 4096  # largest number of different tokens, for bpe
    length: AtLeastTwo = 256  # number of tokens that the model reads
    context: Whole | None = None  # smallest number of tokens before each evaluated one; half of the length if not set
    split_seed: Seed = 0  # seed for dividing texts into training, development and test, if their names do not tell
    held_out: Count = 65_536  # largest number of tokens of development text in an evaluation during training
    tested: Count = 2_000_000  # largest number of tokens of development and of test text in the final evaluation
    evaluation_tokens: Count = 8192  # number of tokens per batch in evaluations
    kind: str = field(default="lm", init=False)

    default_notes: ClassVar[str] = (
        "The default of --layers is for up to 5 million characters of training text, and 4 for more. The default of --steps "
        "is eight rounds over the training text, from 300 to 2000 steps."
    )

    def check(self) -> None:
        if self.context is not None and self.context >= self.length:
            raise OptionError("context", f"must be below --length, which is {self.length}, but is {self.context}")
        if self.vocabulary == "bpe" and self.vocabulary_size < LEAST:
            raise OptionError("vocabulary_size", f"must be at least {LEAST}, for all bytes, but is {self.vocabulary_size}")

    @property
    def evaluated_context(self) -> int:
        """Smallest number of tokens before each evaluated token, except at the beginning of a split."""
        return self.length // 2 if self.context is None else self.context

    def defaults(self, attention: str, data: DataSize | None = None) -> Defaults:
        """Returns the options of the models in docs/train.md, with more layers and steps for more text."""
        characters = 0 if data is None else data.positions
        batch = max(1, TOKENS_A_STEP // self.length)
        round_tokens = characters / (1 if self.vocabulary == "bytes" else BPE_CHARACTERS)
        training = {
            "steps": min(2000, max(300, int(ROUNDS * round_tokens / (batch * self.length)))),
            "batch": batch,
            "learning_rate": 3e-3,
            "warm_up": 50,
            "weight_decay": 0.01,
            "evaluate_every": 100,
            "optimizer": "adamw",
            "schedule": "cosine",
        }
        layers = 4 if characters > LARGE else 2
        return Defaults({"layers": layers, "heads": 4, "head_dim": 32, "positions": "rotary"}, training)

    def size(self, attention: AttentionOptions, model: ModelOptions, symbols: int = LEAST) -> Size:
        """Lower bound on the size of the model with a vocabulary of `symbols` tokens, which the texts determine."""
        return decoder_size(symbols, attention, model, positions=0)._replace(data_bytes=length_bytes(self.length))

    def check_model(self, attention: AttentionOptions, model: ModelOptions) -> None:
        require_causal(attention)
        check_length(self.length, attention, model)

    def prepare(self, learned: Mapping[str, Any] | None = None) -> "LmTask":
        """Returns the task. If `learned` is given, the texts are read only on first use."""
        return LmTask(self, learned)


class NextBatch(NamedTuple):
    """Tokens that the model reads, and the token after each of them."""

    tokens: Int[Tensor, "b n"]
    right: Int[Tensor, "b n"]


class LmTask(Task[NextBatch]):
    """Batches, model, loss and metrics for texts."""

    kind = "lm"
    best: ClassVar[Best | None] = Best("bits_per_byte", "low")
    units: ClassVar[Mapping[str, str]] = {"bits_per_byte": "bits", "perplexity": "tokens"}
    line_form: ClassVar[LineForm] = "text"
    completes: ClassVar[bool] = True
    reads_texts: ClassVar[bool] = True

    def __init__(self, options: Lm, learned: Mapping[str, Any] | None = None) -> None:
        self.options = options
        self.kept = read_kept(learned)

    @cached_property
    def texts(self) -> Texts:
        """The texts of each split. Raises `SubquadError` if they differ from those that the run was made with."""
        options = self.options
        texts = load_splits(options.text, Columns(options.text_column), options.split_seed)
        check_texts(self.kept, options.text, texts.documents, texts.characters)
        return texts

    @cached_property
    def vocabulary(self) -> Lossless:
        """The vocabulary that a run stored, or one learned from the training texts."""
        if self.kept is not None:
            return lossless_from(self.kept["vocabulary"])
        options = self.options
        return learn_lossless(options.vocabulary, self.texts.splits.train, most=options.vocabulary_size)

    @cached_property
    def train(self) -> Stream:
        """The tokens of the training texts."""
        return self._stream("train")

    @cached_property
    def development(self) -> Stream:
        """The tokens of the texts that are evaluated during training."""
        return self._stream("development")

    @cached_property
    def test(self) -> Stream:
        """The tokens of the texts that are evaluated at the end."""
        return self._stream("test")

    @property
    def learned(self) -> dict[str, Any]:
        """The vocabulary and the size of the texts, which a run stores."""
        return {
            "vocabulary": self.vocabulary.as_json(),
            "documents": self.texts.documents,
            "characters": self.texts.characters,
        }

    @property
    def data_size(self) -> DataSize:
        """Numbers of training texts and of their characters."""
        train = self.texts.splits.train
        return DataSize(len(train), sum(map(len, train)))

    @property
    def complaints(self) -> tuple[str, ...]:
        """Sentences about texts that were left out, and about the splits."""
        return self.texts.complaints

    def build(self, attention: AttentionOptions, model: ModelOptions, generator: torch.Generator | None = None) -> Decoder:
        self.options.check_model(attention, model)
        return Decoder(len(self.vocabulary.byte_strings), attention, model, generator=generator)

    def cut(self, length: int) -> Cut:
        """The same task with fewer tokens before each one that is predicted."""
        return Cut(replace(self.options, length=min(self.options.length, max(2, length)), context=None), "last")

    def batch(self, size: int, generator: torch.Generator) -> NextBatch:
        """Windows of the training texts."""
        windows = self.train.draw(size, self.options.length, generator)
        return NextBatch(windows[:, :-1], windows[:, 1:])

    def loss(self, model: nn.Module, batch: NextBatch) -> Counted:
        """Cross-entropy of the tokens of the texts."""
        logits = model(batch.tokens).float().flatten(0, 1)
        losses = F.cross_entropy(logits, batch.right.flatten(), ignore_index=BEGIN, reduction="sum")
        return Counted(losses, self.count(batch))

    @property
    def can_be_cut(self) -> bool:
        return True

    def count(self, batch: NextBatch) -> int:
        return int(self.is_text(batch.right).sum())

    def is_text(self, tokens: Int[Tensor, "*n"]) -> Bool[Tensor, "*n"]:
        """Marks tokens of text, which are to be predicted, unlike those that begin texts."""
        return tokens != BEGIN

    def evaluate(self, model: nn.Module, generator: torch.Generator) -> dict[str, float]:
        """Bits per byte and perplexity at the beginning of the development split."""
        answers = self.read(model, "development", self.options.held_out)
        bits = answers.nats.sum() / math.log(2) / len(answers.text(self.vocabulary))
        return {"bits_per_byte": float(bits), "perplexity": perplexity(answers.nats.mean())}

    def read(self, model: nn.Module, split: HeldOutName, most: int) -> Read:
        """Predicts the tokens of a held-out split, at most `most` from its beginning, each once."""
        options = self.options
        stream = self.development if split == "development" else self.test
        return read_through(
            model,
            stream.tokens[: most + 1],
            length=options.length,
            context=options.evaluated_context,
            tokens_at_a_time=options.evaluation_tokens,
        )

    def final(self, model: nn.Module) -> list[Row]:
        """Metrics on the test split with intervals, beside those of n-grams of bytes, and on the whole development split."""
        developed, tested = (self.read(model, split, self.options.tested) for split in HELD_OUT)
        return [
            *self._rows(developed, "development", "development_"),
            *self._rows(tested, "test"),
            *self._baselines(tested),
            {"metric": "evaluated_tokens", "unit": "tokens", "split": "test", "value": len(tested.tokens)},
            {"metric": "context", "unit": "tokens", "split": "test", "value": self.options.evaluated_context},
        ]

    def _rows(self, answers: Read, split: HeldOutName, prefix: str = "") -> list[Row]:
        nats, words = answers.nats_per_token(), max(1, len(answers.text(self.vocabulary).split()))
        by_metric = {
            "bits_per_byte": ("bits", answers.bits_per_byte(self.vocabulary)),
            "nats_per_token": ("nats", nats),
            "perplexity": ("tokens", Interval(*map(perplexity, nats))),
            "word_perplexity": ("words", Interval(*(perplexity(end * len(answers.nats) / words) for end in nats))),
        }
        return [
            {"metric": prefix + metric, "unit": unit, "split": split, **interval._asdict()}
            for metric, (unit, interval) in by_metric.items()
        ]

    def _baselines(self, answers: Read) -> list[Row]:
        """Bits per byte of the frequencies of bytes, and of n-grams of bytes, learned from the training texts."""
        train, text = "".join(self.texts.splits.train).encode(errors="replace"), answers.text(self.vocabulary)
        orders = {"bits_per_byte_of_byte_frequencies": 1, f"bits_per_byte_of_{ORDER}_grams": ORDER}
        return [
            {"metric": metric, "unit": "bits", "split": "test", "value": ngram_bits(train, text, order)}
            for metric, order in orders.items()
        ]

    @property
    def is_causal(self) -> bool:
        return True

    def judge(self, model: nn.Module) -> Judged:
        """Bits of each passage of the test text, and its bytes."""
        answers = self.read(model, "test", self.options.tested)
        return self._judged(answers, answers.nats / math.log(2), answers.sizes(self.vocabulary))

    def rivals(self) -> dict[str, Rival]:
        """Frequencies of bytes, and n-grams of bytes, learned from the training texts."""
        train = "".join(self.texts.splits.train).encode(errors="replace")
        tokens = self.test.tokens[1 : self.options.tested + 1].astype(np.int64)
        answers = Read(tokens[tokens != BEGIN], np.zeros(0))
        sizes, text = answers.sizes(self.vocabulary), answers.text(self.vocabulary)
        rivals = {}
        for name, order in (("frequencies of bytes", 1), (f"{ORDER}-grams of bytes", ORDER)):
            bits = grouped_sums(byte_bits(train, text, order), sizes.astype(int))
            rivals[name] = Rival(self._judged(answers, bits, sizes), is_trivial=order == 1)
        return rivals

    def _judged(self, answers: Read, bits: Float[ndarray, "tokens"], sizes: Float[ndarray, "tokens"]) -> Judged:
        """Scores of passages, by the bits and bytes of each token."""
        passages = answers.passages()
        return judged_means("bits_per_byte", "low", "bits", *(grouped_sums(each, passages) for each in (bits, sizes)))

    def samples(self, model: nn.Module, generator: torch.Generator, count: int) -> list[dict[str, str]]:
        """Beginnings of windows of the development split, how the model continues them, and how they go on."""
        given = min(GIVEN, max(1, self.options.length // 2))
        windows = self.development.draw(count, given + ANSWERED, generator).tolist()
        return [
            {
                "given": spell(self.vocabulary, window[:given]),
                "answered": self._write(model, window[:given], Completion(tokens=ANSWERED, seed=place)),
                "right": spell(self.vocabulary, window[given:]),
            }
            for place, window in enumerate(windows)
        ]

    def reply(self, model: nn.Module, words: Sequence[str]) -> str:
        """A user's text and its continuation."""
        text = " ".join(words)
        return text + self.complete(model, text, Completion())

    def complete(self, model: nn.Module, text: str, how: Completion) -> str:
        """The continuation of a text. The model reads as many of its last tokens as it was trained on."""
        (tokens,) = self.vocabulary.encode([text])
        return self._write(model, [BEGIN, *tokens.tolist()], how)

    def _write(self, model: nn.Module, prompt: Sequence[int], how: Completion) -> str:
        assert isinstance(model, Decoder)
        drawing = torch.Generator().manual_seed(how.seed)
        return spell(self.vocabulary, write(model, prompt, how.tokens, self.options.length, how.temperature, drawing))

    def examples(
        self,
        count: int,
        generator: torch.Generator,
        *,
        texts: Sequence[str] | None = None,
        length: int | None = None,
    ) -> list[NextBatch]:
        """Windows of the whole length from held-out texts or from `texts`."""
        splits, length = self.texts.splits if texts is None else None, length or self.options.length
        chosen = [*splits.development, *splits.test] if splits is not None else texts or []
        stream = Stream(self.vocabulary, chosen)
        if len(stream.tokens) <= length:
            raise SubquadError(f"the text has no stretch of {length} tokens: give more text or a smaller --length")
        windows = stream.draw(min(count, len(stream.tokens) // length), length, generator)
        return [NextBatch(window[None, :-1], window[None, 1:]) for window in windows]

    def _stream(self, split: SplitName) -> Stream:
        stream = Stream(self.vocabulary, getattr(self.texts.splits, split))
        if len(stream.tokens) < 2:
            raise SubquadError(f"the {split} split has no tokens: give more text")
        return stream
