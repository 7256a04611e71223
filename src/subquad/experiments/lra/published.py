"""Published results of the Long Range Arena (Tay et al. 2020, tables 1 and 2), and what differs here."""

from collections.abc import Mapping
from typing import NamedTuple

TASKS = ("lra-listops", "lra-text", "lra-retrieval", "lra-image", "lra-pathfinder")
ACCURACIES: Mapping[str, tuple[float, ...]] = {
    "Transformer": (36.37, 64.27, 57.46, 42.44, 71.40),
    "Linformer": (35.70, 53.94, 52.27, 38.56, 76.34),
    "Reformer": (37.27, 56.10, 53.40, 38.07, 68.50),
    "BigBird": (36.05, 64.02, 59.29, 40.83, 74.87),
    "Linear Transformer": (16.13, 65.90, 53.09, 42.34, 75.30),
    "Performer": (18.01, 65.40, 53.82, 42.77, 77.05),
}
"""Test accuracy in percent, in the order of `TASKS`."""
COUNTERPARTS: Mapping[str, str] = {
    "softmax": "Transformer",
    "linformer": "Linformer",
    "lsh": "Reformer",
    "sparse": "BigBird",
    "linear": "Linear Transformer",
    "favor": "Performer",
}
"""The published model with a mechanism, or with the one that is nearest to it."""
LENGTH = 4096
"""Length at which published speeds and memory are given here."""
SPEEDS: Mapping[str, float] = {
    "Linformer": 5.5,
    "Linear Transformer": 5.6,
    "Performer": 5.7,
    "Reformer": 0.8,
    "BigBird": 1.1,
}
"""Steps in a second against the Transformer at this length."""
MEMORY: Mapping[str, float] = {
    "Transformer": 9.48,
    "Linformer": 0.99,
    "Linear Transformer": 1.03,
    "Performer": 1.06,
    "Reformer": 2.28,
}
"""Gigabytes at this length."""


class Gap(NamedTuple):
    """A published difference to the Transformer."""

    task: str
    mechanism: str
    points: float


def gaps(at_least: float) -> list[Gap]:
    """Published differences to the Transformer of at least so many percentage points, in either direction."""
    differences = [
        Gap(task, mechanism, round(accuracies[place] - ACCURACIES["Transformer"][place], 2))
        for place, task in enumerate(TASKS)
        for mechanism, model in COUNTERPARTS.items()
        if (accuracies := ACCURACIES[model]) and mechanism != "softmax"
    ]
    return [gap for gap in differences if abs(gap.points) >= at_least]


DIFFERENCES = (
    "Published models have 4 to 6 layers of width 128 to 512 on texts and lists, 1 layer on pictures, 5,000 to 62,500 "
    "steps, and a learning rate chosen for each task; those of the quick scale here are smaller, and sequences are shorter.",
    "Lists are drawn by the published grammar; the released ones are read from --data FOLDER/listops.",
    "Texts are IMDB's if they are in FOLDER/text; without them, Python's docstrings by package.",
    "Retrieval is on citations of papers where published; here on FOLDER/retrieval, or on pairs of docstrings of one module "
    "or two, which is another task.",
    "Pictures are CIFAR-10's if they are in FOLDER/image; without them, 1,797 digits of 8 x 8 pixels.",
    "Pathfinder is drawn here: discs are as far apart in both classes, paths keep a distance, and pictures have no shades.",
    "Reformer and BigBird are beside lsh and sparse, the attentions here that are nearest to theirs.",
    "Published speeds are steps of whole models on TPUs against attention that keeps its matrix; here attention alone, "
    "forward and backward, against PyTorch's fused softmax.",
)
"""What differs between the published comparison and this one."""
