"""Models of series: an encoder of steps, and what is read from it: quantiles of later steps, or a target."""

import math
from itertools import pairwise

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from subquad.data.ragged import needed_mask
from subquad.models import Encoder, ModelOptions, ValueEmbedding
from subquad.models.initialising import initialise
from subquad.types import AttentionOptions

LEVELS = tuple(round(0.05 * at, 2) for at in range(1, 20))
"""Levels of the quantiles that are forecast: 5%, 10%, ..., 95%."""
MIDDLE = len(LEVELS) // 2
SMALLEST_SPREAD = 0.05
"""Smallest standard deviation of a context, in those of the training part, by which its forecasts are scaled."""


class LocalEmbedding(nn.Module):
    """Linear embedding of each step together with its neighbours; there are zeros beyond the ends."""

    def __init__(self, inputs: int, model_dim: int, reach: int, generator: torch.Generator | None = None) -> None:
        """`reach` is the odd number of steps that are read together."""
        super().__init__()
        self.reach = reach
        self.embed = ValueEmbedding(inputs * reach, model_dim, generator)

    def forward(self, inputs: Float[Tensor, "b n f"]) -> Float[Tensor, "b n w"]:
        half = self.reach // 2
        neighbours = F.pad(inputs, (0, 0, half, half)).unfold(1, self.reach, 1)  # b n f reach
        embedded: Tensor = self.embed(neighbours.flatten(2))
        return embedded


class SeriesClassifier(nn.Module):
    """An encoder of values, of which are known, and of gaps; the mean over steps; and the outputs of a target."""

    def __init__(
        self,
        channels: int,
        outputs: int,
        attention: AttentionOptions,
        options: ModelOptions,
        *,
        reach: int,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        embed = LocalEmbedding(2 * channels + 1, options.model_dim, reach, generator)
        self.encoder = Encoder(embed, attention, options, generator=generator)
        self.dropout = nn.Dropout(options.dropout)
        self.head = nn.Linear(options.model_dim, outputs)
        initialise(self.head, generator=generator)

    def forward(
        self,
        values: Float[Tensor, "b n c"],
        mask: Bool[Tensor, "b n c"],
        gaps: Float[Tensor, "b n"],
        *,
        keep: Bool[Tensor, "b n"],
    ) -> Float[Tensor, "b o"]:
        """Returns the outputs. Missing values and padding are 0."""
        inputs = torch.cat([values, mask.to(values.dtype), gaps[..., None]], dim=-1)
        encoded = self.encoder(inputs, keep=needed_mask(keep)).masked_fill(~keep[..., None], 0.0)
        outputs: Tensor = self.head(self.dropout(encoded.sum(1) / keep.sum(1, keepdim=True)))
        return outputs


class Forecaster(nn.Module):
    """Quantiles of the steps after a context, all at once.

    The steps to forecast are positions without values behind the context, and the encoder sees all of them. Values are
    relative to the mean and the spread of the known values of the context, which the model is told, too. With `linear`, a
    linear function of the context, the same for all channels, is added to the medians.
    """

    def __init__(
        self,
        channels: int,
        context: int,
        horizon: int,
        attention: AttentionOptions,
        options: ModelOptions,
        *,
        reach: int,
        linear: bool,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.channels, self.horizon = channels, horizon
        embed = LocalEmbedding(4 * channels + 2, options.model_dim, reach, generator)
        self.encoder = Encoder(embed, attention, options, generator=generator)
        self.head = nn.Linear(options.model_dim, channels * len(LEVELS))
        initialise(self.head, generator=generator)
        self.linear = nn.Linear(context, horizon) if linear else None
        if self.linear is not None:
            nn.init.zeros_(self.linear.weight)
            nn.init.zeros_(self.linear.bias)
        with torch.no_grad():  # the first forecast is about a normal distribution with the spread of the context
            self.head.weight.mul_(0.1)
            self.head.bias.view(channels, -1).copy_(torch.tensor(_first_gaps()))

    def forward(
        self,
        values: Float[Tensor, "b n c"],
        mask: Bool[Tensor, "b n c"],
        keep: Bool[Tensor, "b n"],
        gaps: Float[Tensor, "b m"],
    ) -> Float[Tensor, "b h c q"]:
        """Returns quantiles of the values of each step, in the order of `LEVELS`."""
        present = mask.to(values.dtype)
        count = present.sum(1, keepdim=True).clamp(min=1.0)
        centre = (values * present).sum(1, keepdim=True) / count
        spread = (((values - centre) * present).square().sum(1, keepdim=True) / count).sqrt().clamp(min=SMALLEST_SPREAD)
        relative = (values - centre) / spread * present
        known = torch.cat([relative, present], dim=-1)
        length = values.shape[1]
        about = torch.cat([centre.asinh(), spread.log()], dim=-1).expand(-1, length + self.horizon, -1)
        ahead = F.pad(torch.ones_like(gaps[:, length:]), (length, 0))
        inputs = torch.cat([F.pad(known, (0, 0, 0, self.horizon)), about, ahead[..., None], gaps[..., None]], dim=-1)
        kept = F.pad(keep, (0, self.horizon), value=True)
        encoded = self.encoder(inputs.masked_fill(~kept[..., None], 0.0), keep=needed_mask(kept))[:, length:]
        raw = self.head(encoded).float().unflatten(-1, (self.channels, len(LEVELS)))
        middle = raw[..., MIDDLE : MIDDLE + 1]
        if self.linear is not None:
            middle = middle + self.linear(relative.transpose(1, 2)).transpose(1, 2)[..., None].float()
        below = -F.softplus(raw[..., :MIDDLE]).flip(-1).cumsum(-1).flip(-1)
        above = F.softplus(raw[..., MIDDLE + 1 :]).cumsum(-1)
        quantiles = torch.cat([middle + below, middle, middle + above], dim=-1)
        return centre[..., None].float() + spread[..., None].float() * quantiles


def _first_gaps() -> list[float]:
    """Outputs for which the quantiles are those of a standard normal distribution."""
    normal = torch.distributions.Normal(0.0, 1.0).icdf(torch.tensor(LEVELS)).tolist()
    gaps = [abs(after - before) for before, after in pairwise(normal)]
    inverse = [math.log(math.expm1(gap)) for gap in gaps]  # of softplus
    return [*inverse[:MIDDLE], 0.0, *inverse[MIDDLE:]]


def pinball(quantiles: Float[Tensor, "*n q"], truth: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
    """Twice the mean quantile loss over `LEVELS`, which approximates the continuous ranked probability score."""
    levels = torch.tensor(LEVELS, dtype=quantiles.dtype, device=quantiles.device)
    missed = truth[..., None] - quantiles
    return 2.0 * torch.maximum(levels * missed, (levels - 1.0) * missed).mean(-1)
