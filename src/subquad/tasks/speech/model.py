"""An encoder of sounds: convolutions that halve the number of positions or mix neighbours, then attention, or an LSTM."""

from itertools import pairwise
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from subquad.data.ragged import needed_mask
from subquad.models import Encoder, ModelOptions, Size, linear_numbers, with_stack
from subquad.models.initialising import initialise
from subquad.types import AttentionOptions

KERNEL = 5
"""Number of positions that a convolution sees."""
NEIGHBOURS = 15
"""Number of positions that a convolution over neighbours sees."""
EncoderKind = Literal["attention", "lstm"]


class SpeechModel(nn.Module):
    """Log-probabilities of the blank and of each unit at every position. Positions are fewer than frames."""

    def __init__(
        self,
        features: int,
        units: int,
        attention: AttentionOptions,
        options: ModelOptions,
        *,
        halvings: int,
        convolutions: int = 0,
        encoder: EncoderKind = "attention",
        generator: torch.Generator | None = None,
    ) -> None:
        """Builds the model.

        Args:
            features: number of features of a frame.
            units: number of characters or phones, without the blank.
            attention: options of the encoder's mechanism; an LSTM has none.
            options: size and structure of the encoder.
            halvings: number of convolutions that halve the number of positions.
            convolutions: number of `Neighbourhood` layers between these and the encoder.
            encoder: attention, or an LSTM in both directions.
            generator: random generator for the initial weights.
        """
        super().__init__()
        dim = options.model_dim
        widths = [features] + [dim] * halvings
        self.convolutions = nn.ModuleList(
            nn.Conv1d(before, after, KERNEL, stride=2, padding=KERNEL // 2) for before, after in pairwise(widths)
        )
        for layer in self.convolutions:
            assert isinstance(layer, nn.Conv1d)
            nn.init.xavier_uniform_(layer.weight, generator=generator)
            assert layer.bias is not None
            nn.init.zeros_(layer.bias)
        self.dropout = nn.Dropout(options.dropout)
        self.neighbourhoods = nn.ModuleList(
            Neighbourhood(dim, dropout=options.dropout, generator=generator) for _ in range(convolutions)
        )
        if encoder == "attention":
            self.encoder: nn.Module = Encoder(nn.Identity(), attention, options, generator=generator)
        else:
            self.encoder = BidirectionalLstm(options, generator)
        self.head = nn.Linear(dim, units + 1)
        initialise(self.head, generator=generator)

    def forward(
        self, frames: Float[Tensor, "b n f"], keep: Bool[Tensor, "b n"]
    ) -> tuple[Float[Tensor, "b m units"], Bool[Tensor, "b m"]]:
        """Returns log-probabilities and the mask of their positions. Frames that are padding must be zero."""
        x = frames.mT
        for convolution in self.convolutions:
            keep = keep[:, ::2]
            x = F.gelu(convolution(x)) * keep[:, None]  # what lies beyond the end stays zero, as padding does
        x = self.dropout(x.mT)
        for neighbourhood in self.neighbourhoods:
            x = neighbourhood(x, keep)
        encoded = self.encoder(x, keep=needed_mask(keep))
        return self.head(encoded).float().log_softmax(-1), keep


class Neighbourhood(nn.Module):
    """A convolution of each channel over neighbouring positions, gated, with a residual connection (Gulati et al. 2020).

    An attention after it gets what lies close by already mixed, which linear attention is slow to single out.
    """

    def __init__(self, dim: int, *, dropout: float, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.norm, self.norm_mixed = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.gated, self.out = nn.Linear(dim, 2 * dim), nn.Linear(dim, dim)
        self.mix = nn.Conv1d(dim, dim, NEIGHBOURS, padding=NEIGHBOURS // 2, groups=dim)
        initialise(self.gated, generator=generator)
        initialise(self.out, generator=generator)
        nn.init.kaiming_uniform_(self.mix.weight, nonlinearity="linear", generator=generator)
        assert self.mix.bias is not None
        nn.init.zeros_(self.mix.bias)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Float[Tensor, "b n w"], keep: Bool[Tensor, "b n"]) -> Float[Tensor, "b n w"]:
        """Returns x with its neighbours mixed in; positions that are padding are not read."""
        gated = F.glu(self.gated(self.norm(x)), -1) * keep[..., None]
        mixed = F.silu(self.norm_mixed(self.mix(gated.mT).mT))
        return x + self.dropout(self.out(mixed))


def neighbourhood_numbers(dim: int) -> int:
    """Number of parameters of a `Neighbourhood`."""
    return 4 * dim + linear_numbers(dim, 2 * dim) + linear_numbers(dim, dim) + dim * (NEIGHBOURS + 1)


class BidirectionalLstm(nn.Module):
    """PyTorch's LSTM in both directions, each with half of model_dim: the paper's baseline for speech."""

    def __init__(self, options: ModelOptions, generator: torch.Generator | None) -> None:
        super().__init__()
        dim = options.model_dim
        dropout = options.dropout if options.layers > 1 else 0.0
        self.lstm = nn.LSTM(dim, dim // 2, options.layers, batch_first=True, dropout=dropout, bidirectional=True)
        for weights in self.lstm.parameters():
            nn.init.uniform_(weights, -((dim // 2) ** -0.5), (dim // 2) ** -0.5, generator=generator)

    def forward(self, x: Float[Tensor, "b n w"], *, keep: Bool[Tensor, "b n"] | None = None) -> Float[Tensor, "b n w"]:
        """Returns a vector for each position; padding at the end of a sequence is not read."""
        if keep is None:
            return self.lstm(x)[0]
        packed = nn.utils.rnn.pack_padded_sequence(x, keep.sum(1).cpu(), batch_first=True, enforce_sorted=False)
        encoded, _ = nn.utils.rnn.pad_packed_sequence(self.lstm(packed)[0], batch_first=True, total_length=x.shape[1])
        return encoded


def speech_size(
    features: int,
    units: int,
    attention: AttentionOptions,
    options: ModelOptions,
    *,
    halvings: int,
    convolutions: int = 0,
    encoder: EncoderKind,
) -> Size:
    """The size of a `SpeechModel`."""
    dim = options.model_dim
    widths = [features] + [dim] * (halvings - 1)
    ends = sum((KERNEL * width + 1) * dim for width in widths) + linear_numbers(dim, units + 1)
    ends += convolutions * neighbourhood_numbers(dim)
    if encoder == "attention":
        return with_stack(ends, attention, options)
    half = dim // 2
    lstm = options.layers * 2 * 4 * half * (dim + half + 2)
    return Size(ends + lstm, ends + lstm)
