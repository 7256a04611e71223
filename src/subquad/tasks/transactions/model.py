"""A classifier of histories: from a client's events to one logit."""

import math
from collections.abc import Sequence
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from subquad.data.ragged import needed_mask
from subquad.models import Encoder, ModelOptions, linear_numbers
from subquad.models.initialising import initialise
from subquad.tasks.transactions.features import IDS, NUMBERS, UNKNOWN
from subquad.types import AttentionOptions

SMALL = 0.02  # standard deviation of initial vectors
LOUD = 3.0  # factor of the initial vectors of the code and of the time since the first event

Pooling = Literal["mean", "last", "attention"]


class EventEmbedding(nn.Module):
    """The sum of a vector for each symbol and a direction for each number, normalized and mixed.

    Mixing multiplies vectors, because often only a combination of fields is informative, such as a code at a certain hour.
    """

    def __init__(self, sizes: Sequence[int], model_dim: int, generator: torch.Generator | None = None) -> None:
        """`sizes` are the numbers of symbols of the fields in `IDS`."""
        super().__init__()
        assert len(sizes) == len(IDS)
        # Small initial vectors change direction quickly under Adam, whose steps have a fixed size. Their size does not
        # matter otherwise, because a norm follows.
        self.symbols = nn.ParameterList(
            nn.Parameter(torch.randn(size, model_dim, generator=generator) * SMALL) for size in sizes
        )
        self.numbers = nn.Parameter(torch.randn(len(NUMBERS), model_dim, generator=generator) * SMALL)
        with torch.no_grad():
            # changing habits show in the code and the time together, and are learned sooner if other fields are weaker
            self.symbols[IDS.index("code")] *= LOUD
            self.numbers[NUMBERS.index("time since the first event")] *= LOUD
            for vectors in self.symbols[:2]:
                vectors[UNKNOWN] = 0.0  # unknown symbols are never trained, so they should add nothing
        self.norm = nn.LayerNorm(model_dim)
        self.mix = nn.Linear(model_dim, 2 * model_dim)
        initialise(self.mix, generator=generator)

    def forward(self, events: Float[Tensor, "b n f"]) -> Float[Tensor, "b n w"]:
        summed = events[..., len(IDS) :] @ self.numbers
        for field, vectors in enumerate(self.symbols):
            summed = summed + nn.functional.embedding(events[..., field].long(), vectors)
        mixed, gate = self.mix(self.norm(summed)).chunk(2, dim=-1)
        return mixed * (1.0 + gate)


def classifier_numbers(symbols: int, model_dim: int, pooling: Pooling) -> int:
    """Number of parameters of `Classifier` outside of its stack. `symbols` counts those of all fields together."""
    embedding = (symbols + len(NUMBERS)) * model_dim + 2 * model_dim + linear_numbers(model_dim, 2 * model_dim)
    pooled = {"last": 0, "mean": 1, "attention": 1 + linear_numbers(model_dim, 1)}
    return embedding + pooled[pooling] + linear_numbers(model_dim, 1)


class Classifier(nn.Module):
    """An encoder, a pooled vector of the history, and the logit of class 1.

    Long histories carry more evidence. Pooled vectors are therefore scaled by (events / typical)^growth, between a mean (0)
    and a sum (1), to which independent events would add up. The exponent `growth` is learned.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        attention: AttentionOptions,
        options: ModelOptions,
        *,
        pooling: Pooling = "mean",
        typical: float = 1.0,
        generator: torch.Generator | None = None,
    ) -> None:
        """`typical` is the mean number of events in a history."""
        super().__init__()
        model_dim = options.model_dim
        self.pooling: Pooling = pooling
        self.typical = typical
        self.growth = None if pooling == "last" else nn.Parameter(torch.tensor(0.5))
        self.encoder = Encoder(EventEmbedding(sizes, model_dim, generator), attention, options, generator=generator)
        self.weigh = nn.Linear(model_dim, 1) if pooling == "attention" else None
        self.head = nn.Linear(model_dim, 1)
        initialise(self.head, generator=generator)
        if self.weigh is not None:
            nn.init.zeros_(self.weigh.weight)  # all positions have the same weight at first
            nn.init.zeros_(self.weigh.bias)

    def forward(self, events: Float[Tensor, "b n f"], *, keep: Bool[Tensor, "b n"]) -> Float[Tensor, "b"]:
        logits: Tensor = self.head(self._pool(self.encoder(events, keep=needed_mask(keep)), keep)).squeeze(-1)
        return logits

    def _pool(self, x: Float[Tensor, "b n w"], keep: Bool[Tensor, "b n"]) -> Float[Tensor, "b w"]:
        """Pools the vectors of real positions into one."""
        if self.growth is None:
            places = torch.arange(keep.shape[1], device=keep.device)
            return x[torch.arange(len(x), device=x.device), (places * keep).argmax(1)]
        if self.weigh is not None:
            weights = self.weigh(x).squeeze(-1).float().masked_fill(~keep, -math.inf).softmax(1)
        else:
            weights = keep / keep.sum(1, keepdim=True)
        pooled = (weights[..., None] * x.masked_fill(~keep[..., None], 0.0)).sum(1)
        return pooled * (keep.sum(1, keepdim=True) / self.typical) ** self.growth
