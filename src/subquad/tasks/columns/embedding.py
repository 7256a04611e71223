"""Vectors of columns: the sum of a vector for each symbol and a direction for each number."""

from collections.abc import Iterable, Sequence

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor


def embed_columns(
    fields: Float[Tensor, "b n f"],
    widths: Sequence[int],
    vectors: Iterable[Float[Tensor, "symbols w"]],
    directions: Float[Tensor, "numbers w"] | None,
) -> Float[Tensor, "b n w"] | float:
    """The sum over all columns of a row as `encode_columns` returns it; 0 if there are none.

    Args:
        fields: symbols of all columns, then numbers of some.
        widths: number of symbols of a cell, for each column.
        vectors: a vector for each symbol, for each column.
        directions: a vector for each number; None without numbers.
    """
    summed: Tensor | float = 0.0
    first = 0
    for width, table in zip(widths, vectors, strict=True):
        summed = summed + F.embedding(fields[..., first : first + width].long(), table).sum(-2)
        first += width
    return summed if directions is None else summed + fields[..., first:] @ directions
