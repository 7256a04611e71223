"""What a mechanism weighs exactly, and which tokens of a text can be known only from what lies beyond it."""

import math
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from subquad.tasks.mlm.masking import MaskedBatch
from subquad.types import AttentionOptions

USUAL_REACH = 32
"""Distance in tokens beyond which a token is far for a mechanism that weighs no token exactly."""
STRETCH = 8  # tokens that are replaced to see what changes far from them
QUERIES = 512  # places whose tokens are looked for at a time


class Sight(NamedTuple):
    """The keys that a query weighs exactly: those of its own block, and of some blocks before and after it."""

    block: float  # positions: 0 where no key is weighed exactly, infinity where all are
    before: int = 0
    after: int = 0

    @property
    def reach(self) -> float:
        """Distance beyond which no key is weighed exactly, whatever the query's place in its block."""
        return self.block * (1 + max(self.before, self.after)) - 1 if self.block else USUAL_REACH

    def outside(self, length: int, *, causal: bool) -> float:
        """Share of all pairs of a query and a key in a text that are not weighed exactly."""
        places = np.arange(length)
        total = places + 1 if causal else np.full(length, length)
        if self.block == 0 or math.isinf(self.block):
            return 0.0 if self.block else 1.0
        own = places // self.block
        first = ((own - self.before) * self.block).clip(min=0)
        last = np.minimum(total, (own + self.after + 1) * self.block)
        return float(1 - (last - first).sum() / total.sum())


EVERYTHING, NOTHING = Sight(math.inf), Sight(0)


def sight_of(attention: AttentionOptions | None) -> Sight:
    """What a mechanism weighs exactly. None stands for a layer that keeps its exact attention."""
    if attention is None or attention.traits.exact:
        return EVERYTHING
    window = attention.traits.window
    return NOTHING if window is None else Sight(*window)


def far_tokens(batch: MaskedBatch, reach: float, *, causal: bool) -> Bool[Tensor, "b n"]:
    """The places to be found whose token stands in view farther away than the reach, and nowhere within it.

    A causal model is asked at each place for the next token, and sees up to that place. Another one sees all tokens but
    those that were taken out.
    """
    visible = batch.keep if causal else batch.keep & ~batch.chosen
    found = [_far_in(*row, reach, causal) for row in zip(batch.tokens, batch.right, visible, strict=True)]
    return torch.stack(found) & batch.chosen


def _far_in(
    tokens: Int[Tensor, "n"], right: Int[Tensor, "n"], visible: Bool[Tensor, "n"], reach: float, causal: bool
) -> Bool[Tensor, "n"]:
    keys = torch.arange(len(tokens), device=tokens.device)
    found = []
    for places in keys.split(QUERIES):
        distance = places[:, None] - keys
        same = (right[places, None] == tokens) & visible & ((distance >= 0) | (not causal))
        near = distance.abs() <= reach
        found.append((same & ~near).any(1) & ~(same & near).any(1))
    return torch.cat(found)


class Change(NamedTuple):
    """Texts in which a stretch of tokens is replaced."""

    before: MaskedBatch
    after: MaskedBatch
    far: Bool[Tensor, "b n"]  # places that are farther from the stretch than the reach


def change(batch: MaskedBatch, reach: float, generator: torch.Generator) -> Change | None:
    """Replaces a stretch of each text by tokens of another. None where no text is long enough to have a far place.

    The stretch begins beyond the reach of the first token, which is the one that some models make a text's vector of.
    """
    sizes = batch.keep.sum(1)
    some = torch.nonzero(sizes > reach + STRETCH + 2)[:, 0]
    if not len(some):
        return None
    before = MaskedBatch(*(part[some] for part in batch))
    tokens, far = before.tokens.clone(), before.keep.clone()
    places = torch.arange(tokens.shape[1])
    for row, size in enumerate(sizes[some].tolist()):
        first = int(reach) + 1
        start = first + int(torch.randint(size - STRETCH - first, (1,), generator=generator))
        other = before.tokens[(row + 1) % len(some)]
        drawn = 1 + torch.randint(int(sizes[some][(row + 1) % len(some)]) - 2, (STRETCH,), generator=generator)
        tokens[row, start : start + STRETCH] = other[drawn]
        far[row] &= (places < start - reach) | (places >= start + STRETCH + reach)
    return Change(before, before._replace(tokens=tokens, right=tokens), far)
