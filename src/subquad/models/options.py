"""The size and the make of a model."""

from dataclasses import dataclass
from typing import Literal

from subquad.checking import BelowOne, Checked, Count
from subquad.errors import SubquadError

PositionKind = Literal["sinusoidal", "learned", "rotary"]
Norm = Literal["pre", "post"]


@dataclass(frozen=True)
class ModelOptions(Checked):
    """The size and the make of a stack. The defaults are those of the papers' small models."""

    layers: Count = 4
    heads: Count = 8
    head_dim: Count = 64  # numbers of a query, key or value of one head
    feed_dim: Count | None = None  # of the inner layer; 4 * model_dim unless told
    positions: PositionKind = "sinusoidal"
    longest: Count = 4096  # positions, where they are learned
    norm: Norm = "pre"  # before each part, which trains well when deep, or after it, as in 2017
    dropout: BelowOne = 0.0
    tied: bool = True  # whether the last layer is the embedding's transpose

    renamed = {"width": "head_dim", "feed_width": "feed_dim"}  # noqa: RUF012

    @property
    def model_dim(self) -> int:
        """Numbers of each position, those of all heads together."""
        return self.heads * self.head_dim

    def check(self) -> None:
        if self.positions == "rotary" and self.head_dim % 2:
            raise SubquadError(f"rotary positions turn pairs of coordinates: head_dim must be even, but is {self.head_dim}")
