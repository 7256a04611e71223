"""Sets of images as they come: NumPy's npz, IDX (MNIST), CIFAR's binary files, and folders of pictures.

All images of a set have the same size. Splits are told by the names of arrays, files or folders.
"""

import io
import re
import struct
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int, UInt8
from numpy import ndarray

from subquad.data.arrays import read_archive
from subquad.data.datasets import SPLIT_WORDS
from subquad.data.png import SIGNATURE, Picture, decode_png
from subquad.data.splits import SplitName
from subquad.data.texts import LeftOut
from subquad.errors import SubquadError
from subquad.files import kind_of, read_bytes

IMAGE_SPLITS: Mapping[str, SplitName] = {**SPLIT_WORDS, "data": "train", "t": "test"}
"""Words in names that tell a split. CIFAR-10 calls its training files data_batch, MNIST its test files t10k."""
PICTURES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".ppm", ".pgm", ".tif", ".tiff")
"""Endings of the names of picture files."""
CIFAR_PIXELS = 3 * 32 * 32
CIFAR_LABELS = {CIFAR_PIXELS + 1: (10,), CIFAR_PIXELS + 2: (20, 100)}
"""Numbers of classes of the labels before each image, by the bytes of an image with its labels: CIFAR-10, CIFAR-100."""
IDX_IMAGES, IDX_LABELS = 0x803, 0x801
"""First four bytes of IDX files of unsigned bytes, with three axes and with one."""
AT_A_TIME = 256
"""Number of images whose size is changed at a time."""
FORMATS = "an npz file, IDX files (MNIST), CIFAR's binary files or a folder of pictures"


class LabelledImages(NamedTuple):
    """Images of one size, and the class of each; labels are -1 where they are not known."""

    pixels: UInt8[ndarray, "images rows columns channels"]
    labels: Int[ndarray, "images"]

    @classmethod
    def unlabelled(cls, pixels: UInt8[ndarray, "images rows columns channels"]) -> "LabelledImages":
        """Images whose classes are not known."""
        return cls(pixels, np.full(len(pixels), -1))

    def take(self, chosen: Int[ndarray, "some"] | slice) -> "LabelledImages":
        """Some of the images."""
        return LabelledImages(self.pixels[chosen], self.labels[chosen])


class ImageSet(NamedTuple):
    """Images by split, and sentences about files that were left out."""

    splits: dict[SplitName, LabelledImages]
    complaints: tuple[str, ...] = ()


def load_images(path: Path) -> ImageSet:
    """Reads the images at a path by split. Where names do not tell the splits, all images are in the split "train"."""
    kind = kind_of(path)
    if kind == "nothing":
        raise SubquadError(f"there is no file or folder {path}: give {FORMATS}")
    if kind != "folder":
        return _checked(path, _file_splits(path))
    files = sorted(file for file in path.iterdir() if file.is_file() and not file.name.startswith("."))
    if archives := [file for file in files if file.name.endswith(".npz")]:
        return _checked(path, _npz_splits(archives[0]))
    if idx := [file for file in files if re.search(r"idx\d-ubyte", file.name)]:
        return _checked(path, _idx_splits(idx))
    if binaries := [file for file in files if file.name.endswith(".bin")]:
        return _checked(path, _merged({file: _read_cifar(file) for file in binaries}))
    return _picture_folder(path)


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
    return np.rint(pixels @ np.array([0.299, 0.587, 0.114])).astype(np.uint8)[..., None]


def _areas(side: int, size: int) -> Float[ndarray, "size side"]:
    """The share of each of `side` pixels in each of `size` larger or smaller ones."""
    edges, pixels = np.arange(size + 1) * side / size, np.arange(side)
    overlap = np.minimum(edges[1:, None], pixels + 1) - np.maximum(edges[:-1, None], pixels)
    return np.maximum(overlap, 0).astype(np.float32) * size / side


