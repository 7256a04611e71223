"""Which tokens are to be found, and what stands in their places (Devlin et al. 2019, section 3.1)."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from subquad.checking import Checked, InnerShare, Share
from subquad.tasks.mlm.corpus import Windows
from subquad.tasks.mlm.vocabulary import FIRST, MASK


class MaskedBatch(NamedTuple):
    """Tokens as the model sees them, those that stood there, which are to be found, and which are no padding."""

    tokens: Int[Tensor, "b n"]
    right: Int[Tensor, "b n"]
    chosen: Bool[Tensor, "b n"]
    keep: Bool[Tensor, "b n"]


@dataclass(frozen=True)
class Masking(Checked):
    """Shares of tokens that are to be found, and of those among them that become [MASK] or any token; the rest stays."""

    share: InnerShare
    blank: Share
    random: Share
    whole_words: bool

    def mask(self, windows: Windows, size: int, generator: torch.Generator) -> MaskedBatch:
        """Draws what is to be found. `size` is that of the vocabulary."""
        right, starts, keep = windows
        words = starts.cumsum(1) if self.whole_words else torch.arange(right.shape[1]).expand(right.shape)
        chosen = choose(words, keep, self.share, generator)
        fate = torch.rand(right.shape, generator=generator)
        others = torch.randint(FIRST, size, right.shape, generator=generator)
        tokens = torch.where(chosen & (fate < self.blank), MASK, right)
        tokens = torch.where(chosen & (fate >= self.blank) & (fate < self.blank + self.random), others, tokens)
        return MaskedBatch(tokens, right, chosen, keep)


def choose(
    words: Int[Tensor, "b n"], keep: Bool[Tensor, "b n"], share: float, generator: torch.Generator
) -> Bool[Tensor, "b n"]:
    """Words in a random order, until they have a share of the sequence's tokens: as near as whole words can come to it.

    `words` says which word each token is of. One word at least is chosen.
    """
    b, n = words.shape
    score = torch.rand(b, n + 1, generator=generator).gather(1, words).masked_fill(~keep, 2.0)  # padding comes last
    rank = torch.empty_like(words).scatter_(1, score.argsort(dim=1, stable=True), torch.arange(n).expand(b, n))
    ranks, counts = (
        torch.zeros(b, n + 1).scatter_add_(1, words, part.float() * keep) for part in (rank, torch.ones_like(rank))
    )
    middle = (ranks / counts.clamp(min=1)).gather(1, words) + 0.5
    quota = (share * keep.sum(1, keepdim=True)).round().clamp(min=1)
    first = (rank == 0).float() * keep
    of_first = torch.zeros(b, n + 1).scatter_add_(1, words, first).gather(1, words) > 0
    return ((middle < quota) | of_first) & keep
