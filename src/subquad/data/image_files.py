"""Files of images, one format each: IDX (MNIST), CIFAR's binary and pickled files, pictures, and arrays of NumPy."""

import io
import struct
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int, UInt8
from numpy import ndarray

from subquad.data.pickles import read_pickle
from subquad.data.png import SIGNATURE, Picture, decode_png, read_chunks
from subquad.errors import SubquadError
from subquad.files import read_bytes

PICTURES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".ppm", ".pgm", ".tif", ".tiff")
"""Endings of the names of picture files."""
CIFAR_PIXELS = 3 * 32 * 32
CIFAR_LABELS = {CIFAR_PIXELS + 1: (10,), CIFAR_PIXELS + 2: (20, 100)}
"""Numbers of classes of the labels before each image, by the bytes of an image with its labels: CIFAR-10, CIFAR-100."""
CIFAR_CLASSES = 10
"""Number of classes of CIFAR-10."""
IDX_IMAGES, IDX_LABELS = 0x803, 0x801
"""First four bytes of IDX files of unsigned bytes, with three axes and with one."""


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


def labelled(
    path: Path, pixels: UInt8[ndarray, "images rows columns channels"], labels: ndarray | None, classes: int | None = None
) -> LabelledImages:
    """Images with their labels, which must be as many, and whole numbers from 0, below `classes` if it is given."""
    if labels is None:
        return LabelledImages.unlabelled(pixels)
    if labels.dtype.kind not in "iu":
        raise SubquadError(f"{path}: labels must be whole numbers, but are {labels.dtype}")
    if labels.shape == (len(pixels), 1):
        labels = labels[:, 0]
    if labels.shape != pixels.shape[:1]:
        raise SubquadError(
            f"{path} has {len(pixels)} images and labels of shape {labels.shape}: there should be one for each"
        )
    if int(labels.min()) < 0 or (classes is not None and int(labels.max()) >= classes):
        most = "" if classes is None else f" to {classes - 1}"
        wrong = labels[(labels < 0) | (labels >= classes)][0] if classes is not None else labels.min()
        raise SubquadError(
            f"{path} has the label {wrong}: labels are whole numbers from 0{most}, so it is damaged or no such file"
        )
    return LabelledImages(pixels, labels.astype(np.int64))


def array_pixels(path: Path, name: str, array: ndarray) -> UInt8[ndarray, "images rows columns channels"]:
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


def read_idx(path: Path, content: bytes, magic: int) -> UInt8[ndarray, "..."]:
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


def read_cifar(path: Path) -> LabelledImages:
    """The images of one of CIFAR's binary files: labels, then 1024 bytes each of red, green and blue."""
    content = np.frombuffer(read_bytes(path), np.uint8)
    for width, classes in CIFAR_LABELS.items():
        if len(content) and len(content) % width == 0:
            records = content.reshape(-1, width)
            count = len(classes)
            return labelled(path, _interleaved(records[:, count:]), records[:, count - 1], classes[-1])
    raise SubquadError(
        f"{path} has {len(content)} bytes, which is no multiple of {' or '.join(map(str, CIFAR_LABELS))}: it is cut off, or "
        "none of CIFAR's binary files"
    )


def read_pickled_cifar(path: Path) -> LabelledImages:
    """The images of one of CIFAR-10's pickled files: the planes of each image under "data", its class under "labels"."""
    values = read_pickle(path)
    try:
        fields = {key.decode("latin-1") if isinstance(key, bytes) else key: value for key, value in values.items()}
        planes, labels = np.array(fields["data"], np.uint8), np.array(fields["labels"], np.int64)
        if planes.ndim != 2 or planes.shape != (len(labels), CIFAR_PIXELS):
            raise ValueError
    except (AttributeError, KeyError, ValueError, TypeError, OverflowError):
        raise SubquadError(
            f"{path} is no batch of CIFAR-10: it should hold data, {CIFAR_PIXELS} numbers from 0 to 255 for each image, and "
            "labels"
        ) from None
    return labelled(path, _interleaved(planes), labels, CIFAR_CLASSES)


def _interleaved(planes: UInt8[ndarray, "images values"]) -> UInt8[ndarray, "images 32 32 3"]:
    """Images with the colours of each pixel side by side, from planes of red, green and blue."""
    return np.ascontiguousarray(planes.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))


UNREADABLE = (OSError, ValueError, SyntaxError, EOFError)
"""Errors that Pillow raises for a damaged picture."""


class DamagedPictureError(SubquadError):
    """A picture that cannot be read, beside others that may."""


def read_picture(path: Path) -> Picture:
    """A grey or RGB picture from a file: PNG always, other formats if the package Pillow is installed.

    PNG files are checked here, because Pillow reads some damaged ones as if they were whole, and decoded here where Pillow
    is not installed or stricter than needed; it is the faster of the two.
    """
    content = read_bytes(path)
    is_png = content.startswith(SIGNATURE)
    try:
        from PIL import Image
    except ImportError:
        if not is_png and path.suffix.lower() != ".png":
            raise SubquadError(
                f"{path} is no PNG picture; others need Pillow: pip install 'subquad[images]', or save it as PNG"
            ) from None
        return _decoded(content, path)
    if is_png:
        _require_whole(content, path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about transparency and metadata, which are not used
            warnings.simplefilter("error", Image.DecompressionBombWarning)  # a huge picture is only warned about
            with Image.open(io.BytesIO(content)) as picture:
                values = _values(picture)
    except (*UNREADABLE, struct.error, Image.DecompressionBombWarning, Image.DecompressionBombError) as error:
        if is_png:
            return _decoded(content, path)
        raise DamagedPictureError(f"{path.name} is a damaged picture ({str(error)[:60]}): save it again") from None
    return values[..., None] if values.ndim == 2 else values


def _values(picture: Any) -> ndarray:
    """The numbers of a picture in Pillow's form: of 16 bits the upper eight, which Pillow itself would clip to 255."""
    if picture.mode.startswith("I;16"):
        return (np.asarray(picture) >> 8).astype(np.uint8)
    return np.asarray(picture.convert("L" if picture.mode in ("1", "L", "LA") else "RGB"))


def _require_whole(content: bytes, path: Path) -> None:
    """Raises `DamagedPictureError` if parts of a PNG file are missing or changed."""
    try:
        read_chunks(content, path.name)
    except SubquadError as error:
        raise DamagedPictureError(str(error)) from None


def _decoded(content: bytes, path: Path) -> Picture:
    """A PNG picture, decoded without Pillow."""
    try:
        return decode_png(content, path.name)
    except SubquadError as error:
        raise DamagedPictureError(str(error)) from None
