"""Random excerpts of texts, which begin with a sentence if one begins nearby."""

import re
from collections.abc import Sequence

import numpy as np
import torch

AHEAD = 400
"""Number of characters that are searched for the beginning of a sentence."""
PER_TOKEN = 6
"""Number of characters read for each token: more than most tokens have; the excess is cut off later."""

_SENTENCE = re.compile(r"[.!?]['\")\u2019\u201d]*\s+|\n\s*\n\s*")
_WORD = re.compile(r"\s+")


def draw_stretches(texts: Sequence[str], count: int, tokens: int, generator: torch.Generator) -> list[str]:
    """Draws `count` excerpts with enough characters for `tokens` tokens each. Texts are drawn in proportion to length."""
    sizes = np.array([len(text) for text in texts])
    ends = np.cumsum(sizes)
    wanted = tokens * PER_TOKEN
    places = torch.randint(int(ends[-1]), (count,), generator=generator).numpy()
    shares = torch.rand(count, generator=generator).double().numpy()
    excerpts = []
    for which, share in zip(np.searchsorted(ends, places, side="right"), shares, strict=True):
        last_start = max(0, int(sizes[which]) - wanted)
        excerpts.append(_from(texts[which], int(share * (last_start + 1)), wanted))
    return excerpts


def _from(text: str, start: int, wanted: int) -> str:
    """Cuts `wanted` characters from the next sentence after `start`, or from the next word."""
    if start:
        ahead = text[start : start + AHEAD]
        begins = _SENTENCE.search(ahead) or _WORD.search(ahead)
        start += begins.end() if begins is not None else 0
    return text[start : start + wanted].strip() or text[:wanted]
