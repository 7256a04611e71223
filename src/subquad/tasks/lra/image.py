"""Pictures pixel by pixel: CIFAR-10 in grey (Krizhevsky 2009), read as 1024 intensities without their places."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from subquad.checking import Seed, excerpt
from subquad.data.splits import SplitName, shuffled
from subquad.errors import SubquadError
from subquad.tasks.lra.base import ArenaOptions, Unlabelled
from subquad.tasks.lra.pictures import Pictures, PictureSplits, load_pictures, read_png
from subquad.tasks.lra.sources import Example, Loaded, Source

LEVELS = 256
"""Number of intensities of a pixel."""
CIFAR_PIXELS = 1024
LEAST = 10
"""Smallest number of training pictures of which a tenth can be held out."""


@dataclass(frozen=True)
class Image(ArenaOptions):
    """Long Range Arena: classify grey pictures read pixel by pixel. CIFAR-10's files, or 1,797 digits of scikit-learn."""

    split_seed: Seed = 0  # seed for taking a tenth of the training pictures for development
    kind: str = field(default="lra-image", init=False)

    @property
    def vocabulary(self) -> int:
        return LEVELS

    @property
    def longest(self) -> int:
        return CIFAR_PIXELS if self.data else 64

    def load(self) -> Loaded:
        """Reads the pictures, and takes a tenth of those for training for development."""
        splits = load_pictures(Path(self.data)) if self.data else digits()
        count = len(splits.train.labels)
        if count < LEAST:
            raise SubquadError(f"{self.data} has {count} training pictures, too few to be split: give at least {LEAST}")
        order = shuffled([f"{number:09d}" for number in range(count)], self.split_seed)
        development, train = order[: count // 10], order[count // 10 :]
        sources: dict[SplitName, Source] = {
            "train": picture_source(_at(splits.train, train)),
            "development": picture_source(_at(splits.train, development)),
            "test": picture_source(splits.test),
        }
        pixels = int(np.prod(splits.train.images.shape[1:]))
        return Loaded(sources, splits.names, pixels)

    def parse(self, words: Sequence[str], longest: int) -> Example:
        return Example(intensities(words, longest), 0)

    def spell(self, example: Example) -> str:
        return f"{' '.join(map(str, example.tokens[:16]))} ... ({len(example.tokens)} pixels)"

    def split_words(self, line: str) -> list[str]:
        return line.replace(",", " ").split()

    def read_unlabelled(self, path: Path, longest: int) -> Unlabelled:
        return read_png_files(path, longest)


def digits() -> PictureSplits:
    """The digits of scikit-learn, 8 x 8 pixels each, of which the last fifth is the test."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise SubquadError(
            "without --data the digits of scikit-learn are used, which is not installed: give --data, or pip install "
            "'subquad[data]'"
        ) from None
    bunch = load_digits()
    images, labels = (bunch.images * 15.9375).round().astype(np.uint8), bunch.target.astype(np.int64)
    first_test = 4 * len(labels) // 5
    train, test = Pictures(images[:first_test], labels[:first_test]), Pictures(images[first_test:], labels[first_test:])
    return PictureSplits(train, test, [str(digit) for digit in range(10)])


def picture_source(pictures: Pictures) -> Source:
    """The pixels of each picture, row by row."""
    flat = pictures.images.reshape(len(pictures.images), -1)
    return Source(len(flat), lambda place: Example(flat[place], int(pictures.labels[place])))


def _at(pictures: Pictures, places: np.ndarray) -> Pictures:
    return Pictures(pictures.images[places], pictures.labels[places])


def intensities(words: Sequence[str], pixels: int) -> np.ndarray:
    """The pixels of a picture written as numbers. Raises `SubquadError` unless there are `pixels` numbers from 0 to 255."""
    wrong = next(
        (word for word in words if not (word.isascii() and word.isdigit() and len(word) < 4 and int(word) < LEVELS)), None
    )
    if wrong is not None:
        raise SubquadError(f"{excerpt(wrong)} is no intensity: write whole numbers from 0 to {LEVELS - 1}")
    if len(words) != pixels:
        raise SubquadError(f"the model reads pictures of {pixels} pixels, but was given {len(words)} numbers")
    return np.array([int(word) for word in words], np.int64)


def read_png_files(path: Path, pixels: int) -> Unlabelled:
    """Reads a PNG file, or all PNG files of a folder, each with as many pixels as the model reads."""
    files = sorted(path.rglob("*.png")) if path.is_dir() else [path]
    if not files:
        raise SubquadError(f"the folder {path} has no pictures in it: there should be PNG files")
    examples = []
    for file in files:
        image = read_png(file)
        if image.size != pixels:
            raise SubquadError(f"{file} has {image.size} pixels, but the model reads {pixels}: scale it")
        examples.append(Example(image.reshape(-1), 0))
    return Unlabelled([str(file.relative_to(path)) if path.is_dir() else file.name for file in files], examples)
