"""The interface that a model implements to be converted."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

from jaxtyping import Bool, Float
from torch import Tensor, nn

from subquad.results import Row
from subquad.tasks.mlm.masking import MaskedBatch
from subquad.types import AttentionOptions

Kind = Literal["encoder", "masked", "causal"]
"""Type of model: an encoder of texts into vectors, a masked language model, or a causal language model."""

Split = Literal["development", "test"]
"""Held-out text: development texts choose between models, test texts only measure the result."""

Goal = Literal["hidden", "logits", "task"]
"""Target of tuning: the original's hidden states, its predictions (logits), or the tokens of the text (task)."""


class Outputs(NamedTuple):
    """Outputs of a model for a batch."""

    hidden: tuple[Float[Tensor, "b n w"], ...]  # hidden states after each layer
    logits: Float[Tensor, "places v"] | None  # logits at the chosen places


class Convertible(Protocol):
    """A trained model, with text for training and held-out text.

    A batch holds the tokens that the model sees, the right token at each place, the places to predict, and the padding mask.
    """

    teacher: nn.Module
    """The original model in eval mode, with exact attention in every layer. It is never modified."""
    origins: list[int]
    """The layer of the teacher that each layer of a student is made of. A smaller student has fewer layers."""

    kept_heads: list[int]
    """The attention heads of a teacher's layer that each layer of a student has. A smaller student has fewer heads."""

    @property
    def kind(self) -> Kind: ...

    @property
    def longest(self) -> int:
        """Largest number of tokens that the model takes."""
        ...

    @property
    def notes(self) -> dict[str, object]:
        """Notes on the model for run.json."""
        ...

    def student(self, attention: Sequence[AttentionOptions | None], seed: int) -> nn.Module:
        """Returns a copy of the teacher with these mechanisms, one for each layer; None keeps a layer exact.

        It has the layers `origins` and in them the heads `kept_heads`.
        """
        ...

    def head_groups(self) -> int:
        """Returns the number of heads of keys and values, each of which a group of query heads shares.

        Raises `SubquadError` for a model from which no heads can be taken out.
        """
        ...

    def mechanisms(self, model: nn.Module) -> list[nn.Module]:
        """Returns the attention mechanisms of the teacher or a student, in the order of its layers."""
        ...

    def embeddings(self, model: nn.Module) -> list[nn.Parameter]:
        """Returns the embedding parameters, which are never trained."""
        ...

    def batch(self, tokens: int, length: int, seed: int) -> MaskedBatch:
        """Returns excerpts of the training text, each of up to `length` tokens and about `tokens` tokens in all."""
        ...

    def held_out(self, split: Split, count: int, length: int, seed: int) -> MaskedBatch:
        """Returns excerpts of a held-out split: `count` of them, or all where the split is a fixed set of excerpts."""
        ...

    def outputs(self, model: nn.Module, batch: MaskedBatch, *, logits: bool = False) -> Outputs:
        """Returns the outputs of the teacher or a student for a batch."""
        ...

    def pool(self, hidden: Float[Tensor, "b n w"], keep: Bool[Tensor, "b n"]) -> Float[Tensor, "b w"]:
        """Returns one vector for each text, pooled from its last hidden states."""
        ...

    def pairs(self, most: int | None = None) -> "Pairs | None":
        """Returns sentence pairs with human similarity scores, at most `most` evenly spaced ones, or None without any."""
        ...

    def save(self, model: nn.Module, attention: Sequence[AttentionOptions | None], folder: Path) -> None:
        """Saves a student with these mechanisms in a folder, from which it can be loaded."""
        ...

    @property
    def has_costs(self) -> bool:
        """Whether `costs` can measure the time and memory of this model."""
        ...

    def costs(self, folder: Path, length: int, seconds: float) -> Iterator[Row]:
        """Yields rows of time and memory of the original and of the student in `folder`, for a text of `length` tokens."""
        ...


class Pairs(NamedTuple):
    """Pairs of sentences with human scores of their similarity."""

    first: list[MaskedBatch]
    second: list[MaskedBatch]
    scores: list[float]


def some_of(batch: MaskedBatch, rows: slice) -> MaskedBatch:
    """Returns the texts of a batch that `rows` selects."""
    return MaskedBatch(*(part[rows] for part in batch))
