"""Pickles: plain data are read, and nothing else is called or built."""

import io
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from subquad.data.pickles import read_pickle
from subquad.errors import SubquadError


def written(folder: Path, content: bytes) -> Path:
    path = folder / "t.pkl"
    path.write_bytes(content)
    return path


class Attack:
    """Makes a file when it is unpickled."""

    def __init__(self, call: Any, *arguments: Any) -> None:
        self.call, self.arguments = call, arguments

    def __reduce__(self) -> Any:
        return self.call, self.arguments


@pytest.mark.parametrize("protocol", range(6))
def test_plain_data_come_back(protocol: int, tmp_path: Path) -> None:
    value = {
        "dim_process": np.int64(3),
        "train": [[{"time_since_start": np.float32(0.5), "type_event": 1}], ("a", None, True, b"x")],
        "array": np.arange(6, dtype=">i4").reshape(2, 3),
        "columns": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        "objects": np.array([1, "a"], dtype=object),
        "empty": np.zeros((0,)),
    }
    assert read_pickle(written(tmp_path, pickle.dumps(value, protocol))) == {
        "dim_process": 3,
        "train": [[{"time_since_start": 0.5, "type_event": 1}], ["a", None, True, b"x"]],
        "array": [[0, 1, 2], [3, 4, 5]],
        "columns": [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]],
        "objects": [1, "a"],
        "empty": [],
    }


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize(
    ("call", "named"), [(os.mkdir, "mkdir"), (eval, "eval"), (np.load, "load"), (getattr, "getattr"), (Path, "Path")]
)
def test_nothing_is_called(protocol: int, call: Any, named: str, tmp_path: Path) -> None:
    made = tmp_path / "made"
    path = written(tmp_path, pickle.dumps([1, Attack(call, str(made))], protocol))
    with pytest.raises(SubquadError, match=rf"holds [\w.]*{named}, but only lists, dicts, texts, numbers and NumPy arrays"):
        read_pickle(path)
    assert not made.exists()


def test_no_method_is_reached_through_a_class(tmp_path: Path) -> None:
    """Dotted names, which late protocols allow."""
    content = b"\x80\x04\x8c\x05numpy\x8c\x0dndarray.dumps\x93."
    with pytest.raises(SubquadError, match=r"holds numpy.ndarray.dumps, but only"):
        read_pickle(written(tmp_path, content))


def test_a_small_file_does_not_stand_for_a_huge_value(tmp_path: Path) -> None:
    value: list[Any] = [0]
    for _ in range(60):
        value = [value, value]
    with pytest.raises(SubquadError, match="holds lists that are named again and again"):
        read_pickle(written(tmp_path, pickle.dumps(value)))
    value = []
    value.append(value)
    with pytest.raises(SubquadError, match=r"is nested too deep|named again and again"):
        read_pickle(written(tmp_path, pickle.dumps(value)))


def test_arrays_of_other_things_are_refused(tmp_path: Path) -> None:
    for array in (np.array(["a"]), np.array([1j]), np.zeros(2, dtype=[("a", "f4")])):
        with pytest.raises(SubquadError, match=r"t.pkl holds|is not a whole pickle"):
            read_pickle(written(tmp_path, pickle.dumps(array)))


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    whole = pickle.dumps({"a": np.arange(5.0), "b": [1, 2, 3]})
    for end in range(len(whole)):
        with pytest.raises(SubquadError):
            read_pickle(written(tmp_path, whole[:end]))
    rng = np.random.default_rng(0)
    for _ in range(300):
        damaged = bytearray(whole)
        damaged[rng.integers(len(whole))] = rng.integers(256)
        try:
            read_pickle(written(tmp_path, bytes(damaged)))
        except SubquadError:
            continue


def test_references_to_the_outside_are_refused(tmp_path: Path) -> None:
    class Pickler(pickle.Pickler):
        def persistent_id(self, obj: Any) -> Any:
            return "elsewhere" if obj == 7 else None

    content = io.BytesIO()
    Pickler(content).dump([7])
    with pytest.raises(SubquadError, match="holds a reference to something outside of it"):
        read_pickle(written(tmp_path, content.getvalue()))
