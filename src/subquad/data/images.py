"""Sets of images as they come: NumPy's npz, IDX (MNIST), CIFAR's binary and pickled files, and folders of pictures.

All images of a set have the same size. Splits are told by the names of arrays, files or folders.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, UInt8
from numpy import ndarray

from subquad.data.arrays import read_archive
from subquad.data.datasets import SPLIT_WORDS
from subquad.data.image_files import (
    CIFAR_CLASSES,
    CIFAR_PIXELS,
    IDX_IMAGES,
    IDX_LABELS,
    PICTURES,
    DamagedPictureError,
    LabelledImages,
    array_pixels,
    labelled,
    read_cifar,
    read_idx,
    read_pickled_cifar,
    read_picture,
)
from subquad.data.png import SIGNATURE, Picture
from subquad.data.splits import SplitName
from subquad.data.texts import LeftOut
from subquad.errors import SubquadError
from subquad.files import kind_of, read_bytes, read_text

IMAGE_SPLITS: Mapping[str, SplitName] = {**SPLIT_WORDS, "data": "train", "t": "test"}
"""Words in names that tell a split. CIFAR-10 calls its training files data_batch, MNIST its test files t10k."""
CIFAR_NAMES = "batches.meta.txt"
"""Name of the file with the names of CIFAR-10's classes, beside its binary files."""
AT_A_TIME = 256
"""Number of images whose size or colours are changed at a time."""
LUMA = (0.299, 0.587, 0.114)
"""Weights of red, green and blue in grey."""
FORMATS = "an npz file, IDX files (MNIST), CIFAR's binary or pickled files or a folder of pictures"


class ImageSet(NamedTuple):
    """Images by split, sentences about files that were left out, and the names of classes where they are known."""

    splits: dict[SplitName, LabelledImages]
    complaints: tuple[str, ...] = ()
    names: tuple[str, ...] = ()


def load_images(path: Path) -> ImageSet:
    """Reads the images at a path by split. Where names do not tell the splits, all images are in the split "train"."""
    kind = kind_of(path)
    if kind == "nothing":
        raise SubquadError(f"there is no file or folder {path}: give {FORMATS}")
    if kind != "folder":
        return _checked(path, _file_splits(path))
    files = sorted(file for file in path.iterdir() if file.is_file() and not file.name.startswith("."))
    if archives := [file for file in files if file.name.endswith(".npz")]:
        if len(archives) > 1:
            raise SubquadError(f"{path} has {len(archives)} npz files: give one, such as {archives[0]}")
        return _checked(path, _npz_splits(archives[0]))
    if idx := [file for file in files if re.search(r"idx\d-ubyte", file.name)]:
        return _checked(path, _idx_splits(idx))
    if cifar := _cifar_files(files) or _cifar_files(sorted(path.glob("cifar-10-batches-*/*"))):
        readers = {file: read_cifar if file.suffix else read_pickled_cifar for file in cifar}
        splits = _merged({file: read(file) for file, read in readers.items()})
        return _checked(path, splits, names=_cifar_names(cifar[0].with_name(CIFAR_NAMES)))
    return _picture_folder(path)


def _cifar_files(files: Sequence[Path]) -> list[Path]:
    """CIFAR's binary files among some, or else CIFAR-10's pickled ones, which have no ending."""
    binary = [file for file in files if file.name.endswith(".bin")]
    return binary or [file for file in files if re.fullmatch(r"data_batch_\d+|test_batch", file.name)]


def _cifar_names(path: Path) -> tuple[str, ...]:
    """The names of CIFAR-10's classes; none if the file is not there or has another number of names."""
    names = read_text(path).split() if kind_of(path) == "file" else []
    return tuple(names) if len(names) == CIFAR_CLASSES else ()


