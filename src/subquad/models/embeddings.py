"""Embeddings of tokens, values, times and pixels."""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from subquad.errors import SubquadError
from subquad.models.initialising import initialise
from subquad.models.positions import sinusoids


class TokenEmbedding(nn.Module):
    """Learned vectors of tokens. The transpose can serve as the output layer (tied embeddings)."""

    def __init__(self, vocabulary: int, model_dim: int, generator: torch.Generator | None = None) -> None:
        super().__init__()
        # smaller than the sinusoids that are added to them: a model first has to learn attention by position, and a kernel
        # that is not sharp, such as elu + 1, learns it in far fewer steps when positions stand out
        self.vectors = nn.Parameter(torch.randn(vocabulary, model_dim, generator=generator) / math.sqrt(model_dim))

    def forward(self, tokens: Int[Tensor, "b n"]) -> Float[Tensor, "b n w"]:
        vocabulary = len(self.vectors)
        if tokens.device.type == "cpu" and tokens.numel() and not (0 <= int(tokens.min()) <= int(tokens.max()) < vocabulary):
            outside = next(int(token) for token in tokens.flatten() if not 0 <= int(token) < vocabulary)
            raise SubquadError(f"the symbol {outside} is outside the vocabulary, which goes from 0 to {vocabulary - 1}")
        return F.embedding(tokens, self.vectors)

    def logits(self, hidden: Float[Tensor, "b n w"]) -> Float[Tensor, "b n v"]:
        """Returns the logits of all tokens, by the transpose of the embedding."""
        return hidden @ self.vectors.T


class ValueEmbedding(nn.Module):
    """Linear embedding of several real numbers for each position."""

    def __init__(self, values: int, model_dim: int, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.project = nn.Linear(values, model_dim)
        initialise(self.project, generator=generator)

    def forward(self, values: Float[Tensor, "b n f"]) -> Float[Tensor, "b n w"]:
        projected: Tensor = self.project(values)
        return projected


class TimeEmbedding(nn.Module):
    """Sinusoidal embedding of real-valued times. `unit` is the time that corresponds to one position."""

    def __init__(self, model_dim: int, unit: float = 1.0) -> None:
        super().__init__()
        self.model_dim, self.unit = model_dim, unit

    def forward(self, times: Float[Tensor, "b n"]) -> Float[Tensor, "b n w"]:
        return sinusoids(times / self.unit, self.model_dim).to(times.dtype)


class PixelEmbedding(nn.Module):
    """Embedding of an image's pixels in reading order: intensity, row and column."""

    def __init__(
        self, rows: int, columns: int, model_dim: int, levels: int = 256, generator: torch.Generator | None = None
    ) -> None:
        super().__init__()
        self.rows, self.columns = rows, columns
        self.intensity = TokenEmbedding(levels, model_dim, generator)
        self.row = nn.Parameter(torch.randn(rows, model_dim, generator=generator) * 0.02)
        self.column = nn.Parameter(torch.randn(columns, model_dim, generator=generator) * 0.02)

    def forward(self, pixels: Int[Tensor, "b n"], start: int = 0) -> Float[Tensor, "b n w"]:
        at = torch.arange(start, start + pixels.shape[1], device=pixels.device)
        if len(at) and int(at[-1]) >= self.rows * self.columns:
            raise SubquadError(f"there are {int(at[-1]) + 1} pixels, but the image has {self.rows} rows of {self.columns}")
        where = self.row[at // self.columns] + self.column[at % self.columns]
        embedded: Tensor = self.intensity(pixels) + where
        return embedded
