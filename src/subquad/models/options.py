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
    width: Count = 64  # of a head
    feed_width: Count | None = None  # of the inner layer; four times the model's width unless told
    positions: PositionKind = "sinusoidal"
    longest: Count = 4096  # positions, where they are learned
    norm: Norm = "pre"  # before each part, which trains well when deep, or after it, as in 2017
    dropout: BelowOne = 0.0
    tied: bool = True  # whether the last layer is the embedding's transpose

    @property
    def model_width(self) -> int:
        """Of all heads together."""
        return self.heads * self.width

    def check(self) -> None:
        if self.positions == "rotary" and self.width % 2:
            raise SubquadError(f"rotary positions turn pairs of coordinates: width must be even, but is {self.width}")
