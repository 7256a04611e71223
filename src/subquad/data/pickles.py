"""Reading pickles of plain data safely: lists, dicts, texts, numbers and NumPy arrays, and nothing else.

A pickle is a program that may call any function. Here the only names that it may use are those by which NumPy writes arrays
and numbers, and these stand for the classes below, not for functions of NumPy.
"""

import io
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy import ndarray

from subquad.errors import SubquadError
from subquad.files import read_bytes

KINDS = "biuf"
"""Kinds of NumPy numbers that are read: truth values, whole numbers with and without sign, and floats."""

LARGER = 4
"""Largest number of parts of a value for each byte of its pickle."""


class _RefusedError(Exception):
    """Something that is not plain data."""


class _Kind:
    """A type of numbers, as NumPy pickles it: its name, and its byte order among its state."""

    def __init__(self, name: object = "", *flags: object) -> None:
        try:
            self.kind = np.dtype(name) if isinstance(name, str) else np.dtype("O")
        except TypeError:
            raise _RefusedError(f"the NumPy type {name!r:.40}") from None

    def __setstate__(self, state: Any) -> None:
        order = state[1]
        self.kind = self.kind.newbyteorder("=" if order == "|" else order)

    @property
    def checked(self) -> "np.dtype[Any]":
        """The type, if it is one of numbers."""
        if self.kind.kind not in KINDS:
            raise _RefusedError(f"a NumPy array of type {self.kind}")
        return self.kind


class _Array:
    """An array as NumPy pickles it: shape, type, order and bytes, or a list if it holds other values than numbers."""

    def __init__(self, *arguments: object) -> None:
        self.values: Any = []

    def __setstate__(self, state: Any) -> None:
        _, shape, kind, is_fortran, content = state
        if isinstance(content, list):
            if shape != (len(content),):
                raise _RefusedError("a NumPy array of objects with several dimensions")
            self.values = content
            return
        data = content.encode("latin-1") if isinstance(content, str) else content
        self.values = np.frombuffer(data, kind.checked).reshape(shape, order="F" if is_fortran else "C").tolist()


def _scalar(kind: Any, data: Any) -> Any:
    """A NumPy number as a Python number."""
    values: ndarray = np.frombuffer(data.encode("latin-1") if isinstance(data, str) else data, kind.checked)
    return values[0].item()


def _from_buffer(data: Any, kind: Any, shape: Any, order: Any) -> _Array:
    """An array as late protocols write it."""
    array = _Array()
    array.__setstate__((1, shape, kind, order == "F", bytes(data)))
    return array


def _encode(text: Any, encoding: Any = "latin1") -> bytes:
    """Bytes as early protocols write them."""
    if not isinstance(text, str) or str(encoding).replace("-", "") != "latin1":
        raise _RefusedError(f"a text in {encoding!r:.40}")
    return text.encode("latin-1")


def _no_bytes() -> bytes:
    """Empty bytes as early protocols write them."""
    return b""


ALLOWED: Mapping[tuple[str, str], Any] = {
    **{(f"numpy.{core}.multiarray", "_reconstruct"): _Array for core in ("core", "_core")},
    **{(f"numpy.{core}.multiarray", "scalar"): _scalar for core in ("core", "_core")},
    **{(f"numpy.{core}.numeric", "_frombuffer"): _from_buffer for core in ("core", "_core")},
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Kind,
    ("_codecs", "encode"): _encode,
    **{(module, "bytes"): _no_bytes for module in ("__builtin__", "builtins")},
}
"""What stands for each name that a pickle may use."""


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ALLOWED:
            raise _RefusedError(f"{module}.{name}")
        return ALLOWED[module, name]

    def persistent_load(self, identifier: Any) -> Any:
        raise _RefusedError("a reference to something outside of it")


def read_pickle(path: Path) -> Any:
    """Reads a pickle of lists, dicts, texts, numbers and NumPy arrays of numbers, which are returned as lists.

    Raises `SubquadError` for a pickle with anything else in it, which is never called or built.
    """
    content = read_bytes(path)
    try:
        return _Plain(len(content)).value(_Unpickler(io.BytesIO(content), encoding="latin1").load())
    except _RefusedError as error:
        raise SubquadError(
            f"{path} holds {error}, but only lists, dicts, texts, numbers and NumPy arrays are read from a pickle: save the "
            "data as such, or as JSON"
        ) from None
    except RecursionError:
        raise SubquadError(f"{path} cannot be read: it is nested too deep") from None
    except MemoryError:
        raise SubquadError(f"{path} cannot be read: it needs more memory than there is") from None
    except Exception as error:  # a damaged pickle may raise anything
        why = str(error).partition("\n")[0][:100] or type(error).__name__
        raise SubquadError(f"{path} is not a whole pickle ({why}): get it again") from None


class _Plain:
    """Turns what was read into values with lists in place of arrays and tuples.

    A small pickle can stand for a huge value by naming the same list again and again. The number of parts is limited by the
    size of the file, in which every part of an honest one has at least a byte.
    """

    def __init__(self, file_bytes: int) -> None:
        self.left = LARGER * file_bytes

    def value(self, value: Any) -> Any:
        """The value in plain types."""
        self.left -= 1
        if self.left < 0:
            raise _RefusedError("lists that are named again and again")
        if isinstance(value, _Array):
            return self.value(value.values)
        if isinstance(value, dict):
            return {key: self.value(part) for key, part in value.items()}
        if isinstance(value, list | tuple):
            return [self.value(part) for part in value]
        if value is None or isinstance(value, str | bytes | int | float):
            return value
        raise _RefusedError(f"a value of type {type(value).__name__}")
