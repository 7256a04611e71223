"""A model of histories: from a client's events to the outputs of a target."""

import math
from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from subquad.data.ragged import needed_mask
from subquad.models import Encoder, ModelOptions, linear_numbers
from subquad.models.initialising import initialise
from subquad.tasks.columns.embedding import embed_columns
from subquad.tasks.transactions.features import FIELDS, IDS, NUMBERS, UNKNOWN, Layout
from subquad.types import AttentionOptions

SMALL = 0.02  # standard deviation of initial vectors
LOUD = 3.0  # factor of the initial vectors of the code and of the time since the first event

Pooling = Literal["mean", "last", "attention"]


class EventEmbedding(nn.Module):
    """The sum of a vector for each symbol and a direction for each number, normalized and mixed.

    Mixing multiplies vectors, because often only a combination of fields is informative, such as a code at a certain hour.
    """

    def __init__(self, layout: Layout, model_dim: int, generator: torch.Generator | None = None) -> None:
        """`layout` tells where symbols and numbers are in an encoded event."""
        super().__init__()
        assert len(layout.sizes) == len(IDS) + len(layout.widths)
        self.layout = layout

        def drawn(size: int) -> nn.Parameter:
            # Small initial vectors change direction quickly under Adam, whose steps have a fixed size. Their size does not
            # matter otherwise, because a norm follows.
            return nn.Parameter(torch.randn(size, model_dim, generator=generator) * SMALL)

        self.symbols = nn.ParameterList(drawn(size) for size in layout.sizes[: len(IDS)])
        self.numbers = drawn(len(NUMBERS))
        with torch.no_grad():
            # changing habits show in the code and the time together, and are learned sooner if other fields are weaker
            self.symbols[IDS.index("code")] *= LOUD
            self.numbers[NUMBERS.index("time since the first event")] *= LOUD
            for vectors in self.symbols[: IDS.index("weekday")]:
                vectors[UNKNOWN] = 0.0  # unknown symbols may never be trained, so they should add nothing
        self.norm = nn.LayerNorm(model_dim)
        self.mix = nn.Linear(model_dim, 2 * model_dim)
        initialise(self.mix, generator=generator)
        self.further = nn.ParameterList(drawn(size) for size in layout.sizes[len(IDS) :])
        self.further_numbers = drawn(layout.numbers) if layout.numbers else None
        with torch.no_grad():
            for vectors in self.further:
                vectors[UNKNOWN] = 0.0

    def forward(self, events: Float[Tensor, "b n f"]) -> Float[Tensor, "b n w"]:
        summed = events[..., len(IDS) : len(FIELDS)] @ self.numbers
        for field, vectors in enumerate(self.symbols):
            summed = summed + nn.functional.embedding(events[..., field].long(), vectors)
        summed = summed + embed_columns(events[..., len(FIELDS) :], self.layout.widths, self.further, self.further_numbers)
        mixed, gate = self.mix(self.norm(summed)).chunk(2, dim=-1)
        return mixed * (1.0 + gate)


class Heads(NamedTuple):
    """What surrounds the encoder of a `Classifier`."""

    outputs: int = 1
    """Number of outputs of the target."""
    static: int = 0
    """Number of numbers that the columns of clients become."""
    wide: bool = False
    """Whether the outputs of a linear model of aggregates are added."""


def classifier_numbers(
    symbols: int, model_dim: int, pooling: Pooling, layout: Layout | None = None, heads: Heads | None = None
) -> int:
    """Number of parameters of `Classifier` outside of its stack. `symbols` counts those of all fields together."""
    layout, heads = layout or Layout(()), heads or Heads()
    numbers = len(NUMBERS) + layout.numbers
    embedding = (symbols + numbers) * model_dim + 2 * model_dim + linear_numbers(model_dim, 2 * model_dim)
    pooled = {"last": 0, "mean": 1, "attention": 1 + linear_numbers(model_dim, 1)}
    static = heads.static * model_dim if heads.static else 0
    return embedding + pooled[pooling] + linear_numbers(model_dim, heads.outputs) + static + heads.wide


class Classifier(nn.Module):
    """An encoder, a pooled vector of the history, and the outputs of a target, such as the logit of class 1.

    Long histories carry more evidence. Pooled vectors are therefore scaled by (events / typical)^growth, between a mean (0)
    and a sum (1), to which independent events would add up. The exponent `growth` is learned.

    With a wide branch, the outputs are those of a linear model of aggregates, times a learned gate, plus what the encoder
    adds to them.
    """

    def __init__(
        self,
        layout: Layout,
        attention: AttentionOptions,
        options: ModelOptions,
        *,
        pooling: Pooling = "mean",
        typical: float = 1.0,
        heads: Heads | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        """`typical` is the mean number of events in a history."""
        super().__init__()
        heads = heads or Heads()
        model_dim = options.model_dim
        self.pooling: Pooling = pooling
        self.typical = typical
        self.growth = None if pooling == "last" else nn.Parameter(torch.tensor(0.5))
        self.encoder = Encoder(EventEmbedding(layout, model_dim, generator), attention, options, generator=generator)
        self.weigh = nn.Linear(model_dim, 1) if pooling == "attention" else None
        self.head = nn.Linear(model_dim, heads.outputs)
        initialise(self.head, generator=generator)
        if self.weigh is not None:
            nn.init.zeros_(self.weigh.weight)  # all positions have the same weight at first
            nn.init.zeros_(self.weigh.bias)
        self.static = nn.Linear(heads.static, model_dim, bias=False) if heads.static else None
        if self.static is not None:
            nn.init.normal_(self.static.weight, std=SMALL, generator=generator)
        self.gate = nn.Parameter(torch.ones(())) if heads.wide else None
        if self.gate is not None:
            with torch.no_grad():
                self.head.weight *= SMALL  # at first the outputs are those of the linear model

    def forward(
        self,
        events: Float[Tensor, "b n f"],
        *,
        keep: Bool[Tensor, "b n"],
        static: Float[Tensor, "b s"] | None = None,
        offset: Float[Tensor, "b o"] | None = None,
    ) -> Float[Tensor, "b o"]:
        """Returns the outputs. `static` are columns of clients; `offset` the outputs of a linear model of aggregates."""
        outputs: Tensor = self.head(self.vector(events, keep=keep, static=static))
        return outputs if self.gate is None or offset is None else outputs + self.gate * offset

    def vector(
        self, events: Float[Tensor, "b n f"], *, keep: Bool[Tensor, "b n"], static: Float[Tensor, "b s"] | None = None
    ) -> Float[Tensor, "b w"]:
        """A vector for each client, from which the outputs are computed."""
        pooled = self._pool(self.encoder(events, keep=needed_mask(keep)), keep)
        return pooled if self.static is None or static is None else pooled + self.static(static)

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
