"""The classifier of all tasks of the Long Range Arena: an encoder, one vector for each sequence, and two layers."""

from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from subquad.data.ragged import needed_mask
from subquad.models import ModelOptions, linear_numbers
from subquad.models.initialising import initialise
from subquad.tasks.mlm.model import text_encoder
from subquad.types import AttentionOptions

Pooling = Literal["mean", "first"]
PAIR_PARTS = 4
"""Number of vectors that describe a pair: both sequences' vectors, their difference and their product."""


class SequenceClassifier(nn.Module):
    """Encodes a sequence, or both sequences of a pair in the same way, and gives the logits of the classes."""

    def __init__(
        self,
        vocabulary: int,
        classes: int,
        attention: AttentionOptions,
        options: ModelOptions,
        *,
        pooling: Pooling,
        paired: bool,
        generator: torch.Generator | None = None,
    ) -> None:
        """`pooling` takes the mean over all positions, or the vector at the first one."""
        super().__init__()
        self.pooling, self.paired = pooling, paired
        self.encoder = text_encoder(vocabulary, attention, options, generator)
        inputs, hidden = head_sizes(options, paired=paired)
        self.dropout = nn.Dropout(options.dropout)
        self.hidden, self.head = nn.Linear(inputs, hidden), nn.Linear(hidden, classes)
        initialise(self.hidden, self.head, generator=generator)

    def forward(
        self,
        tokens: Int[Tensor, "b n"],
        keep: Bool[Tensor, "b n"],
        second: Int[Tensor, "b m"] | None = None,
        second_keep: Bool[Tensor, "b m"] | None = None,
    ) -> Float[Tensor, "b classes"]:
        vector = self._encode(tokens, keep)
        if self.paired:
            assert second is not None
            assert second_keep is not None
            other = self._encode(second, second_keep)
            vector = torch.cat([vector, other, vector - other, vector * other], dim=1)
        logits: Tensor = self.head(self.dropout(F.gelu(self.hidden(self.dropout(vector)))))
        return logits

    def _encode(self, tokens: Tensor, keep: Tensor) -> Tensor:
        """One vector for each sequence."""
        encoded: Tensor = self.encoder(tokens, keep=needed_mask(keep))
        if self.pooling == "first":
            return encoded[:, 0]
        return encoded.masked_fill(~keep[..., None], 0.0).sum(1) / keep.sum(1, keepdim=True)


def head_sizes(options: ModelOptions, *, paired: bool) -> tuple[int, int]:
    """Numbers of inputs and of hidden units of the two layers after the encoder."""
    return options.model_dim * (PAIR_PARTS if paired else 1), options.feed_dim or 4 * options.model_dim


def head_numbers(options: ModelOptions, classes: int, *, paired: bool) -> int:
    """Number of weights of the two layers after the encoder."""
    inputs, hidden = head_sizes(options, paired=paired)
    return linear_numbers(inputs, hidden) + linear_numbers(hidden, classes)
