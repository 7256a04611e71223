"""Stretches of texts: from anywhere, but beginning with a sentence where one begins nearby."""

import re
from collections.abc import Sequence

import numpy as np
import torch

AHEAD = 400
"""Characters in which a sentence's beginning is looked for."""
PER_TOKEN = 6
"""Characters that are read for a token: more than most have, as what is too much is cut off."""

_SENTENCE = re.compile(r"[.!?]['\")\u2019\u201d]*\s+|\n\s*\n\s*")
_WORD = re.compile(r"\s+")


def draw_stretches(texts: Sequence[str], count: int, tokens: int, generator: torch.Generator) -> list[str]:
    """So many stretches, each with characters for so many tokens. A text is drawn as often as it is long."""
    sizes = np.array([len(text) for text in texts])
    ends = np.cumsum(sizes)
    wanted = tokens * PER_TOKEN
    places = torch.randint(int(ends[-1]), (count,), generator=generator).numpy()
    shares = torch.rand(count, generator=generator).double().numpy()
    found = []
    for which, share in zip(np.searchsorted(ends, places, side="right"), shares, strict=True):
        room = max(0, int(sizes[which]) - wanted)
        found.append(_from(texts[which], int(share * (room + 1)), wanted))
    return found


def _from(text: str, start: int, wanted: int) -> str:
    """What stands behind a place, from the next sentence on, or from the next word on."""
    if start:
        ahead = text[start : start + AHEAD]
        begins = _SENTENCE.search(ahead) or _WORD.search(ahead)
        start += begins.end() if begins is not None else 0
    return text[start : start + wanted].strip() or text[:wanted]
