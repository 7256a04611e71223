"""The images of the task by split, in the wanted size and colours."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import UInt8
from numpy import ndarray
from typing_extensions import TypedDict

from subquad.checking import STRICT, Count, Whole, read_as
from subquad.data.images import ImageSet, grey, load_images, resized
from subquad.data.splits import SplitName
from subquad.errors import SubquadError
from subquad.results import place_of
from subquad.tasks.images.model import Shape

Pixels = UInt8[ndarray, "images rows columns channels"]
HELD_OUT_PART = 10
"""One image in so many is held out for a split that the data do not have."""


class Splits(NamedTuple):
    """Images for training, for evaluations during training and for the end, and sentences about what was left out."""

    train: Pixels
    development: Pixels
    test: Pixels
    complaints: tuple[str, ...] = ()

    @property
    def shape(self) -> Shape:
        """Rows, columns and channels of each image."""
        return Shape(*self.train.shape[1:])


class KeptImages(TypedDict):
    """What a run stores about its images: rows, columns and channels, and the number of training images."""

    __pydantic_config__ = STRICT  # type: ignore[misc]

    shape: tuple[Count, Count, Count]
    images: Whole


def read_kept(learned: Mapping[str, Any] | None) -> KeptImages | None:
    """Reads the fields that a run stored. Returns None for a new run, which has none."""
    return None if learned is None else read_as(KeptImages, learned, f"{place_of(learned)}: learned")


def load_pixels(path: Path, side: int, *, is_grey: bool) -> ImageSet:
    """Reads images and brings them to the wanted size and colours."""
    loaded = load_images(path)
    splits = {
        split: images._replace(pixels=changed(images.pixels, side, is_grey)) for split, images in loaded.splits.items()
    }
    return loaded._replace(splits=splits)


def changed(pixels: Pixels, side: int, is_grey: bool) -> UInt8[ndarray, "images height width shades"]:
    """Images in shades of grey if wanted, and with `side` rows and columns unless it is 0."""
    pixels = grey(pixels) if is_grey else pixels
    return resized(pixels, side) if side and pixels.shape[1:3] != (side, side) else pixels


def divide(images: ImageSet, seed: int, source: str) -> Splits:
    """Divides images into three splits. Those that the data do not have are a tenth of the training images each."""
    pixels = {split: of_split.pixels for split, of_split in images.splits.items()}
    missing: list[SplitName] = [split for split in ("development", "test") if split not in pixels]
    train = pixels["train"]
    if len(train) < 1 + len(missing):
        raise SubquadError(f"{source} has {len(train)} images, too few to learn from and to be tested on: give more")
    order = np.random.default_rng(seed).permutation(len(train))
    part = max(1, len(train) // HELD_OUT_PART)
    for at, split in enumerate(missing):
        pixels[split] = train[order[at * part : (at + 1) * part]]
    pixels["train"] = train[np.sort(order[len(missing) * part :])] if missing else train
    return Splits(pixels["train"], pixels["development"], pixels["test"], images.complaints)
