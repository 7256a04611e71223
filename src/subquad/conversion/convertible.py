"""What a conversion asks of a model."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

from jaxtyping import Bool, Float
from torch import Tensor, nn

from subquad.results import Row
from subquad.tasks.mlm.masking import MaskedBatch
from subquad.types import AttentionOptions

Kind = Literal["encoder", "masked", "causal"]
"""What a model gives: vectors, the tokens that were taken out of a text, or the next token of one."""

Split = Literal["development", "test"]
"""Text that nobody learns from: the one to decide by, and the one to tell by what came of it."""

Goal = Literal["hidden", "logits", "task"]
"""What is tuned for: the original's hidden states, its predictions, or the text itself."""


class Outputs(NamedTuple):
    """Outputs of a model for a batch."""

    hidden: tuple[Float[Tensor, "b n w"], ...]  # after each layer
    logits: Float[Tensor, "places v"] | None  # at the chosen places


class Convertible(Protocol):
    """A trained model, with text to learn from and text that is held out.

    A batch is what the model sees, what stood or comes there, the places whose token is to be found, and what is no padding.
    """

    teacher: nn.Module
    """The original, in eval mode, with its exact attention as mechanisms; nothing ever changes it."""

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
        """A copy with other mechanisms; None keeps a layer exact."""
        ...

    def mechanisms(self, model: nn.Module) -> list[nn.Module]:
        """The mechanisms of the teacher or of a student, layer by layer."""
        ...

    def embeddings(self, model: nn.Module) -> list[nn.Parameter]:
        """Embedding parameters, which are never trained."""
        ...

    def batch(self, tokens: int, length: int, seed: int) -> MaskedBatch:
        """Stretches of the text to learn from, about so many tokens together."""
        ...

    def held_out(self, split: Split, count: int, length: int, seed: int) -> MaskedBatch:
        """Stretches of a text that is held out: so many, unless it is settled which ones they are."""
        ...

    def outputs(self, model: nn.Module, batch: MaskedBatch, *, logits: bool = False) -> Outputs:
        """What the teacher or a student makes of a batch."""
        ...

    def pool(self, hidden: Float[Tensor, "b n w"], keep: Bool[Tensor, "b n"]) -> Float[Tensor, "b w"]:
        """A vector for each text, of the last hidden states."""
        ...

    def pairs(self, most: int | None = None) -> "Pairs | None":
        """Sentences that people have compared, where some are given: all, or at most so many from all over them."""
        ...

    def save(self, model: nn.Module, attention: Sequence[AttentionOptions | None], folder: Path) -> None:
        """Leaves a student with these mechanisms for others to load."""
        ...

    @property
    def has_costs(self) -> bool:
        """Whether there is something that measures its time and memory."""
        ...

    def costs(self, folder: Path, length: int, seconds: float) -> Iterator[Row]:
        """Time and memory of a text of a length, of the original and of the student in a folder, in about some seconds."""
        ...


class Pairs(NamedTuple):
    """Pairs of sentences, and how alike people found them."""

    first: list[MaskedBatch]
    second: list[MaskedBatch]
    scores: list[float]


def some_of(batch: MaskedBatch, rows: slice) -> MaskedBatch:
    """Some texts of a batch."""
    return MaskedBatch(*(part[rows] for part in batch))
