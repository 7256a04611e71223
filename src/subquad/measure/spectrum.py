"""Singular values of attention matrices and their cumulative shares (Wang et al. 2020, figure 1)."""

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
"""Fractions of the number of singular values at which a curve is recorded."""


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
    """Share of the first `index` values in the sum, the largest share that a matrix of this rank can represent."""
    count = min(index, values.shape[-1])
    return cumulative(values)[..., count - 1] if count else torch.zeros_like(values[..., 0])


def effective_rank(values: Float[Tensor, "... r"]) -> Float[Tensor, "..."]:
    """exp of the entropy of the singular values' shares (Roy and Vetterli 2007): r if all are equal, 1 if one is nonzero."""
    shares = values / values.sum(-1, keepdim=True).clamp_min(torch.finfo(values.dtype).tiny)
    return torch.exp(torch.special.entr(shares).sum(-1))


def rank(values: Float[Tensor, "... r"]) -> Float[Tensor, "..."]:
    """Number of singular values above the rounding error of float32, in which models compute."""
    least = values[..., :1] * values.shape[-1] * torch.finfo(torch.float32).eps
    return (values > least).sum(-1).double()


def index_for(length: int) -> int:
    """Index at which the cumulative curves of matrices of this length are read."""
    return INDEX if length >= SHORT * INDEX else max(1, length // SHORT)


def spectrum_rows(
    layers: Sequence[Sequence[Float[Tensor, "h _"]]], about: Mapping[str, Any], bounds: Mapping[str, int]
) -> list[Row]:
    """Returns rows of each layer's and head's curve and figures: mean, minimum and maximum over sequences.

    `layers` has for each layer the singular values of each sequence, by head. `bounds` maps names to ranks: for each, a row
    holds the share that the best matrix of that rank can represent.
    """
    return [row for layer, values in enumerate(layers, start=1) for row in _layer_rows(layer, values, about, bounds)]


def _layer_rows(
    layer: int, sequences: Sequence[Tensor], about: Mapping[str, Any], bounds: Mapping[str, int]
) -> Iterator[Row]:
    lengths = [values.shape[-1] for values in sequences]
    length = sum(lengths) / len(lengths)
    base = {**about, "layer": layer, "length": length, "sequences": len(sequences)}
    shares = torch.stack([share_of_first(values, index_for(values.shape[-1])) for values in sequences])
    index = sum(map(index_for, lengths)) / len(lengths)
    ranks = {metric: torch.stack([measure(values) for values in sequences]) for metric, measure in _RANKS.items()}
    within = {name: torch.stack([share_of_first(values, bound) for values in sequences]) for name, bound in bounds.items()}
    fraction_by_index = {round(fraction * length): fraction for fraction in FRACTIONS}
    curves = torch.stack([_curve(values, list(fraction_by_index.values())) for values in sequences]).mean(0)
    for head in range(shares.shape[1]):
        head_about = {**base, "head": head + 1}
        yield {"metric": "share_at_index", "unit": "share", **_ranged(shares[:, head]), "index": index, **head_about}
        for metric, by_sequence in ranks.items():
            yield {"metric": metric, "unit": "dimensions", **_ranged(by_sequence[:, head]), **head_about}
        for name, by_sequence in within.items():
            about_bound = {"mechanism": name, "rank": bounds[name]}
            yield {
                "metric": "share_within_rank",
                "unit": "share",
                **_ranged(by_sequence[:, head]),
                **about_bound,
                **head_about,
            }
        for at, value in zip(fraction_by_index, curves[head].tolist(), strict=True):
            yield {"metric": "cumulative", "value": value, "unit": "share", "index": at, **head_about}


_RANKS = {"effective_rank": effective_rank, "rank": rank}


def _curve(values: Float[Tensor, "h r"], fractions: Sequence[float]) -> Float[Tensor, "h fractions"]:
    return torch.stack([share_of_first(values, round(fraction * values.shape[-1])) for fraction in fractions], -1)


def _ranged(values: Float[Tensor, "sequences"]) -> dict[str, float]:
    return {"value": float(values.mean()), "low": float(values.min()), "high": float(values.max())}
