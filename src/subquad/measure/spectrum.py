"""The singular values of attention matrices: how few of them hold most of a matrix (Wang et al. 2020, figure 1)."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from subquad.errors import SubquadError
from subquad.results import Row

INDEX = 128
"""Index at which Linformer's heat map reads the cumulative curves of 512 positions."""
SHORT = 4
"""Divisor of the length that gives the index for shorter sequences."""
FRACTIONS = sorted({0.0, 1 / 512, 2 / 512, 4 / 512, 8 / 512, *(step / 32 for step in range(1, 33))})
"""Fractions of the number of singular values at which a curve is kept."""


def singular_values(matrices: Float[Tensor, "... n s"]) -> Float[Tensor, "... r"]:
    """Singular values in descending order, computed in float64 so that small ones are not noise."""
    if not bool(matrices.isfinite().all()):
        raise SubquadError("an attention matrix holds numbers that are not finite: look at the model's weights")
    return torch.linalg.svdvals(matrices.double())


def cumulative(values: Float[Tensor, "... r"]) -> Float[Tensor, "... r"]:
    """Cumulative share of the singular values' sum, from the first alone to all of them."""
    sums = values.cumsum(-1)
    return sums / sums[..., -1:].clamp_min(torch.finfo(values.dtype).tiny)


def share_of_first(values: Float[Tensor, "... r"], index: int) -> Float[Tensor, "..."]:
    """Share of the sum that the first `index` values hold, which is the most that a matrix of this rank can have."""
    count = min(index, values.shape[-1])
    return cumulative(values)[..., count - 1] if count else torch.zeros_like(values[..., 0])


def effective_rank(values: Float[Tensor, "... r"]) -> Float[Tensor, "..."]:
    """exp of the entropy of the singular values over their sum (Roy and Vetterli 2007): r where all are equal, 1 for one."""
    shares = values / values.sum(-1, keepdim=True).clamp_min(torch.finfo(values.dtype).tiny)
    return torch.exp(torch.special.entr(shares).sum(-1))


def rank(values: Float[Tensor, "... r"]) -> Float[Tensor, "..."]:
    """Number of singular values above the rounding error of float32, in which models compute."""
    least = values[..., :1] * values.shape[-1] * torch.finfo(torch.float32).eps
    return (values > least).sum(-1).double()


def index_for(length: int) -> int:
    """Index at which the curves of a length are read."""
    return INDEX if length >= SHORT * INDEX else max(1, length // SHORT)


def spectrum_rows(
    layers: Sequence[Sequence[Float[Tensor, "h r"]]], about: Mapping[str, Any], bounds: Mapping[str, int]
) -> list[Row]:
    """Every layer's and head's curve and figures: means over sequences, with the lowest and the highest.

    `layers` has for each layer the singular values of each sequence, by head. `bounds` are ranks that something can have, by
    its name: a row says how much the best matrix of that rank holds.
    """
    return [row for layer, found in enumerate(layers, start=1) for row in _layer_rows(layer, found, about, bounds)]


def _layer_rows(layer: int, found: Sequence[Tensor], about: Mapping[str, Any], bounds: Mapping[str, int]) -> Iterator[Row]:
    lengths = [values.shape[-1] for values in found]
    length = sum(lengths) / len(lengths)
    base = {**about, "layer": layer, "length": length, "sequences": len(found)}
    shares = torch.stack([share_of_first(values, index_for(values.shape[-1])) for values in found])
    index = sum(map(index_for, lengths)) / len(lengths)
    ranks = {metric: torch.stack([measure(values) for values in found]) for metric, measure in _RANKS.items()}
    within = {name: torch.stack([share_of_first(values, most) for values in found]) for name, most in bounds.items()}
    kept = {round(fraction * length): fraction for fraction in FRACTIONS}
    curves = torch.stack([_curve(values, list(kept.values())) for values in found]).mean(0)
    for head in range(shares.shape[1]):
        own = {**base, "head": head + 1}
        yield {"metric": "share_at_index", "unit": "share", **_ranged(shares[:, head]), "index": index, **own}
        for metric, each in ranks.items():
            yield {"metric": metric, "unit": "dimensions", **_ranged(each[:, head]), **own}
        for name, each in within.items():
            about_bound = {"mechanism": name, "rank": bounds[name]}
            yield {"metric": "share_within_rank", "unit": "share", **_ranged(each[:, head]), **about_bound, **own}
        for at, value in zip(kept, curves[head].tolist(), strict=True):
            yield {"metric": "cumulative", "value": value, "unit": "share", "index": at, **own}


_RANKS = {"effective_rank": effective_rank, "rank": rank}


def _curve(values: Float[Tensor, "h r"], fractions: Sequence[float]) -> Float[Tensor, "h fractions"]:
    return torch.stack([share_of_first(values, round(fraction * values.shape[-1])) for fraction in fractions], -1)


def _ranged(values: Float[Tensor, "sequences"]) -> dict[str, float]:
    return {"value": float(values.mean()), "low": float(values.min()), "high": float(values.max())}
