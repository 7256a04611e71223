"""Which layers of the original a smaller student keeps."""

from subquad.conversion.convertible import Convertible
from subquad.errors import SubquadError


def choose_layers(original: Convertible, layers: int | None) -> None:
    """Sets the layers that students of a model keep: evenly spaced ones, or all if `layers` is None."""
    count = len(original.mechanisms(original.teacher))
    if layers is not None and layers > count:
        raise SubquadError(f"--layers is {layers}, but the model has {count} attention layers: give fewer")
    original.origins = evenly_spaced(count if layers is None else layers, count)


def evenly_spaced(layers: int, count: int) -> list[int]:
    """Chooses layers out of `count`, the first and the last among them; a single one is the last.

    Six of twelve are those that DistilBERT was made of (Sanh et al. 2019): 0, 2, 4, 7, 9 and 11.
    """
    if layers == 1:
        return [count - 1]
    return [round(place * (count - 1) / (layers - 1)) for place in range(layers)]
