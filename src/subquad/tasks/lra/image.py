"""Pictures pixel by pixel: CIFAR-10 in grey (Krizhevsky 2009), read as 1024 intensities without their places."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from jaxtyping import UInt8
from numpy import ndarray

from subquad.checking import Seed, Whole, excerpt
from subquad.data.image_files import PICTURES, LabelledImages, read_picture
from subquad.data.images import ImageSet, grey, load_images, resized
from subquad.data.splits import SplitName, shuffled
from subquad.errors import OptionError, SubquadError
from subquad.tasks.lra.base import ArenaOptions, Unlabelled
from subquad.tasks.lra.sources import Example, Loaded, Source

LEVELS = 256
"""Number of intensities of a pixel."""
CIFAR_PIXELS, DIGIT_PIXELS = 1024, 64
LARGEST_SIDE = 1024
"""Largest number of rows and columns that pictures are brought to."""
LEAST = 10
"""Smallest number of training pictures of which a tenth can be held out."""


@dataclass(frozen=True)
class Image(ArenaOptions):
    """Long Range Arena: classify grey pictures read pixel by pixel. CIFAR-10's files, or 1,797 digits of scikit-learn."""

    side: Whole = 0  # number of rows and columns that the middle square of each picture is brought to; 0: as they are
    split_seed: Seed = 0  # seed for taking a tenth of the training pictures for development
    kind: str = field(default="lra-image", init=False)

    def check(self) -> None:
        if self.side > LARGEST_SIDE:
            raise OptionError("side", f"must be at most {LARGEST_SIDE}, but is {self.side}")

    @property
    def vocabulary(self) -> int:
        return LEVELS

    @property
    def longest(self) -> int:
        if self.side:
            return self.side**2
        return CIFAR_PIXELS if self.data else DIGIT_PIXELS

    def load(self) -> Loaded:
        """Reads the pictures, and takes a tenth of those for training for development."""
        images = load_labelled(Path(self.data)) if self.data else digits()
        train, test = images.splits["train"], images.splits["test"]
        count = len(train.labels)
        if count < LEAST:
            raise SubquadError(f"{self.data} has {count} training pictures, too few to be split: give at least {LEAST}")
        order = shuffled([f"{number:09d}" for number in range(count)], self.split_seed)
        sources: dict[SplitName, Source] = {
            "train": self._source(train.take(order[count // 10 :])),
            "development": self._source(train.take(order[: count // 10])),
            "test": self._source(test),
        }
        pixels = self.side**2 or int(np.prod(train.pixels.shape[1:3]))
        return Loaded(sources, list(images.names), pixels, images.complaints)

    def _source(self, images: LabelledImages) -> Source:
        """The intensities of each image, row by row."""
        flat = grey_square(images.pixels, self.side).reshape(len(images.pixels), -1)
        return Source(len(flat), lambda place: Example(flat[place], int(images.labels[place])))

    def parse(self, words: Sequence[str], longest: int) -> Example:
        return Example(intensities(words, longest), 0)

    def spell(self, example: Example) -> str:
        return f"{' '.join(map(str, example.tokens[:16]))} ... ({len(example.tokens)} pixels)"

    def split_words(self, line: str) -> list[str]:
        return line.replace(",", " ").split()

    def read_unlabelled(self, path: Path, longest: int) -> Unlabelled:
        return read_picture_files(path, longest, self.side)


def load_labelled(path: Path) -> ImageSet:
    """Reads the splits train and test of a set of images. Raises `SubquadError` for one without a test or without labels."""
    images = load_images(path)
    if "test" not in images.splits:
        raise SubquadError(f"{path} has no test images: name their array, file or folder test")
    train, test = (images.splits[split].labels for split in ("train", "test"))
    if min(train.min(), test.min()) < 0:
        raise SubquadError(f"{path} has images without labels: put the file or array of labels beside that of images")
    classes = max(int(train.max()) + 1, len(images.names))
    if (highest := int(test.max())) >= classes:
        raise SubquadError(f"{path}: the test has the label {highest}, but those of training go from 0 to {classes - 1}")
    return images._replace(names=images.names or tuple(map(str, range(classes))))


def digits() -> ImageSet:
    """The digits of scikit-learn, 8 x 8 pixels each, of which the last fifth is the test."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise SubquadError(
            "without --data the digits of scikit-learn are used, which is not installed: give --data, or pip install "
            "'subquad[data]'"
        ) from None
    bunch = load_digits()
    images = LabelledImages((bunch.images * 15.9375).round().astype(np.uint8)[..., None], bunch.target.astype(np.int64))
    first_test = 4 * len(images.labels) // 5
    splits: dict[SplitName, LabelledImages] = {
        "train": images.take(slice(first_test)),
        "test": images.take(slice(first_test, None)),
    }
    return ImageSet(splits, names=tuple(map(str, range(10))))


def grey_square(pixels: UInt8[ndarray, "n rows columns channels"], side: int) -> UInt8[ndarray, "n r c 1"]:
    """Images in grey, and their middle square with `side` rows and columns unless it is 0."""
    shades = grey(pixels)
    return resized(shades, side) if side and shades.shape[1:3] != (side, side) else shades


def read_grey(path: Path, side: int = 0) -> UInt8[ndarray, "rows columns"]:
    """Reads a picture file in grey, brought to `side` rows and columns unless it is 0."""
    return grey_square(read_picture(path)[None], side)[0, ..., 0]


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


def read_picture_files(path: Path, pixels: int, side: int = 0) -> Unlabelled:
    """Reads a picture file, or all of a folder, brought to `side` rows and columns unless it is 0.

    Raises `SubquadError` if one has not as many pixels as the model reads.
    """
    files = sorted(file for file in path.rglob("*") if file.suffix.lower() in PICTURES) if path.is_dir() else [path]
    if not files:
        raise SubquadError(f"the folder {path} has no pictures in it: there should be PNG files")
    examples = []
    for file in files:
        image = read_grey(file, side)
        if image.size != pixels:
            raise SubquadError(f"{file} has {image.size} pixels, but the model reads {pixels}: scale it")
        examples.append(Example(image.reshape(-1), 0))
    return Unlabelled([str(file.relative_to(path)) if path.is_dir() else file.name for file in files], examples)
