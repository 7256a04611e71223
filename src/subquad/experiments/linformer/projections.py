"""What Linformer's projections E and F learn: how close they are to means, to fixed positions and to singular vectors.

Each closeness is a share of a projection's squared weights, 0 to 1. The same shares of the weights before training say what
is chance, and those of the change from before to after training say what was learned.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from subquad.attention import LinformerAttention
from subquad.attention.linformer import LearnedSlots
from subquad.experiments.linformer.grid import Variant
from subquad.measure.lowrank import (
    by_centre,
    leading_vectors,
    neighbour_means,
    share_of_average,
    share_of_positions,
    share_within,
)
from subquad.models import mechanisms_of
from subquad.results import Row
from subquad.runs import load, rebuild

AVERAGE, NEIGHBOURS, POSITIONS, SINGULAR = "average", "neighbours", "positions", "singular"
CLOSENESS = {
    AVERAGE: "the mean of all positions",
    NEIGHBOURS: "means of neighbours",
    POSITIONS: "k fixed positions",
    SINGULAR: "top singular vectors",
}
"""Metrics of closeness and what each is close to, in words."""
LEARNED = "learned"
"""Metric for how much of the weights is learned: squared change over squared change plus squared initial weights."""
WEIGHTS = "weights"
"""Metric of a row that holds the weights of one slot as text, for heat maps."""
TRAINED, FRESH, CHANGE = "trained", "fresh weights", "change"
SIDES = {1: ("keys and values",), 2: ("keys", "values")}
"""What each of a layer's sets of weights projects, by their number."""
SHOWN_SLOTS = 64
"""Largest number of slots in a heat map."""


class Projection(NamedTuple):
    """Learned weights of one or several layers, for each group of heads, before and after training."""

    layers: tuple[int, ...]
    side: str
    trained: Float[Tensor, "groups k n"]
    fresh: Float[Tensor, "groups k n"]


def projection_rows(folder: str, variant: Variant, seed: int, grams: Sequence[Float[Tensor, "h n n"]]) -> Iterator[Row]:
    """Yields the closeness of all projections of a trained model. `grams` are those of softmax's matrices, by layer."""
    about = {"unit": "share", "length": variant.length, "k": variant.k, "sharing": variant.sharing, "seed": seed}
    for projection in projections(folder):
        vectors = leading_vectors(_shared(projection, grams), variant.k)
        by_model = {TRAINED: projection.trained, FRESH: projection.fresh, CHANGE: projection.trained - projection.fresh}
        where = {**about, "layer": projection.layers[0], "side": projection.side}
        for model, weights in by_model.items():
            for metric, shares in closeness(weights, vectors).items():
                for head, share in enumerate(shares.tolist(), start=1):
                    yield {"metric": metric, "value": share, "model": model, "head": head, **where}
        for head, share in enumerate(_learned(projection).tolist(), start=1):
            yield {"metric": LEARNED, "value": share, "model": CHANGE, "head": head, **where}


def weight_rows(folder: str, variant: Variant, seed: int) -> Iterator[Row]:
    """Yields the weights of the first group of heads of each projection, by slot: trained, and what training changed."""
    for projection in projections(folder):
        about: Row = {"length": variant.length, "k": variant.k, "sharing": variant.sharing, "seed": seed}
        about |= {"layer": projection.layers[0], "side": projection.side}
        change = projection.trained - projection.fresh
        for model, weights in ((TRAINED, projection.trained[0]), (CHANGE, change[0])):
            for slot, place in enumerate(by_centre(weights)[:SHOWN_SLOTS].tolist(), start=1):
                text = " ".join(f"{weight:.3g}" for weight in weights[place].tolist())
                yield {"metric": WEIGHTS, "value": slot, "model": model, "text": text, **about}


def closeness(weights: Float[Tensor, "g k n"], vectors: Float[Tensor, "#g k n"]) -> Mapping[str, Float[Tensor, "g"]]:
    """The shares of each group's squared weights, by metric."""
    return {
        AVERAGE: share_of_average(weights),
        NEIGHBOURS: share_within(weights, neighbour_means(*weights.shape[1:])),
        POSITIONS: share_of_positions(weights),
        SINGULAR: share_within(weights, vectors),
    }


def projections(folder: str) -> list[Projection]:
    """All learned projections of a trained Linformer. One that several layers share is listed once."""
    trained = load(folder, say=lambda words: None)
    before = rebuild(trained.run.about)[1].model
    pairs = zip(_slots(trained), _slots(before), strict=True)
    found: dict[int, tuple[list[int], LearnedSlots, LearnedSlots]] = {}
    for layer, (after, fresh) in enumerate(pairs, start=1):
        found.setdefault(id(after), ([], after, fresh))[0].append(layer)
    return [
        Projection(tuple(layers), side, weight.detach(), initial.detach())
        for layers, after, fresh in found.values()
        for side, weight, initial in zip(SIDES[len(after.weight)], after.weight, fresh.weight, strict=True)
    ]


def _slots(model: nn.Module) -> list[LearnedSlots]:
    """The projections of each layer."""
    slots = [attend.projection for attend in mechanisms_of(model) if isinstance(attend, LinformerAttention)]
    return [projection for projection in slots if isinstance(projection, LearnedSlots)]


def _shared(projection: Projection, grams: Sequence[Float[Tensor, "h n n"]]) -> Float[Tensor, "g n n"]:
    """The mean gram over the layers that share a projection, and over heads unless each has its own."""
    mean = torch.stack([grams[layer - 1] for layer in projection.layers]).mean(0)
    return mean if len(projection.trained) > 1 else mean.mean(0, keepdim=True)


def _learned(projection: Projection) -> Float[Tensor, "g"]:
    change, initial = (weights.square().sum((1, 2)) for weights in (projection.trained - projection.fresh, projection.fresh))
    return change / (change + initial)
