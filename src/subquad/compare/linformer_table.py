"""Linformer's table of inference speed-up and memory saved, by length n and slots k (Wang et al. 2020, table 3)."""

import re
from typing import NamedTuple

from subquad.compare.views import BASELINE, MATERIALISED, Comparison, View

SLOTS = (128, 256, 512, 1024, 2048)
LENGTHS = "512..16384"
"""Lengths that are measured by default. The published table goes up to 65536."""

# by length, then by k: speed-up and memory saved over the Transformer of 2020, which computed the whole matrix
PUBLISHED: dict[int, dict[int, tuple[float, float]]] = {
    512: {128: (1.5, 1.7), 256: (1.3, 1.5)},
    1024: {128: (1.7, 3.0), 256: (1.6, 2.9), 512: (1.3, 1.8)},
    2048: {128: (2.6, 6.1), 256: (2.4, 5.6), 512: (2.1, 3.6), 1024: (1.3, 2.0)},
    4096: {128: (3.4, 14), 256: (3.2, 13), 512: (2.8, 8.3), 1024: (2.2, 4.3), 2048: (1.3, 2.3)},
    8192: {128: (5.5, 28), 256: (5.0, 26), 512: (4.4, 17), 1024: (3.5, 8.5), 2048: (2.1, 4.5)},
    16384: {128: (8.6, 56), 256: (7.8, 48), 512: (7.0, 32), 1024: (5.6, 16), 2048: (3.3, 8)},
    32768: {128: (13, 56), 256: (12, 48), 512: (11, 36), 1024: (8.8, 18), 2048: (5.0, 16)},
    65536: {128: (20, 60), 256: (18, 52), 512: (16, 40), 1024: (14, 20), 2048: (7.9, 18)},
}


class Entry(NamedTuple):
    """One entry of the table as measured and as published; None for values that were not measured or published."""

    over_fused: float | None
    over_materialised: float | None
    memory_saved: float | None  # against the materialised matrix, as in the paper
    published: tuple[float, float] | None


def name_of(k: int) -> str:
    """Name of the variant with this number of slots in rows."""
    return f"linformer k={k}"


def slots(comparison: Comparison) -> list[int]:
    """The numbers of slots in a run of the grid; an empty list for any other run."""
    matches = [re.fullmatch(r"linformer k=(\d+)", name) for name in comparison.mechanisms]
    return sorted(int(match[1]) for match in matches if match)


def entry(comparison: Comparison, view: View, length: int, k: int) -> Entry:
    """The entry for a length and a number of slots."""
    over = [comparison.speedup(view, name_of(k), length, baseline) for baseline in (BASELINE, MATERIALISED)]
    mine, matrix = (comparison.peak(view, name, length) for name in (name_of(k), MATERIALISED))
    return Entry(
        over_fused=over[0].value if over[0] else None,
        over_materialised=over[1].value if over[1] else None,
        memory_saved=matrix / mine if mine and matrix else None,
        published=PUBLISHED.get(length, {}).get(k),
    )


def layer_view(comparison: Comparison) -> View | None:
    """The view of whole layers, which the table shows, or None if it was not measured."""
    return next((view for view in comparison.views if view.what == "layer"), None)
