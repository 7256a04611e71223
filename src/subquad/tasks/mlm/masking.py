"""Which tokens are to be predicted, and what replaces them in the input (Devlin et al. 2019, section 3.1)."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from subquad.checking import Checked, InnerShare, Share
from subquad.tasks.mlm.corpus import Windows
from subquad.tasks.mlm.vocabulary import FIRST, MASK


class MaskedBatch(NamedTuple):
    """Input tokens, original tokens, a mask of tokens to be predicted, and a mask that is false at padding."""

    tokens: Int[Tensor, "b n"]
    right: Int[Tensor, "b n"]
    chosen: Bool[Tensor, "b n"]
    keep: Bool[Tensor, "b n"]


@dataclass(frozen=True)
class Masking(Checked):
    """Share of tokens to be predicted, and the shares of these that are replaced by [MASK] or by a random token."""

    share: InnerShare
    blank: Share
    random: Share
    whole_words: bool

    def mask(self, windows: Windows, size: int, generator: torch.Generator) -> MaskedBatch:
        """Draws the tokens to be predicted and their replacements. `size` is the number of tokens in the vocabulary."""
        right, starts, keep = windows
        words = starts.cumsum(1) if self.whole_words else torch.arange(right.shape[1]).expand(right.shape)
        chosen = choose(words, keep, self.share, generator)
        fate = torch.rand(right.shape, generator=generator)
        random_tokens = torch.randint(FIRST, size, right.shape, generator=generator)
        tokens = torch.where(chosen & (fate < self.blank), MASK, right)
        tokens = torch.where(chosen & (fate >= self.blank) & (fate < self.blank + self.random), random_tokens, tokens)
        return MaskedBatch(tokens, right, chosen, keep)


def choose(
    words: Int[Tensor, "b n"], keep: Bool[Tensor, "b n"], share: float, generator: torch.Generator
) -> Bool[Tensor, "b n"]:
    """Chooses random words until they make up a share of each sequence's tokens, as closely as whole words allow.

    `words` has the index of the word that each token belongs to. At least one word is chosen.
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


def single_rows(batch: MaskedBatch, rows: Int[Tensor, "r"]) -> Iterator[MaskedBatch]:
    """Yields the chosen rows of a batch one at a time, without padding."""
    for row in rows.tolist():
        length = int(batch.keep[row].sum())
        yield MaskedBatch(*(part[row : row + 1, :length] for part in batch))
