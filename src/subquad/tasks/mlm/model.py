"""An encoder with a head that predicts the token at each position."""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from subquad.models import Encoder, ModelOptions, TokenEmbedding
from subquad.models.initialising import initialise
from subquad.types import AttentionOptions


class TextEmbedding(TokenEmbedding):
    """Token vectors scaled to the size of the sinusoids that are added to them (Vaswani et al. 2017, section 3.4).

    Models learn in fewer steps if positions do not dominate the tokens.
    """

    def forward(self, tokens: Int[Tensor, "b n"]) -> Float[Tensor, "b n w"]:
        return super().forward(tokens) * math.sqrt(self.vectors.shape[1])


def text_encoder(
    size: int, attention: AttentionOptions, options: ModelOptions, generator: torch.Generator | None = None
) -> Encoder:
    """The encoder shared by masked language models and text classifiers."""
    sinusoidal = options.positions == "sinusoidal"
    embed = (TextEmbedding if sinusoidal else TokenEmbedding)(size, options.model_dim, generator)
    return Encoder(embed, attention, options, generator=generator)


class MaskedModel(nn.Module):
    """BERT's architecture: encoder, a layer with GELU and normalization, and the transposed embedding with a bias."""

    def __init__(
        self, size: int, attention: AttentionOptions, options: ModelOptions, generator: torch.Generator | None = None
    ) -> None:
        """`size` is the number of tokens in the vocabulary."""
        super().__init__()
        model_dim = options.model_dim
        self.encoder = text_encoder(size, attention, options, generator)
        self.mix, self.norm = nn.Linear(model_dim, model_dim), nn.LayerNorm(model_dim)
        initialise(self.mix, generator=generator)
        self.bias = nn.Parameter(torch.zeros(size))
        self.last: nn.Parameter | None = None
        if not options.tied:
            self.last = nn.Parameter(torch.randn(size, model_dim, generator=generator) / math.sqrt(model_dim))

    def forward(
        self,
        tokens: Int[Tensor, "b n"],
        *,
        keep: Bool[Tensor, "b n"] | None = None,
        chosen: Bool[Tensor, "b n"] | None = None,
    ) -> Float[Tensor, "*places v"]:
        """Logits of the token at each position, or only at the chosen positions, one after the other."""
        hidden = self.encoder(tokens, keep=keep)
        hidden = self.norm(F.gelu(self.mix(hidden if chosen is None else hidden[chosen])))
        vectors = self.encoder.embed.vectors if self.last is None else self.last
        assert isinstance(vectors, Tensor)
        return hidden @ vectors.T + self.bias
