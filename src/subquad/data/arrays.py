"""Arrays of NumPy's files: one array in ``.npy``, several by name in ``.npz``. Pickled objects are refused."""

import io
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy import ndarray

from subquad.capacity import require_memory
from subquad.data.tables import listed
from subquad.errors import SubquadError
from subquad.files import open_plain, read_bytes

ARRAYS = (".npy", ".npz")
INPUTS = ("X", "x", "data", "values", "tokens", "inputs", "sequences")
"""Names of the array of sequences in an archive, the first one that it has is taken."""
LABELS = ("y", "Y", "labels", "label", "targets", "target")
"""Names of the array of labels in an archive, the first one that it has is taken."""
UNREADABLE = (
    *(zipfile.BadZipFile, zlib.error, struct.error, tokenize.TokenError),
    *(ValueError, EOFError, KeyError, OSError, SyntaxError, TypeError, MemoryError, NotImplementedError, OverflowError),
)
"""Exceptions that NumPy raises for a file that is damaged or holds something else."""


class LabelledArray(NamedTuple):
    """An array of sequences, and a label for each as text, or None."""

    inputs: ndarray
    labels: list[str] | None


def read_archive(path: Path) -> dict[str, ndarray]:
    """The arrays of an ``.npz`` file by name."""
    try:
        with open_plain(path) as opened, zipfile.ZipFile(opened) as parts:
            require_memory(f"reading {path}", sum(part.file_size for part in parts.infolist()), "split it")
        with np.load(io.BytesIO(read_bytes(path)), allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except SubquadError:
        raise
    except UNREADABLE as error:
        raise SubquadError(f"{path} is not a whole npz file of numbers ({str(error)[:80]}): get it again") from None


def read_labelled_array(path: Path) -> LabelledArray:
    """The array in an ``.npy`` file, or those of an ``.npz`` file that are named X and y, or by other usual names."""
    if path.suffix.lower() == ".npz":
        arrays = read_archive(path)
        inputs = _named(arrays, INPUTS)
        if inputs is None and len(arrays) == 1:
            (inputs,) = arrays.values()
        if inputs is None:
            raise SubquadError(f"{path} has the arrays {listed(arrays)}: name the one with the sequences X, and labels y")
        labels = _named(arrays, LABELS)
    else:
        inputs, labels = _read_array(path), None
    if not inputs.ndim or not inputs.size:
        raise SubquadError(f"{path} holds an array of shape {inputs.shape}, which has no sequences: give another one")
    return LabelledArray(inputs, None if labels is None else _label_texts(path, labels, len(inputs)))


def _named(arrays: Mapping[str, ndarray], names: Sequence[str]) -> ndarray | None:
    return next((arrays[name] for name in names if name in arrays), None)


def _read_array(path: Path) -> ndarray:
    try:
        array: ndarray = np.lib.format.read_array(io.BytesIO(read_bytes(path)), allow_pickle=False)
    except UNREADABLE as error:
        raise SubquadError(f"{path} is not a whole npy file of numbers ({str(error)[:80]}): save it again") from None
    return array


def _label_texts(path: Path, labels: ndarray, count: int) -> list[str]:
    if labels.size != count:
        raise SubquadError(
            f"{path} has {count:,} sequences and labels of shape {labels.shape}: there should be one for each"
        )
    flat = labels.reshape(-1)
    if flat.dtype.kind == "f" and np.isfinite(flat).all() and (flat == np.rint(flat)).all():
        flat = flat.astype(np.int64)
    return [value.decode(errors="replace") if isinstance(value, bytes) else str(value) for value in flat.tolist()]
