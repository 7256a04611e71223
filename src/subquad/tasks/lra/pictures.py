"""Reads labelled pictures in grey: CIFAR-10's binary and pickled batches, NumPy archives, and PNG files."""

import struct
import zipfile
import zlib
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Int, UInt8
from numpy import ndarray

from subquad.capacity import require_memory
from subquad.data.pickles import read_pickle
from subquad.errors import SubquadError
from subquad.files import kind_of, open_plain, read_bytes, read_text

CIFAR_CLASSES = 10
CIFAR_PIXELS = 32 * 32
CIFAR_RECORD = 1 + 3 * CIFAR_PIXELS
"""Bytes of a picture in a binary batch: its class, then its red, green and blue planes."""
LUMA = (0.299, 0.587, 0.114)
"""Weights of red, green and blue in grey (ITU-R BT.601)."""
ARRAYS = ("train_images", "train_labels", "test_images", "test_labels")
"""Names of the arrays of a NumPy archive."""
SIGNATURE = b"\x89PNG\r\n\x1a\n"
CHANNELS = {0: 1, 2: 3, 4: 2, 6: 4}
"""Values of each pixel by PNG's type of colour: grey, colour, grey with alpha, colour with alpha."""
LARGEST_SIDE = 2**14


class Pictures(NamedTuple):
    """Grey pictures, with the class index of each."""

    images: UInt8[ndarray, "pictures rows columns"]
    labels: Int[ndarray, "pictures"]


class PictureSplits(NamedTuple):
    """Pictures for training and for the test, and the names of the classes."""

    train: Pictures
    test: Pictures
    names: list[str]


def load_pictures(path: Path) -> PictureSplits:
    """Reads a NumPy archive, or a folder of CIFAR-10's binary or pickled batches."""
    if kind_of(path) == "nothing":
        raise SubquadError(f"there is no file or folder {path}")
    if kind_of(path) != "folder":
        return load_archive(path)
    folder = next((inner for inner in (path, *sorted(path.glob("cifar-10-batches-*"))) if _batches(inner)), None)
    if folder is None:
        archives = sorted(path.glob("*.npz"))
        if len(archives) == 1:
            return load_archive(archives[0])
        raise SubquadError(
            f"{path} holds no pictures that are known: there should be CIFAR-10's batches (data_batch_1 and test_batch, "
            "with or without .bin), or one NumPy archive (.npz)"
        )
    batches = _batches(folder)
    tests = [file for file in batches if file.name.startswith("test_batch")]
    if not tests or len(tests) == len(batches):
        missing = "data_batch_1" if tests else "test_batch"
        raise SubquadError(f"{folder} lacks {missing}: fetch all of CIFAR-10's batches")
    train, test = (
        _joined([_read_batch(file) for file in batches if (file in tests) == is_test]) for is_test in (False, True)
    )
    names = read_text(meta).split() if (meta := folder / "batches.meta.txt").exists() else []
    return PictureSplits(train, test, names if len(names) == CIFAR_CLASSES else [str(at) for at in range(CIFAR_CLASSES)])


def _batches(folder: Path) -> list[Path]:
    files = [file for pattern in ("data_batch_*", "test_batch*") for file in sorted(folder.glob(pattern)) if file.is_file()]
    binary = [file for file in files if file.suffix == ".bin"]
    return binary or [file for file in files if not file.suffix]


