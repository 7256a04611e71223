"""Drawn shapes, for trying the task without files: one disc, rectangle or triangle on a plain background."""

import numpy as np
from jaxtyping import Bool, UInt8
from numpy import ndarray

from subquad.data.image_files import LabelledImages
from subquad.data.splits import SplitName

SIDE = 16
"""Number of rows and columns unless told."""
NUMBERS: dict[SplitName, int] = {"train": 4000, "test": 500}
"""Number of drawn images in each split."""
SHAPES = ("disc", "rectangle", "triangle")


def drawn_images(size: int, seed: int) -> dict[SplitName, LabelledImages]:
    """Draws grey images of `size` rows and columns. The label of an image is the number of its shape."""
    rng = np.random.default_rng(seed)
    return {split: _draw(number, size, rng) for split, number in NUMBERS.items()}


def _draw(number: int, size: int, rng: np.random.Generator) -> LabelledImages:
    """LabelledImages of a shape with random place, size and brightness, on a dark background of random brightness."""
    labels = rng.integers(0, len(SHAPES), number)
    centres = rng.uniform(0.3, 0.7, (number, 2))
    radii = rng.uniform(0.12, 0.3, (number, 2))
    dark, bright = rng.integers(0, 8, number) * 8, rng.integers(16, 32, number) * 8
    places = (np.arange(size) + 0.5) / size
    pixels = np.empty((number, size, size, 1), np.uint8)
    for at in range(number):
        down, right = (places[:, None] - centres[at, 0], places[None, :] - centres[at, 1])
        pixels[at, ..., 0] = np.where(_inside(SHAPES[labels[at]], down, right, radii[at]), bright[at], dark[at])
    return LabelledImages(pixels, labels)


def _inside(shape: str, down: ndarray, right: ndarray, radii: ndarray) -> Bool[ndarray, "size size"]:
    """Marks the pixels inside a shape, given their distances from its centre."""
    if shape == "disc":
        return down**2 + right**2 <= radii[0] ** 2
    if shape == "rectangle":
        return (abs(down) <= radii[0]) & (abs(right) <= radii[1])
    return (abs(down) <= radii[0]) & (abs(right) <= radii[1] * (down + radii[0]) / (2 * radii[0]))


def sheet(pictures: UInt8[ndarray, "down across rows columns channels"], gap: int = 1) -> UInt8[ndarray, "r c channels"]:
    """Places pictures side by side and below each other, with grey lines of `gap` pixels between them."""
    down, across, rows, columns, channels = pictures.shape
    whole = np.full((down * (rows + gap) - gap, across * (columns + gap) - gap, channels), 128, np.uint8)
    for at in range(down):
        for beside in range(across):
            top, left = at * (rows + gap), beside * (columns + gap)
            whole[top : top + rows, left : left + columns] = pictures[at, beside]
    return whole
