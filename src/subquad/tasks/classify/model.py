"""A text encoder with a classification head."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from subquad.data.ragged import needed_mask
from subquad.models import ModelOptions
from subquad.models.initialising import initialise
from subquad.tasks.mlm.model import text_encoder
from subquad.types import AttentionOptions


class TextClassifier(nn.Module):
    """An encoder, the mean over the positions of a text, and a linear layer to the logits of the classes."""

    def __init__(
        self,
        size: int,
        classes: int,
        attention: AttentionOptions,
        options: ModelOptions,
        generator: torch.Generator | None = None,
    ) -> None:
        """`size` is the number of tokens in the vocabulary."""
        super().__init__()
        self.encoder = text_encoder(size, attention, options, generator)
        self.dropout = nn.Dropout(options.dropout)
        self.head = nn.Linear(options.model_dim, classes)
        initialise(self.head, generator=generator)

    def forward(self, tokens: Int[Tensor, "b n"], *, keep: Bool[Tensor, "b n"]) -> Float[Tensor, "b classes"]:
        encoded = self.encoder(tokens, keep=needed_mask(keep)).masked_fill(~keep[..., None], 0.0)
        logits: Tensor = self.head(self.dropout(encoded.sum(1) / keep.sum(1, keepdim=True)))
        return logits