def _checked(path: Path, splits: dict[SplitName, LabelledImages], complaints: Sequence[str] = ()) -> ImageSet:
    """Raises `SubquadError` for a set without training images, or with images of different sizes."""
    if not any(len(images.pixels) for images in splits.values()):
        raise SubquadError(f"{path} has no images in it: give {FORMATS}")
    shapes = {images.pixels.shape[1:] for images in splits.values()}
    if len(shapes) > 1:
        first, second = sorted(shapes)[:2]
        raise SubquadError(f"{path} has images of {_size(first)} and of {_size(second)} pixels: give images of one size")
    if "train" not in splits:
        joined = [splits[name] for name in sorted(splits)]
        splits = {"train": LabelledImages(*(np.concatenate(parts) for parts in zip(*joined, strict=True)))}
    return ImageSet(splits, tuple(complaints))


def _size(shape: Sequence[int]) -> str:
    rows, columns, channels = shape
    return f"{rows} x {columns}" + ("" if channels == 1 else f" x {channels}")


def _split_of(name: str) -> SplitName | None:
    """The split that a name tells by one of its words; None if it tells none."""
    words = re.findall("[a-z]+", name.lower())
    return next((IMAGE_SPLITS[word] for word in words if word in IMAGE_SPLITS), None)


def _file_splits(path: Path) -> dict[SplitName, LabelledImages]:
    """The images of one file, whose beginning says what it is."""
    content = read_bytes(path)
    if content.startswith(b"PK"):
        return _npz_splits(path)
    if content[:2] == b"\0\0":
        return {"train": LabelledImages.unlabelled(_read_idx(path, content, IDX_IMAGES))}
    if content.startswith(SIGNATURE) or path.suffix.lower() in PICTURES:
        return {"train": LabelledImages.unlabelled(read_picture(path)[None])}
    if path.name.endswith(".bin") or (content and len(content) % (CIFAR_PIXELS + 1) == 0):
        return {"train": _read_cifar(path)}
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
        split: _labelled(path, _array_pixels(path, name, arrays[name]), arrays.get(name.replace("_images", "_labels")))
        for name, split in named.items()
    }


def _array_pixels(path: Path, name: str, array: ndarray) -> UInt8[ndarray, "images rows columns channels"]:
    """An array as images. Raises `SubquadError` for one that is none."""
    pixels = array[..., None] if array.ndim == 3 else array
    if pixels.ndim != 4 or pixels.shape[3] not in (1, 3) or not pixels.size:
        raise SubquadError(
            f"{path}: {name} has the shape {'x'.join(map(str, array.shape))}: images are n x rows x columns, or that x 3"
        )
    if pixels.dtype != np.uint8:
        if pixels.dtype.kind not in "iu" or int(pixels.min()) < 0 or int(pixels.max()) > 255:
            raise SubquadError(
                f"{path}: {name} must hold whole numbers from 0 to 255, but has others, of type {array.dtype}"
            )
        pixels = pixels.astype(np.uint8)
    return pixels


def _labelled(
    path: Path, pixels: UInt8[ndarray, "images rows columns channels"], labels: ndarray | None, classes: int | None = None
) -> LabelledImages:
    """Images with their labels, which must be as many, and whole numbers from 0, below `classes` if it is given."""
    if labels is None:
        return LabelledImages.unlabelled(pixels)
    if labels.shape != pixels.shape[:1]:
        raise SubquadError(
            f"{path} has {len(pixels)} images and labels of shape {labels.shape}: there should be one for each"
        )
    if labels.dtype.kind not in "iu" or int(labels.min()) < 0 or (classes is not None and int(labels.max()) >= classes):
        most = "" if classes is None else f" to {classes - 1}"
        wrong = labels[(labels < 0) | (labels >= classes)][0] if classes is not None else labels.min()
        raise SubquadError(
            f"{path} has the label {wrong}: labels are whole numbers from 0{most}, so it is damaged or no such file"
        )
    return LabelledImages(pixels, labels.astype(np.int64))