def resized(pixels: UInt8[ndarray, "images rows columns channels"], size: int) -> UInt8[ndarray, "images n n channels"]:
    """The middle square of each image with `size` rows and columns, each value the mean over the area that it covers."""
    rows, columns = pixels.shape[1:3]
    side = min(rows, columns)
    top, left = (rows - side) // 2, (columns - side) // 2
    areas = _areas(side, size)
    changed = np.empty((len(pixels), size, size, pixels.shape[3]), np.uint8)
    for first in range(0, len(pixels), AT_A_TIME):
        square = pixels[first : first + AT_A_TIME, top : top + side, left : left + side].astype(np.float32)
        means = np.einsum("ir,nrkc,jk->nijc", areas, square, areas, optimize=True)
        changed[first : first + AT_A_TIME] = np.clip(np.rint(means), 0, 255)
    return changed


def grey(pixels: UInt8[ndarray, "images rows columns channels"]) -> UInt8[ndarray, "images rows columns 1"]:
    """The luminance of each pixel (ITU-R BT.601)."""
    if pixels.shape[3] == 1:
        return pixels
    changed = np.empty((*pixels.shape[:3], 1), np.uint8)
    for first in range(0, len(pixels), AT_A_TIME):
        part = slice(first, first + AT_A_TIME)
        changed[part, ..., 0] = np.rint(pixels[part] @ np.array(LUMA))
    return changed


def _areas(side: int, size: int) -> Float[ndarray, "size side"]:
    """The share of each of `side` pixels in each of `size` larger or smaller ones."""
    edges, pixels = np.arange(size + 1) * side / size, np.arange(side)
    overlap = np.minimum(edges[1:, None], pixels + 1) - np.maximum(edges[:-1, None], pixels)
    return np.maximum(overlap, 0).astype(np.float32) * size / side


def _checked(
    path: Path, splits: dict[SplitName, LabelledImages], complaints: Sequence[str] = (), names: Sequence[str] = ()
) -> ImageSet:
    """Raises `SubquadError` for a set without training images, or with images of different sizes."""
    if not any(len(images.pixels) for images in splits.values()):
        raise SubquadError(f"{path} has no images in it: give {FORMATS}")
    shapes = {images.pixels.shape[1:] for images in splits.values()}
    if len(shapes) > 1:
        first, second = sorted(shapes)[:2]
        raise SubquadError(f"{path} has images of {_size(first)} and of {_size(second)} pixels: give images of one size")
    splits = {split: images if split == "train" else _mixed(images) for split, images in splits.items()}
    if "train" not in splits:
        joined = [splits[name] for name in sorted(splits)]
        splits = {"train": LabelledImages(*(np.concatenate(parts) for parts in zip(*joined, strict=True)))}
    return ImageSet(splits, tuple(complaints), tuple(names))


def _mixed(images: LabelledImages) -> LabelledImages:
    """Images in a random order if they are sorted by class, so that the first ones are of all classes."""
    labels = images.labels
    classes = len(np.unique(labels))
    if classes < 2 or classes == len(labels) or (np.diff(labels.astype(np.int64)) < 0).any():
        return images
    order = np.random.default_rng(0).permutation(len(labels))
    return LabelledImages(images.pixels[order], labels[order])


def _size(shape: Sequence[int]) -> str:
    rows, columns, channels = shape
    return f"{rows} x {columns}" + ("" if channels == 1 else f" x {channels}")


def _split_of(name: str, known: Mapping[str, SplitName] = IMAGE_SPLITS) -> SplitName | None:
    """The split that a name tells by one of its words; None if it tells none."""
    words = re.findall("[a-z]+", name.lower())
    return next((known[word] for word in words if word in known), None)


def _file_splits(path: Path) -> dict[SplitName, LabelledImages]:
    """The images of one file, whose beginning says what it is."""
    content = read_bytes(path)
    if content.startswith(b"PK"):
        return _npz_splits(path)
    if content[:2] == b"\0\0":
        return {"train": LabelledImages.unlabelled(read_idx(path, content, IDX_IMAGES))}
    if content.startswith(SIGNATURE) or path.suffix.lower() in PICTURES:
        return {"train": LabelledImages.unlabelled(read_picture(path)[None])}
    if path.name.endswith(".bin") or (content and len(content) % (CIFAR_PIXELS + 1) == 0):
        return {"train": read_cifar(path)}
    raise SubquadError(f"{path} holds no images in a format that is read: give {FORMATS}")


