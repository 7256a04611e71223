"""What the tasks of recall share: a decoder that gives the right token at the positions where it is asked for one."""

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from subquad.checking import Count
from subquad.errors import SubquadError
from subquad.models import Decoder, ModelOptions, Size, decoder_size
from subquad.results import Row
from subquad.statistics import grouped_mean
from subquad.tasks.base import Best, Counted, DataSize, Defaults, LineForm, Task, TaskOptions
from subquad.tasks.comparing import TEST_SEED, Judged, Rival, judged_means
from subquad.types import AttentionOptions

UNASKED = -1
"""Stands in `AnswerBatch.answers` for a position at which nothing is asked."""
SHOWN = 24
"""Largest number of words of a sequence that a sample shows."""


class AnswerBatch(NamedTuple):
    """Sequences of tokens, and the right token at each position where one is asked for."""

    tokens: Int[Tensor, "b n"]
    answers: Int[Tensor, "b n"]  # UNASKED where nothing is asked

    @property
    def asked(self) -> Bool[Tensor, "b n"]:
        """True at positions where a token is asked for."""
        return self.answers != UNASKED


@dataclass(frozen=True)
class Answering(TaskOptions, Task[AnswerBatch]):
    """Options and methods of tasks that ask for tokens seen earlier."""

    length: Count = 64  # number of positions of a sequence
    held_out: Count = 256  # number of new sequences in an evaluation
    tested: Count = 1024  # number of sequences in the test at the end
    evaluation_batch: Count = 64  # number of sequences per batch in evaluations

    best: ClassVar[Best | None] = Best("accuracy", "high")
    units: ClassVar[Mapping[str, str]] = {"state_bytes": "B"}
    line_form: ClassVar[LineForm] = "words"

    @property
    @abstractmethod
    def vocabulary(self) -> int:
        """Number of different tokens."""

    @property
    @abstractmethod
    def chance(self) -> float:
        """Accuracy of guessing among all tokens that can be an answer."""

    @abstractmethod
    def can_be_answer(self, tokens: Int[Tensor, "b n"]) -> Bool[Tensor, "b n"]:
        """True for tokens that can be an answer."""

    @property
    @abstractmethod
    def default_steps(self) -> int:
        """Number of training steps in which a small model learns the task."""

    @abstractmethod
    def batch(self, size: int, generator: torch.Generator) -> AnswerBatch:
        """Draws random sequences."""

    @abstractmethod
    def read(self, words: Sequence[str]) -> AnswerBatch:
        """Converts a user's sequence into a batch of one sequence, with any answer where one is asked for."""

    @abstractmethod
    def spell(self, tokens: Sequence[int]) -> str:
        """Writes tokens as `read` takes them."""

    @abstractmethod
    def spell_answers(self, tokens: Sequence[int]) -> str:
        """Writes the tokens that were asked for."""

    def defaults(self, attention: str, data: DataSize | None = None) -> Defaults:
        """Returns the model of `subquad reproduce recall`, and a training at the rate at which softmax learns soonest."""
        return Defaults(
            model={"layers": 2, "heads": 2, "head_dim": 32, "positions": "rotary", "tied": False},
            training={
                "batch": 64,
                "steps": self.default_steps,
                "learning_rate": 5e-3,
                "optimizer": "adamw",
                "schedule": "cosine",
                "warm_up": 50,
                "evaluate_every": 100,
            },
            attention=mechanism_sizes(attention, self.length),
        )

    def size(self, attention: AttentionOptions, model: ModelOptions) -> Size:
        """Lower bound on the size of the model and of a training step."""
        size = decoder_size(self.vocabulary, attention, model, positions=self.length)
        sequence = 4 * self.length * self.vocabulary  # the logits of all positions
        return size._replace(sequence_bytes=sequence, data_bytes=16 * self.evaluation_batch * self.length)

    def prepare(self, learned: Mapping[str, Any] | None = None) -> Self:
        """Returns the task itself, which needs no data."""
        return self

    def build(self, attention: AttentionOptions, model: ModelOptions, generator: torch.Generator | None = None) -> Decoder:
        return Decoder(self.vocabulary, attention, model, generator=generator)

    def loss(self, model: nn.Module, batch: AnswerBatch) -> Counted:
        """Cross-entropy of the answers. Other positions do not count."""
        logits = model(batch.tokens)[batch.asked].float()
        return Counted(F.cross_entropy(logits, batch.answers[batch.asked], reduction="sum"), self.count(batch))

    @property
    def can_be_cut(self) -> bool:
        return True

    def count(self, batch: AnswerBatch) -> int:
        return int(batch.asked.sum())

    def evaluate(self, model: nn.Module, generator: torch.Generator) -> dict[str, float]:
        """Share of answers that are right, and share of sequences with right answers only."""
        right = self._right(model, generator, self.held_out)
        return {"accuracy": float(right.mean()), "sequence_accuracy": float(right.all(1).mean())}

    def final(self, model: nn.Module) -> list[Row]:
        """Accuracy on the test with its interval over sequences, that of guessing, and the size of the state."""
        right = self._right(model, torch.Generator().manual_seed(TEST_SEED), self.tested)
        accuracy = grouped_mean(right.ravel(), np.full(len(right), right.shape[1]))
        return [
            {"metric": "accuracy", "split": "test", **accuracy._asdict()},
            {"metric": "accuracy_of_guessing", "split": "test", "value": self.chance},
            {"metric": "state_bytes", "split": "test", "unit": "B", "value": self.state_bytes(model)},
        ]

    @property
    def is_causal(self) -> bool:
        return True

    def judge(self, model: nn.Module) -> Judged:
        """Share of right answers of each test sequence."""
        right = self._right(model, torch.Generator().manual_seed(TEST_SEED), self.tested)
        return judged_means("accuracy", "high", "share", right.sum(1), np.full(len(right), right.shape[1]))

    def rivals(self) -> dict[str, Rival]:
        """Guessing among all tokens that can be an answer, and the one that a sequence has most often, whatever is asked.

        Models first learn which tokens a sequence has, and only much later which of them is asked for.
        """
        batches = list(self._batches(torch.Generator().manual_seed(TEST_SEED), self.tested))
        asked = np.concatenate([batch.asked.sum(1).numpy() for batch in batches]).astype(float)
        right = np.concatenate([self._right_by_frequency(batch) for batch in batches])
        return {
            "guessing": Rival(judged_means("accuracy", "high", "share", self.chance * asked, asked), is_trivial=True),
            "most frequent answer": Rival(judged_means("accuracy", "high", "share", right, asked)),
        }

    def _right_by_frequency(self, batch: AnswerBatch) -> Float[np.ndarray, "b"]:
        """Number of right answers in each sequence if all are the token that it has most often."""
        known = F.one_hot(batch.tokens, self.vocabulary) * self.can_be_answer(batch.tokens)[..., None]
        return ((batch.answers == known.sum(1).argmax(1)[:, None]) & batch.asked).sum(1).numpy().astype(float)

    @torch.no_grad()
    def state_bytes(self, model: nn.Module) -> int:
        """Bytes that all layers remember of one sequence after its last position."""
        assert isinstance(model, Decoder)
        tokens = self.batch(1, torch.Generator().manual_seed(TEST_SEED)).tokens
        state = model.causal(tokens.to(next(model.parameters()).device))[1]
        return sum(part.nbytes for layer in state.layers for part in layer)

    @torch.no_grad()
    def samples(self, model: nn.Module, generator: torch.Generator, count: int) -> list[dict[str, str]]:
        batch = self.batch(count, generator)
        answers = self.answer(model, batch)
        rows = []
        for tokens, asked, right, answer in zip(batch.tokens, batch.asked, batch.answers, answers, strict=True):
            words = self.spell(tokens.tolist()).split()
            shown = " ".join(words if len(words) <= SHOWN else [*words[: SHOWN // 2], "...", *words[-SHOWN // 2 :]])
            spelt = (self.spell_answers(part[asked].tolist()) for part in (answer, right))
            rows.append({"given": shown, **dict(zip(("answered", "right"), spelt, strict=True))})
        return rows

    @torch.no_grad()
    def answer(self, model: nn.Module, batch: AnswerBatch) -> Int[Tensor, "b n"]:
        """The model's likeliest token at each position."""
        model.eval()
        likeliest: Tensor = model(batch.tokens.to(next(model.parameters()).device)).argmax(-1)
        return likeliest.cpu()

    def reply(self, model: nn.Module, words: Sequence[str]) -> str:
        """The model's answers to a user's sequence."""
        batch = self.read(words)
        return self.spell_answers(self.answer(model, batch)[batch.asked].tolist())

    def _right(self, model: nn.Module, generator: torch.Generator, sequences: int) -> Float[np.ndarray, "sequences asked"]:
        """1 for each answer that is right, by sequence."""
        parts = []
        for batch in self._batches(generator, sequences):
            right = (self.answer(model, batch) == batch.answers)[batch.asked]
            parts.append(right.reshape(len(batch.tokens), -1).numpy().astype(float))
        return np.concatenate(parts)

    def _batches(self, generator: torch.Generator, sequences: int) -> Iterator[AnswerBatch]:
        """Yields so many sequences, in batches of evaluations."""
        for first in range(0, sequences, self.evaluation_batch):
            yield self.batch(min(self.evaluation_batch, sequences - first), generator)


LONGEST_NUMBER = 18
"""Largest number of digits that are read."""


def number_in(word: str, what: str, count: int) -> int:
    """The number that a word says. Raises `SubquadError` if it is not between 0 and `count` - 1."""
    if not (word.isascii() and word.isdigit()) or len(word) > LONGEST_NUMBER or int(word) >= count:
        raise SubquadError(f"{word[:60]!r} is no {what}: write numbers from 0 to {count - 1}")
    return int(word)


def one_sequence(tokens: Sequence[int], asked: Sequence[int]) -> AnswerBatch:
    """A batch of one sequence that asks at the positions `asked`."""
    answers = torch.full((1, len(tokens)), UNASKED)
    answers[0, list(asked)] = 0
    return AnswerBatch(torch.tensor([list(tokens)]), answers)


def mechanism_sizes(attention: str, length: int) -> dict[str, int]:
    """Sizes of a mechanism that are small beside the length of a sequence, so that its state is, too."""
    part = max(2, length // 8)
    sizes: dict[str, dict[str, int]] = {
        "favor": {"features": 64},
        "hybrid": {"block": part},
        "window": {"reach": part},
        "sparse": {"block": max(2, part // 2), "random_blocks": 1, "global_blocks": 1},
        "lsh": {"buckets": 8, "chunk": part},
        "infinity": {"segment": 2 * part, "basis": 2 * part, "points": 2 * part},
        "cosformer": {"max_length": 2 * length},
    }
    return sizes.get(attention, {})
