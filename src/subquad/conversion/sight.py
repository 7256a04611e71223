"""Which keys a mechanism weighs exactly, and which tokens can be predicted only from keys beyond them."""

import math
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from subquad.tasks.mlm.masking import MaskedBatch
from subquad.types import AttentionOptions

USUAL_REACH = 32
"""Distance in tokens beyond which a token counts as far, for a mechanism that weighs no key exactly."""
STRETCH = 8  # number of tokens that are replaced to measure the effect far from them
QUERIES = 512  # number of places that are searched for at a time


class Sight(NamedTuple):
    """The keys that a query weighs exactly: its own block, and a number of blocks before and after it."""

    block: float  # block length in positions: 0 if no key is weighed exactly, infinity if all are
    before: int = 0  # number of blocks before the query's own
    after: int = 0  # number of blocks after the query's own

    @property
    def reach(self) -> float:
        """Distance beyond which no key is weighed exactly, wherever the query stands in its block."""
        return self.block * (1 + max(self.before, self.after)) - 1 if self.block else USUAL_REACH

    def outside(self, length: int, *, causal: bool) -> float:
        """Share of the query-key pairs in a text of `length` tokens that are not weighed exactly."""
        places = np.arange(length)
        total = places + 1 if causal else np.full(length, length)
        if self.block == 0 or math.isinf(self.block):
            return 0.0 if self.block else 1.0
        blocks = places // self.block
        first = ((blocks - self.before) * self.block).clip(min=0)
        last = np.minimum(total, (blocks + self.after + 1) * self.block)
        return float(1 - (last - first).sum() / total.sum())


EVERYTHING, NOTHING = Sight(math.inf), Sight(0)


def sight_of(attention: AttentionOptions | None) -> Sight:
    """Returns the sight of a mechanism. None stands for a layer that keeps its exact attention."""
    if attention is None or attention.traits.exact:
        return EVERYTHING
    window = attention.traits.window
    return NOTHING if window is None else Sight(*window)


def far_tokens(batch: MaskedBatch, reach: float, *, causal: bool) -> Bool[Tensor, "b n"]:
    """Chosen places whose right token is visible only farther away than `reach`.

    A causal model predicts the next token at each place, and sees the tokens up to that place. A masked model sees all
    tokens except the chosen ones.
    """
    visible = batch.keep if causal else batch.keep & ~batch.chosen
    far_by_text = [_far_in(*row, reach, causal) for row in zip(batch.tokens, batch.right, visible, strict=True)]
    return torch.stack(far_by_text) & batch.chosen


def _far_in(
    tokens: Int[Tensor, "n"], right: Int[Tensor, "n"], visible: Bool[Tensor, "n"], reach: float, causal: bool
) -> Bool[Tensor, "n"]:
    keys = torch.arange(len(tokens), device=tokens.device)
    far = []
    for places in keys.split(QUERIES):
        distance = places[:, None] - keys
        same = (right[places, None] == tokens) & visible & ((distance >= 0) | (not causal))
        near = distance.abs() <= reach
        far.append((same & ~near).any(1) & ~(same & near).any(1))
    return torch.cat(far)


class Change(NamedTuple):
    """Texts before and after an excerpt of each is replaced."""

    before: MaskedBatch
    after: MaskedBatch
    far: Bool[Tensor, "b n"]  # places farther than the reach from the replaced excerpt


def change(batch: MaskedBatch, reach: float, generator: torch.Generator) -> Change | None:
    """Replaces an excerpt of each text by tokens of another text. Returns None if no text is long enough for a far place.

    The excerpt begins beyond the reach of the first token, from which some models make the vector of the text.
    """
    sizes = batch.keep.sum(1)
    long_enough = torch.nonzero(sizes > reach + STRETCH + 2)[:, 0]
    if not len(long_enough):
        return None
    before = MaskedBatch(*(part[long_enough] for part in batch))
    tokens, far = before.tokens.clone(), before.keep.clone()
    places = torch.arange(tokens.shape[1])
    for row, size in enumerate(sizes[long_enough].tolist()):
        first = int(reach) + 1
        start = first + int(torch.randint(size - STRETCH - first, (1,), generator=generator))
        other = before.tokens[(row + 1) % len(long_enough)]
        drawn = 1 + torch.randint(int(sizes[long_enough][(row + 1) % len(long_enough)]) - 2, (STRETCH,), generator=generator)
        tokens[row, start : start + STRETCH] = other[drawn]
        far[row] &= (places < start - reach) | (places >= start + STRETCH + reach)
    return Change(before, before._replace(tokens=tokens, right=tokens), far)