def _read_batch(path: Path) -> Pictures:
    """Reads one batch of CIFAR-10."""
    if path.suffix == ".bin":
        content = np.frombuffer(read_bytes(path), np.uint8)
        if not len(content) or len(content) % CIFAR_RECORD:
            raise SubquadError(f"{path} is not a whole batch of CIFAR-10: its size is no multiple of {CIFAR_RECORD} bytes")
        records = content.reshape(-1, CIFAR_RECORD)
        return _checked(_grey(records[:, 1:]), records[:, 0].astype(np.int64), path, CIFAR_CLASSES)
    values = read_pickle(path)
    try:
        fields = {key.decode("latin-1") if isinstance(key, bytes) else key: value for key, value in values.items()}
        planes, labels = np.array(fields["data"], np.uint8), np.array(fields["labels"], np.int64)
        if planes.ndim != 2 or planes.shape != (len(labels), 3 * CIFAR_PIXELS):
            raise ValueError
    except (AttributeError, KeyError, ValueError, TypeError, OverflowError):
        raise SubquadError(
            f"{path} is no batch of CIFAR-10: it should hold data, {3 * CIFAR_PIXELS} numbers from 0 to 255 for each "
            "picture, and labels"
        ) from None
    return _checked(_grey(planes), labels, path, CIFAR_CLASSES)


def _grey(planes: UInt8[ndarray, "pictures values"]) -> UInt8[ndarray, "pictures 32 32"]:
    """Grey pictures from red, green and blue planes."""
    colours = planes.reshape(len(planes), 3, 32, 32)
    mixed: ndarray = (
        np.tensordot(colours.astype(np.float32), np.array(LUMA, np.float32), axes=(1, 0)).round().astype(np.uint8)
    )
    return mixed


def _joined(parts: list[Pictures]) -> Pictures:
    images, labels = (np.concatenate(column) for column in zip(*parts, strict=True))
    return Pictures(images, labels)


def load_archive(path: Path) -> PictureSplits:
    """Reads the arrays train_images, train_labels, test_images and test_labels of a NumPy archive."""
    try:
        with open_plain(path) as opened, zipfile.ZipFile(opened) as parts:
            needed = sum(part.file_size for part in parts.infolist())
            require_memory(f"reading {path}", needed, "split it")
        with open_plain(path) as opened, np.load(opened, allow_pickle=False) as archive:
            if missing := [name for name in ARRAYS if name not in archive.files]:
                raise SubquadError(f"{path} has no array {missing[0]}: there should be {', '.join(ARRAYS)}")
            arrays = [archive[name] for name in ARRAYS]
    except SubquadError:
        raise
    except (zipfile.BadZipFile, zlib.error, ValueError, OSError, EOFError, NotImplementedError) as error:
        why = str(error).partition("\n")[0][:100]
        raise SubquadError(f"{path} is not a whole NumPy archive (.npz) of numbers ({why}): fetch it again") from None
    train, test = (
        _checked(_as_grey(images, path), _as_labels(labels, path), path) for images, labels in (arrays[:2], arrays[2:])
    )
    if train.images.shape[1:] != test.images.shape[1:]:
        raise SubquadError(
            f"{path}: pictures have {train.images.shape[1:]} pixels in training but {test.images.shape[1:]} in the test"
        )
    classes = int(train.labels.max()) + 1
    if (highest := int(test.labels.max())) >= classes:
        raise SubquadError(f"{path}: the test has the label {highest}, but those of training go from 0 to {classes - 1}")
    return PictureSplits(train, test, [str(at) for at in range(classes)])


def _as_grey(images: ndarray, path: Path) -> ndarray:
    if (
        images.dtype != np.uint8
        or images.ndim not in (3, 4)
        or (images.ndim == 4 and images.shape[3] != 3)
        or not images.size
    ):
        raise SubquadError(
            f"{path}: pictures must be bytes with the axes pictures, rows and columns, and three colours or none, but are "
            f"{images.dtype} with the axes {images.shape}"
        )
    if images.ndim == 3:
        return images
    mixed: ndarray = (images @ np.array(LUMA, np.float32)).round().astype(np.uint8)
    return mixed


def _as_labels(labels: ndarray, path: Path) -> ndarray:
    if labels.dtype.kind not in "iu":
        raise SubquadError(f"{path}: labels must be whole numbers, but are {labels.dtype}")
    return labels.reshape(-1).astype(np.int64)