def _npz_splits(path: Path) -> dict[SplitName, LabelledImages]:
    """The arrays train_images, test_images and such of an npz file, with train_labels and so on if they are there."""
    arrays = read_archive(path)
    named = {name: split for name in arrays if name.endswith("_images") and (split := _split_of(name)) is not None}
    if not named:
        raise SubquadError(
            f"{path} has the arrays {', '.join(sorted(arrays)[:6]) or 'none'}: there should be train_images and test_images"
        )
    return {
        split: labelled(path, array_pixels(path, name, arrays[name]), arrays.get(name.replace("_images", "_labels")))
        for name, split in named.items()
    }


def _idx_splits(files: Sequence[Path]) -> dict[SplitName, LabelledImages]:
    """Pairs of IDX files, images and labels, by split."""
    images = [file for file in files if "idx3" in file.name]
    if not images:
        raise SubquadError(f"{files[0].parent} has no IDX file of images: there should be train-images-idx3-ubyte or such")
    splits: dict[Path, LabelledImages] = {}
    for file in images:
        beside = file.with_name(file.name.replace("images", "labels").replace("idx3", "idx1"))
        labels = read_idx(beside, read_bytes(beside), IDX_LABELS) if beside in files else None
        splits[file] = labelled(file, read_idx(file, read_bytes(file), IDX_IMAGES), labels)
    return _merged(splits)


def _merged(by_file: Mapping[Path, LabelledImages]) -> dict[SplitName, LabelledImages]:
    """The images of several files by the split that the file's name tells, or else all as training images."""
    groups: dict[SplitName, list[LabelledImages]] = {}
    for file, images in by_file.items():
        groups.setdefault(_split_of(file.name) or "train", []).append(images)
    if len({images.pixels.shape[1:] for images in by_file.values()}) > 1:
        raise SubquadError(f"{next(iter(by_file)).parent} has files with images of different sizes: give images of one size")
    return {
        split: LabelledImages(*(np.concatenate(parts) for parts in zip(*several, strict=True)))
        for split, several in groups.items()
    }


def _picture_folder(path: Path) -> ImageSet:
    """All pictures below a folder. The names of folders tell splits and classes; damaged pictures are left out."""
    files = sorted(file for file in path.rglob("*") if file.suffix.lower() in PICTURES and file.is_file())
    if not files:
        raise SubquadError(f"the folder {path} has no images in it: give {FORMATS}")
    left_out, pictures = LeftOut(), dict[Path, Picture]()
    for file in files:
        try:
            pictures[file] = read_picture(file)
        except DamagedPictureError as error:
            if len(files) == 1:
                raise SubquadError(str(error)) from None
            left_out.add("picture", "as it is damaged", str(file.relative_to(path)))
    if not pictures:
        raise SubquadError(f"all {len(files)} pictures in {path} are damaged: save them again")
    if len({picture.shape[2] for picture in pictures.values()}) > 1:  # some are grey
        pictures = {file: np.repeat(picture, 4 - picture.shape[2], 2)[..., :3] for file, picture in pictures.items()}
    shapes = sorted({picture.shape for picture in pictures.values()})
    if len(shapes) > 1:
        raise SubquadError(
            f"{path} has pictures of {_size(shapes[0])} and of {_size(shapes[-1])} pixels: give pictures of one size"
        )
    classes = {name: number for number, name in enumerate(sorted({file.parent.name for file in pictures}))}
    by_split: dict[SplitName, list[Path]] = {}
    for file in pictures:
        folders = file.relative_to(path).parts[:-1]
        told: SplitName = next(filter(None, (_split_of(folder, SPLIT_WORDS) for folder in folders)), "train")
        by_split.setdefault(told, []).append(file)
    splits = {
        split: LabelledImages(
            np.stack([pictures[file] for file in of_split]), np.array([classes[file.parent.name] for file in of_split])
        )
        for split, of_split in by_split.items()
    }
    return _checked(path, splits, left_out.sentences(path), sorted(classes))
