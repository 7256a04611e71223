"""Candidates of a race of conversions: which attention replaces softmax in which layers of a trained model."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from subquad.attention import Softmax, joined
from subquad.choose.standings import SOFTMAX
from subquad.results import Row
from subquad.types import AttentionOptions

SHARES = (1.0, 0.5, 0.25)
"""Shares of the layers that are converted, the cheapest model first."""


class Candidate(NamedTuple):
    """A conversion of some layers of a model."""

    name: str
    mechanism: str
    """Name of the new attention."""
    attention: AttentionOptions
    converted: tuple[int, ...]
    """Layers that get the new attention, counted from 0."""
    layers: int
    """Number of attention layers of the model."""

    @property
    def exact(self) -> tuple[int, ...]:
        """Layers that keep softmax attention."""
        return tuple(layer for layer in range(self.layers) if layer not in self.converted)

    @property
    def by_layer(self) -> AttentionOptions:
        """The attention of all layers."""
        return joined([self.attention if layer in self.converted else Softmax() for layer in range(self.layers)])

    @property
    def gives_up(self) -> str:
        """What a user does without, and which layers still have softmax attention."""
        kept = ", ".join(map(str, self.exact))
        return self.attention.traits.gives_up + (f"; softmax stays in layers {kept}, counted from 0" if kept else "")


def rounds_of(attentions: Mapping[str, AttentionOptions], ranks: Sequence[float]) -> list[list[Candidate]]:
    """Candidates by round: first all layers are converted, then fewer, and layers of low rank before those of high rank.

    Args:
        attentions: the new attentions by name.
        ranks: the effective rank of the attention matrices of each layer.
    """
    layers = len(ranks)
    order = sorted(range(layers), key=lambda layer: ranks[layer])
    counts = dict.fromkeys(math.ceil(share * layers) for share in SHARES)
    return [
        [
            Candidate(f"{name} in {count} of {layers} layers", name, attention, tuple(sorted(order[:count])), layers)
            for name, attention in attentions.items()
        ]
        for count in counts
    ]


def candidate_costs(rows: Sequence[Row], candidates: Sequence[Candidate]) -> Iterator[Row]:
    """Yields costs of candidates from those of models with one attention in all layers.

    Seconds are added in the proportion of the layers. Memory is that of the attention that takes most.
    """
    known = {(row["mechanism"], row["what"], row["form"], row["length"]): row["value"] for row in rows}
    for candidate in candidates:
        share = len(candidate.converted) / candidate.layers
        for row in rows:
            softmax = known.get((SOFTMAX, row["what"], row["form"], row["length"]))
            if row["mechanism"] != candidate.mechanism or softmax is None:
                continue
            seconds = share * row["value"] + (1 - share) * softmax
            memory = max(row["value"], softmax) if share < 1 else row["value"]
            yield row | {"mechanism": candidate.name, "value": memory if row["what"] == "memory" else seconds}