def _checked(images: ndarray, labels: ndarray, path: Path, classes: int = 2**16) -> Pictures:
    if len(images) != len(labels):
        raise SubquadError(f"{path} has {len(images)} pictures but {len(labels)} labels: it is damaged")
    wrong = labels[(labels < 0) | (labels >= classes)]
    if len(wrong):
        raise SubquadError(f"{path}: the label {wrong[0]} is out of range, labels go from 0 to {classes - 1}")
    return Pictures(images, labels)


def read_png(path: Path) -> UInt8[ndarray, "rows columns"]:
    """Reads a PNG file of 8 bits for each value, without a palette and not interlaced, as a grey picture."""
    content = read_bytes(path)
    try:
        if not content.startswith(SIGNATURE):
            raise SubquadError(f"{path} is no PNG file: give pictures as PNG")
        header, data = _png_chunks(content)
        columns, rows, depth, colour, _, _, interlaced = struct.unpack(">IIBBBBB", header)
        if (
            depth != 8
            or colour not in CHANNELS
            or interlaced
            or not 0 < columns <= LARGEST_SIDE
            or not 0 < rows <= LARGEST_SIDE
        ):
            raise SubquadError(
                f"{path} is a PNG file of another kind than 8 bits in grey or colour: save it as such, not interlaced"
            )
        channels = CHANNELS[colour]
        size = rows * (1 + columns * channels)
        lines = zlib.decompressobj().decompress(data, size)
        if len(lines) != size:
            raise ValueError
        values = _unfiltered(np.frombuffer(lines, np.uint8).reshape(rows, -1), channels).reshape(rows, columns, channels)
    except SubquadError:
        raise
    except (struct.error, zlib.error, ValueError, IndexError):
        raise SubquadError(f"{path} is not a whole PNG file: fetch it again") from None
    if channels < 3:
        return values[:, :, 0]
    mixed: ndarray = (values[:, :, :3] @ np.array(LUMA, np.float32)).round().astype(np.uint8)
    return mixed


def _png_chunks(content: bytes) -> tuple[bytes, bytes]:
    """The header of a PNG file and its packed lines. Raises `ValueError` if it is damaged."""
    at, header, data = len(SIGNATURE), b"", []
    while at < len(content):
        (length,) = struct.unpack(">I", content[at : at + 4])
        kind, part = content[at + 4 : at + 8], content[at + 8 : at + 8 + length]
        if content[at + 8 + length : at + 12 + length] != struct.pack(">I", zlib.crc32(kind + part)):
            raise ValueError
        if kind == b"IHDR":
            header = part
        elif kind == b"IDAT":
            data.append(part)
        elif kind == b"IEND":
            return header, b"".join(data)
        at += 12 + length
    raise ValueError


def _unfiltered(lines: UInt8[ndarray, "rows bytes"], channels: int) -> UInt8[ndarray, "rows values"]:
    """Undoes the filter of each line, whose number is its first byte: none, left, above, mean or Paeth's."""
    above = np.zeros(lines.shape[1] - 1, np.int64)
    result = np.zeros((len(lines), lines.shape[1] - 1), np.uint8)
    for row, line in enumerate(lines):
        kind, values = int(line[0]), line[1:].astype(np.int64)
        if kind == 2:
            values += above
        elif kind in (1, 3, 4):
            for at in range(len(values)):
                left, corner = (values[at - channels], above[at - channels]) if at >= channels else (0, 0)
                values[at] = (values[at] + _expected(kind, left, above[at], corner)) & 255
        elif kind:
            raise ValueError
        above = values & 255
        result[row] = above
    return result


def _expected(kind: int, left: int, above: int, corner: int) -> int:
    """What a filter expects of a value."""
    if kind == 1:
        return left
    if kind == 3:
        return (left + above) // 2
    distances = [(abs(above - corner), left), (abs(left - corner), above), (abs(left + above - 2 * corner), corner)]
    return min(distances, key=lambda pair: pair[0])[1]
