"""Options of transformer models."""

from dataclasses import dataclass
from typing import Literal

from subquad.checking import BelowOne, Checked, Count, Moderate
from subquad.errors import SubquadError
from subquad.models.activations import Activation

PositionKind = Literal["sinusoidal", "learned", "rotary"]
Norm = Literal["pre", "post"]


@dataclass(frozen=True)
class ModelOptions(Checked):
    """Size and structure of a stack of layers. The defaults are those of the papers' small models."""

    layers: Count = 4  # number of layers
    heads: Count = 8  # number of attention heads
    fewer_heads: Count | None = None  # number of attention heads if fewer than --heads, which then sets model_dim only
    head_dim: Count = 64  # dimension of one head's queries, keys and values
    feed_dim: Count | None = None  # hidden dimension of the feed-forward part; 4 * model_dim if not set
    activation: Activation = "gelu"  # that of the feed-forward part; nelu: elu(x) + 1; nelu-printed: its branches swapped
    positions: PositionKind = "sinusoidal"  # kind of position embedding
    longest: Count = 4096  # largest number of positions, for learned positions
    norm: Norm = "pre"  # layer normalisation before each part, which trains well when deep, or after, as in 2017
    dropout: BelowOne = 0.0  # dropout probability
    tied: bool = True  # whether the output layer is the transpose of the embedding
    share_attention: Count = 1  # number of neighbouring layers that use the attention weights of the first of them
    reversible: bool = False  # whether layers can be inverted, so that training needs no memory for their activations
    starting_gain: Moderate | None = None  # factor on the initial query and key projections; the attention's if not set

    renamed = {"width": "head_dim", "feed_width": "feed_dim"}  # noqa: RUF012

    @property
    def model_dim(self) -> int:
        """Dimension of each position's vector: heads times head_dim."""
        return self.heads * self.head_dim

    @property
    def attention_heads(self) -> int:
        """Number of heads of each attention."""
        return self.fewer_heads or self.heads

    def check(self) -> None:
        if self.attention_heads > self.heads:
            raise SubquadError(f"--fewer-heads must be at most --heads, {self.heads}, but is {self.fewer_heads}")
        if self.positions == "rotary" and self.head_dim % 2:
            raise SubquadError(f"rotary positions turn pairs of coordinates: head_dim must be even, but is {self.head_dim}")
        if self.reversible and self.share_attention > 1:
            raise SubquadError(
                "reversible layers have their own attention weights: leave --share-attention or --reversible out"
            )
        if self.reversible and self.norm == "post":
            raise SubquadError(
                "reversible layers add to their inputs, and a norm afterwards would change them: choose norm pre"
            )
