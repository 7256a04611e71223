"""A decoder of the values of an image in reading order, and generation of images with its state."""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from subquad.models import Decoder, ModelOptions, Size, linear_numbers, with_stack
from subquad.models.dense import Dense
from subquad.models.initialising import initialise
from subquad.models.positions import Rotation
from subquad.tasks.images.heads import LEVELS, Head
from subquad.types import AttentionOptions

BEGIN = LEVELS
"""Token before the first value."""


class Shape(NamedTuple):
    """Rows, columns and channels of an image."""

    rows: int
    columns: int
    channels: int

    @property
    def values(self) -> int:
        """Number of values of an image: its pixels times their channels."""
        return self.rows * self.columns * self.channels


class PixelDecoder(Decoder):
    """Predicts each value of an image from those before it. It is told row, column and channel of the value to predict."""

    def __init__(
        self,
        shape: Shape,
        outputs: int,
        attention: AttentionOptions,
        options: ModelOptions,
        generator: torch.Generator | None = None,
    ) -> None:
        """`outputs` is the number of numbers for each value that the head takes."""
        super().__init__(LEVELS + 1, attention, options, generator=generator)
        self.shape = shape
        self.last = Dense(options.model_dim, outputs)
        initialise(self.last, generator=generator)
        self.row, self.column, self.channel = (
            nn.Parameter(torch.randn(count, options.model_dim, generator=generator) * options.model_dim**-0.5)
            for count in shape
        )

    def _placed(self, x: Tensor, start: int, at: Tensor | None) -> tuple[Tensor, Rotation | None]:
        """Adds the vectors of the row, the column and the channel of the value that each position predicts."""
        columns, channels = self.shape.columns, self.shape.channels
        place = torch.arange(start, start + x.shape[1], device=x.device)
        pixel = place // channels
        where = self.row[pixel // columns] + self.column[pixel % columns] + self.channel[place % channels]
        return super()._placed(x + where, start, at)


def pixel_size(shape: Shape, outputs: int, attention: AttentionOptions, options: ModelOptions) -> Size:
    """The size of a `PixelDecoder`."""
    dim = options.model_dim
    ends = (LEVELS + 1 + sum(shape)) * dim + linear_numbers(dim, outputs)
    return with_stack(ends, attention, options, positions=shape.values)


def shifted(values: Int[Tensor, "b n"]) -> Int[Tensor, "b n"]:
    """The tokens that a model reads to predict each of the values: the one before it."""
    return torch.cat([torch.full_like(values[:, :1], BEGIN), values[:, :-1]], dim=1)


@torch.no_grad()
def write(
    model: PixelDecoder,
    head: Head,
    known: Int[Tensor, "b n"],
    *,
    temperature: float,
    generator: torch.Generator,
) -> Int[Tensor, "b values"]:
    """Returns whole images that begin with the `known` values. The state of the decoder makes each value one step."""
    model.eval()
    device = next(model.parameters()).device
    begin = torch.full_like(known[:, :1] if known.shape[1] else known.new_zeros(len(known), 1), BEGIN)
    tokens = torch.cat([begin, known], dim=1).to(device)
    numbers, state = model.causal(tokens)
    written = [known]
    for place in range(known.shape[1], model.shape.values):
        value = head.draw(numbers[:, -1], temperature, generator)[:, None]
        written.append(value.cpu())
        if place + 1 < model.shape.values:
            numbers, state = model.step(value, state, reuse=True)
    return torch.cat(written, dim=1)


def unfold(values: Int[Tensor, "b values"], shape: Shape) -> Int[Tensor, "b rows columns channels"]:
    """Values in reading order as images."""
    return values.view(-1, *shape)


def log_probabilities(model: nn.Module, head: Head, values: Int[Tensor, "b n"]) -> Float[Tensor, "b n"]:
    """Log-probability of each value, given those before it."""
    return head.log_probability(model(shifted(values)), values)
