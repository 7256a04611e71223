"""Masked language modelling (Devlin et al. 2019): predict tokens that were taken out of a text, with any attention."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from numpy import ndarray
from torch import Tensor, nn

from subquad.checking import AtLeastTwo, Count, FileName, InnerShare, Seed, Share
from subquad.data.ragged import needed_mask
from subquad.data.splits import SplitName
from subquad.data.texts import Documents, load_texts, python_topics
from subquad.errors import SubquadError
from subquad.models import ModelOptions, Size, linear_numbers, with_stack
from subquad.results import Row
from subquad.statistics import grouped_mean
from subquad.tasks.base import Best, Counted, DataSize, Defaults, LineForm, Task, TaskOptions
from subquad.tasks.comparing import Judged, Rival, judged_terms
from subquad.tasks.mlm.corpus import TextSplits, Tokens, cut_sentences, split_texts
from subquad.tasks.mlm.finding import find, interval_groups, perplexity
from subquad.tasks.mlm.kept import check_texts, read_kept
from subquad.tasks.mlm.limits import check_length, length_bytes
from subquad.tasks.mlm.masking import MaskedBatch, Masking, single_rows
from subquad.tasks.mlm.model import MaskedModel
from subquad.tasks.mlm.vocabulary import (
    BLANK,
    FIRST,
    MASK,
    Vocabulary,
    VocabularyKind,
    encode_blanks,
    learn_vocabulary,
    vocabulary_from,
)
from subquad.types import AttentionOptions

TOKENS_A_STEP = 2048
"""Default number of tokens in a batch."""
LARGE = 5_000_000
"""Number of characters of text above which the defaults are a larger model and a longer training."""
SHOWN = 48  # number of tokens shown of a text in a sample
GUESSES = 3  # number of predictions that an answer lists for each [MASK]


@dataclass(frozen=True)
class Mlm(TaskOptions):
    """Predict words that are masked in a text: in your own texts, or in Python's help."""

    text: FileName = ""  # folder or file: *.txt, *.md, *.jsonl(.gz) with a field "text"; default: Python's help topics
    vocabulary: VocabularyKind = "wordpiece"  # kind of tokens; wordpiece needs the package tokenizers
    vocabulary_size: Count = 4096  # largest number of different tokens, for characters and wordpiece
    lowercase: bool = True  # convert text to lower case, for wordpiece
    length: AtLeastTwo = 256  # number of tokens in a sequence
    mask_share: InnerShare = 0.15  # share of the tokens that are to be predicted
    blank_share: Share = 0.8  # share of the tokens to be predicted that are replaced by [MASK]
    random_share: Share = 0.1  # share of the tokens to be predicted that are replaced by a random token; the others stay
    whole_words: bool = False  # mask all pieces of a word together
    split_seed: Seed = 0  # seed for dividing texts into training, development and test, and for masking held-out texts
    held_out: Count = 128  # number of windows of development text in an evaluation
    tested: Count = 512  # number of windows of test text in the final evaluation
    evaluation_tokens: Count = 16_384  # number of tokens per batch in evaluations
    kind: str = field(default="mlm", init=False)

    default_notes: ClassVar[str] = (
        "The defaults of the model and of the training are for texts of up to 5 million characters. With more text, there "
        "are 6 layers, heads of 32 and 1500 steps."
    )

    @property
    def masking(self) -> Masking:
        """How tokens are masked."""
        return Masking(self.mask_share, self.blank_share, self.random_share, self.whole_words)

    def check(self) -> None:
        if self.blank_share + self.random_share > 1:
            raise SubquadError(
                f"--blank-share and --random-share must add up to at most 1, but are {self.blank_share} and "
                f"{self.random_share}"
            )

    def defaults(self, attention: str, data: DataSize | None = None) -> Defaults:
        """Returns the options of `subquad reproduce linformer`, or for much text those of the model in docs/results.md."""
        small: dict[str, Any] = {"steps": 320, "learning_rate": 4e-3, "warm_up": 20, "evaluate_every": 40}
        large: dict[str, Any] = {
            "steps": 1500,
            "learning_rate": 3e-3,
            "warm_up": 100,
            "weight_decay": 0.01,
            "evaluate_every": 250,
        }
        is_large = data is not None and data.positions > LARGE
        shape = {"layers": 6, "head_dim": 32} if is_large else {"layers": 2, "head_dim": 16}
        training = large if is_large else small
        training |= {"batch": max(1, TOKENS_A_STEP // self.length), "optimizer": "adamw", "schedule": "cosine"}
        slots = {"k": max(1, self.length // 2), "max_length": self.length} if attention == "linformer" else {}
        return Defaults({**shape, "heads": 4, "positions": "rotary"}, training, slots)

    def size(self, attention: AttentionOptions, model: ModelOptions, symbols: int = 0) -> Size:
        """Lower bound on the size of the model with a vocabulary of `symbols` tokens, which the texts determine."""
        model_dim = model.model_dim
        vectors = (1 if model.tied else 2) * symbols * model_dim + symbols
        return with_stack(vectors + linear_numbers(model_dim, model_dim) + 2 * model_dim, attention, model)._replace(
            data_bytes=length_bytes(self.length)
        )

    def check_model(self, attention: AttentionOptions, model: ModelOptions) -> None:
        check_length(self.length, attention, model)

    def prepare(self, learned: Mapping[str, Any] | None = None) -> "MlmTask":
        """Returns the task. If `learned` is given, the texts are read only on first use."""
        return MlmTask(self, learned)


class HeldOut(NamedTuple):
    """Masked windows of held-out text, the same for every model, and the document of each."""

    batch: MaskedBatch
    documents: Int[ndarray, "stretches"]


class MlmTask(Task[MaskedBatch]):
    """Batches, model, loss and metrics for texts."""

    kind = "mlm"
    best: ClassVar[Best | None] = Best("perplexity", "low")
    units: ClassVar[Mapping[str, str]] = {"perplexity": "tokens"}
    line_form: ClassVar[LineForm] = "text"
    reads_texts: ClassVar[bool] = True

    def __init__(self, options: Mlm, learned: Mapping[str, Any] | None = None) -> None:
        self.options = options
        self.kept = read_kept(learned)

    @cached_property
    def documents(self) -> Documents:
        """All documents. Raises `SubquadError` if they differ from those that the run was made with."""
        text = self.options.text
        documents = load_texts(Path(text)) if text else python_topics()
        check_texts(self.kept, text, len(documents.texts), documents.characters)
        return documents

    @cached_property
    def splits(self) -> TextSplits:
        """The texts of each split."""
        return split_texts(self.documents, self.options.split_seed)

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """The vocabulary that a run stored, or one learned from the training texts."""
        if self.kept is not None:
            return vocabulary_from(self.kept["vocabulary"])
        options = self.options
        return learn_vocabulary(
            options.vocabulary, self.splits.train, most=options.vocabulary_size, lowercase=options.lowercase
        )

    @cached_property
    def train(self) -> Tokens:
        """The tokens of the training texts."""
        return Tokens(self.vocabulary, self.splits.train)

    @cached_property
    def development(self) -> HeldOut:
        """The masked windows that are evaluated during training."""
        return self._held_out("development", self.options.held_out)

    @cached_property
    def test(self) -> HeldOut:
        """The masked windows that are evaluated at the end."""
        return self._held_out("test", self.options.tested)

    @property
    def learned(self) -> dict[str, Any]:
        """The vocabulary and the size of the texts, which a run stores."""
        documents = self.documents
        return {
            "vocabulary": self.vocabulary.as_json(),
            "documents": len(documents.texts),
            "characters": documents.characters,
        }

    @property
    def data_size(self) -> DataSize:
        """Numbers of training documents and of their characters."""
        return DataSize(len(self.splits.train), sum(map(len, self.splits.train)))

    @property
    def complaints(self) -> tuple[str, ...]:
        """Sentences about texts that were left out, and about the splits of few documents."""
        return (*self.documents.complaints, *cut_sentences(len(self.documents.texts)))

    def build(
        self, attention: AttentionOptions, model: ModelOptions, generator: torch.Generator | None = None
    ) -> MaskedModel:
        self.options.check_model(attention, model)
        return MaskedModel(self.vocabulary.size, attention, model, generator)

    def batch(self, size: int, generator: torch.Generator) -> MaskedBatch:
        """Masked windows of training texts."""
        windows = self.train.draw(size, self.options.length, generator)
        return self.options.masking.mask(windows, self.vocabulary.size, generator)

    def loss(self, model: nn.Module, batch: MaskedBatch) -> Counted:
        """Cross-entropy of the masked tokens."""
        logits = model(batch.tokens, keep=needed_mask(batch.keep), chosen=batch.chosen).float()
        return Counted(F.cross_entropy(logits, batch.right[batch.chosen], reduction="sum"), self.count(batch))

    @property
    def can_be_cut(self) -> bool:
        return True

    def count(self, batch: MaskedBatch) -> int:
        return int(batch.chosen.sum())

    def evaluate(self, model: nn.Module, generator: torch.Generator) -> dict[str, float]:
        """Perplexity and accuracy on the development split."""
        answers = find(model, self.development.batch, self.options.evaluation_tokens)
        accuracy = float((answers.likeliest == answers.right).mean())
        return {"perplexity": perplexity(answers.nats.mean()), "accuracy": accuracy}

    def final(self, model: nn.Module) -> list[Row]:
        """Metrics on the test split with intervals, and the perplexity of a unigram model of token frequencies."""
        batch, documents = self.test
        answers = find(model, batch, self.options.evaluation_tokens)
        groups = interval_groups(batch.chosen.sum(1).numpy(), documents)
        rows: list[Row] = []
        for name, nats in (("perplexity", answers.nats), ("perplexity_of_unigram", self.unigram(answers.right))):
            value, low, high = grouped_mean(nats, groups)
            ends = {"value": perplexity(value), "low": perplexity(low), "high": perplexity(high)}
            rows.append({"metric": name, "split": "test", "unit": "tokens", **ends})
        accuracy = grouped_mean((answers.likeliest == answers.right).astype(float), groups)
        rows.append({"metric": "accuracy", "split": "test", **accuracy._asdict()})
        return [*rows, {"metric": "masked_tokens", "split": "test", "unit": "tokens", "value": len(answers.nats)}]

    def judge(self, model: nn.Module) -> Judged:
        """Nats of the masked tokens of each test window."""
        answers = find(model, self.test.batch, self.options.evaluation_tokens)
        return self._judged(answers.nats)

    def rivals(self) -> dict[str, Rival]:
        """The frequencies of tokens, whatever the text."""
        batch = self.test.batch
        return {"frequencies of tokens": Rival(self._judged(self.unigram(batch.right[batch.chosen].numpy())), True)}

    def _judged(self, nats: Float[ndarray, "tokens"]) -> Judged:
        """Scores by the groups that intervals are drawn by: documents, or windows of few documents."""
        groups = interval_groups(self.test.batch.chosen.sum(1).numpy(), self.test.documents)
        return judged_terms("nats_per_token", "low", "nats", nats, groups)

    def samples(self, model: nn.Module, generator: torch.Generator, count: int) -> list[dict[str, str]]:
        """The beginnings of development windows, with the predicted and the original tokens."""
        batch = self.development.batch
        rows = torch.randperm(len(batch.tokens), generator=generator)[:count]
        lines = []
        for row in single_rows(batch, rows):
            guess = iter(find(model, row, self.options.evaluation_tokens).likeliest.tolist())
            answers = [next(guess) for _ in range(int(row.chosen[:, :SHOWN].sum()))]
            first = MaskedBatch(*(part[:, :SHOWN] for part in row))
            right = first.right[first.chosen].tolist()
            lines.append(
                {
                    "given": self.vocabulary.spell(first.tokens[first.keep].tolist()),
                    "answered": " ".join(map(self.vocabulary.name, answers)),
                    "right": " ".join(map(self.vocabulary.name, right)),
                }
            )
        return lines

    def reply(self, model: nn.Module, words: Sequence[str]) -> str:
        """A user's text with each [MASK] filled in, followed by the most probable tokens for each."""
        text = " ".join(words)
        if BLANK not in text:
            raise SubquadError(f"write {BLANK} where the model is to find a word, such as: the cat {BLANK} on the mat")
        tokens = torch.from_numpy(encode_blanks(self.vocabulary, text))
        if len(tokens) > self.options.length:
            raise SubquadError(
                f"the text has {len(tokens)} tokens, but the model was trained on {self.options.length}: give a shorter one"
            )
        places = tokens == MASK
        probabilities = self._probabilities(model, tokens[None], places[None])
        best = probabilities.topk(min(GUESSES, probabilities.shape[1]), 1)
        filled = tokens.masked_scatter(places, best.indices[:, 0])
        guesses = [
            ", ".join(f"{self.vocabulary.name(token)} {share:.0%}" for token, share in zip(*pair, strict=True))
            for pair in zip(best.indices.tolist(), best.values.tolist(), strict=True)
        ]
        return f"{self.vocabulary.spell(filled.tolist())}  ({'; '.join(guesses)})"

    def unigram(self, right: Int[ndarray, "tokens"]) -> Float[ndarray, "tokens"]:
        """Negative log-frequency of each token in the training texts, with every count increased by one."""
        counts = np.bincount(self.train.all, minlength=self.vocabulary.size)[FIRST - 1 :] + 1.0
        return -np.log(counts / counts.sum())[right - FIRST + 1]

    def examples(
        self,
        count: int,
        generator: torch.Generator,
        *,
        texts: Sequence[str] | None = None,
        length: int | None = None,
    ) -> list[MaskedBatch]:
        """Windows of the whole length from held-out texts or from `texts`. No token is masked."""
        texts = [*self.splits.development, *self.splits.test] if texts is None else texts
        length = length or self.options.length
        windows = self.stretches(texts, count, length, generator)[:, None]
        if not len(windows):
            raise SubquadError(f"the text has no stretch of {length} tokens: give more text or a smaller --length")
        keep = torch.ones(1, length, dtype=torch.bool)
        return [MaskedBatch(tokens, tokens, ~keep, keep) for tokens in windows]

    def stretches(self, texts: Sequence[str], count: int, length: int, generator: torch.Generator) -> Int[Tensor, "b n"]:
        """Up to `count` windows of the whole length from the given texts."""
        tokens = Tokens(self.vocabulary, texts)
        begin, end, _ = tokens.tiles(length)
        whole = np.flatnonzero(end - begin == length)
        chosen = whole[torch.randperm(len(whole), generator=generator)[:count].numpy()]
        return tokens.windows(begin[chosen], end[chosen]).tokens

    @torch.no_grad()
    def _probabilities(self, model: nn.Module, tokens: Tensor, chosen: Tensor) -> Float[Tensor, "places v"]:
        """Probabilities of all tokens at the chosen positions. Special tokens have probability zero."""
        model.eval()
        device = next(model.parameters()).device
        logits = model(tokens.to(device), chosen=chosen.to(device)).double().cpu()
        logits[:, :FIRST] = -math.inf
        return logits.softmax(1)

    def _held_out(self, split: SplitName, most: int) -> HeldOut:
        """Masked windows of a split. They depend on the options only: models with the same vocabulary get the same ones."""
        options = self.options
        tokens = Tokens(self.vocabulary, getattr(self.splits, split))
        begin, end, documents = tokens.tiles(options.length)
        drawing = torch.Generator().manual_seed(options.split_seed)
        chosen = np.sort(torch.randperm(len(begin), generator=drawing)[:most].numpy())
        if not len(chosen):
            raise SubquadError(f"the {split} split has no tokens: give more text")
        windows = tokens.windows(begin[chosen], end[chosen])
        return HeldOut(options.masking.mask(windows, self.vocabulary.size, drawing), documents[chosen])