def _idx_splits(files: Sequence[Path]) -> dict[SplitName, LabelledImages]:
    """Pairs of IDX files, images and labels, by split."""
    images = [file for file in files if "idx3" in file.name]
    if not images:
        raise SubquadError(f"{files[0].parent} has no IDX file of images: there should be train-images-idx3-ubyte or such")
    splits: dict[Path, LabelledImages] = {}
    for file in images:
        beside = file.with_name(file.name.replace("images", "labels").replace("idx3", "idx1"))
        labels = _read_idx(beside, read_bytes(beside), IDX_LABELS) if beside in files else None
        splits[file] = _labelled(file, _read_idx(file, read_bytes(file), IDX_IMAGES), labels)
    return _merged(splits)


def _read_idx(path: Path, content: bytes, magic: int) -> UInt8[ndarray, "..."]:
    """The array of an IDX file of unsigned bytes: its kind, the size of each axis, and the values."""
    axes = magic & 0xFF
    begin = 4 + 4 * axes
    if len(content) < begin or struct.unpack(">I", content[:4])[0] != magic:
        what = "images" if magic == IDX_IMAGES else "labels"
        raise SubquadError(f"{path} is no IDX file of {what}: it should begin with the bytes {magic:08x}")
    shape = struct.unpack(f">{axes}I", content[4:begin])
    if len(content) - begin != np.prod(shape, dtype=object) or not len(content) - begin:
        raise SubquadError(
            f"{path} says that it has {'x'.join(map(str, shape))} bytes, but has {len(content) - begin}: get it again"
        )
    values = np.frombuffer(content, np.uint8, offset=begin).reshape(shape)
    return values[..., None] if magic == IDX_IMAGES else values


def _read_cifar(path: Path) -> LabelledImages:
    """The images of one of CIFAR's binary files: labels, then 1024 bytes each of red, green and blue."""
    content = np.frombuffer(read_bytes(path), np.uint8)
    for width, classes in CIFAR_LABELS.items():
        if len(content) and len(content) % width == 0:
            records = content.reshape(-1, width)
            count = len(classes)
            pixels = records[:, count:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
            return _labelled(path, np.ascontiguousarray(pixels), records[:, count - 1], classes[-1])
    raise SubquadError(
        f"{path} has {len(content)} bytes, which is no multiple of {' or '.join(map(str, CIFAR_LABELS))}: it is cut off, or "
        "none of CIFAR's binary files"
    )


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
        except _DamagedError as error:
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
        told: SplitName = next(filter(None, map(_split_of, folders)), "train")
        by_split.setdefault(told, []).append(file)
    splits = {
        split: LabelledImages(
            np.stack([pictures[file] for file in of_split]), np.array([classes[file.parent.name] for file in of_split])
        )
        for split, of_split in by_split.items()
    }
    return _checked(path, splits, left_out.sentences(path))


class _DamagedError(SubquadError):
    """A picture that cannot be read, beside others that may."""


def read_picture(path: Path) -> Picture:
    """A grey or RGB picture from a file: PNG always, other formats if the package Pillow is installed."""
    content = read_bytes(path)
    try:
        from PIL import Image
    except ImportError:
        if not content.startswith(SIGNATURE) and path.suffix.lower() != ".png":
            raise SubquadError(
                f"{path} is no PNG picture; others need Pillow: pip install 'subquad[images]', or save it as PNG"
            ) from None
        try:
            return decode_png(content, path.name)
        except SubquadError as error:
            raise _DamagedError(str(error)) from None
    try:
        with warnings.catch_warnings(), Image.open(io.BytesIO(content)) as picture:
            warnings.simplefilter("error")  # a huge picture is only warned about
            values = np.asarray(picture.convert("L" if picture.mode in ("1", "L", "LA", "I;16") else "RGB"))
    except (OSError, ValueError, SyntaxError, EOFError, struct.error, Image.DecompressionBombWarning) as error:
        raise _DamagedError(f"{path.name} is a damaged picture ({str(error)[:60]}): save it again") from None
    return values[..., None] if values.ndim == 2 else values
