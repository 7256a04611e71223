"""Which layers and heads of the original a smaller student keeps."""

from typing import Any

from subquad.conversion.convertible import Convertible
from subquad.errors import SubquadError


def choose_layers(original: Convertible, layers: int | None) -> None:
    """Sets the layers that students of a model keep: evenly spaced ones, or all if `layers` is None."""
    count = len(original.mechanisms(original.teacher))
    if layers is not None and layers > count:
        raise SubquadError(f"--layers is {layers}, but the model has {count} attention layers: give fewer")
    original.origins = evenly_spaced(count if layers is None else layers, count)


def choose_heads(original: Convertible, heads: int | None) -> None:
    """Sets the attention heads that students of a model keep: evenly spaced ones, or all if `heads` is None.

    Where query heads share keys and values in groups, every group keeps equally many.
    """
    mechanism: Any = original.mechanisms(original.teacher)[0]
    count = mechanism.heads
    if heads is None:
        original.kept_heads = list(range(count))
        return
    if heads > count:
        raise SubquadError(f"--heads is {heads}, but the model has {count} attention heads: give fewer")
    groups = original.head_groups()
    size = count // groups
    if size == 1:
        original.kept_heads = evenly_spaced(heads, count)
        return
    if heads % groups:
        raise SubquadError(
            f"--heads is {heads}, but must be a multiple of {groups}, the model's heads of keys and values, each of which "
            f"{size} heads of queries share"
        )
    in_group = evenly_spaced(heads // groups, size)
    original.kept_heads = [group * size + place for group in range(groups) for place in in_group]


def evenly_spaced(layers: int, count: int) -> list[int]:
    """Chooses layers, or heads, out of `count`, the first and the last among them; a single one is the last.

    Six of twelve are those that DistilBERT was made of (Sanh et al. 2019): 0, 2, 4, 7, 9 and 11.
    """
    if layers == 1:
        return [count - 1]
    return [round(place * (count - 1) / (layers - 1)) for place in range(layers)]
