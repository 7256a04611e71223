"""Arrays in NumPy's files, and tables in Arrow's, as Hugging Face saves them."""

from pathlib import Path

import numpy as np
import pyarrow
import pytest

from subquad.data.arrays import read_archive, read_labelled_array
from subquad.data.splits import divide
from subquad.data.tables import Tally, read_table
from subquad.errors import SubquadError


def test_usual_names_are_found(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", data=np.ones((3, 2)), labels=np.array(["x", "y", "x"]))
    inputs, labels = read_labelled_array(tmp_path / "a.npz")
    assert inputs.shape == (3, 2)
    assert labels == ["x", "y", "x"]
    np.savez(tmp_path / "b.npz", first=np.ones(3), second=np.ones(3))
    with pytest.raises(SubquadError, match="has the arrays 'first', 'second': name the one with the sequences X"):
        read_labelled_array(tmp_path / "b.npz")
    np.save(tmp_path / "c.npy", np.zeros((0, 3)))
    with pytest.raises(SubquadError, match="which has no sequences"):
        read_labelled_array(tmp_path / "c.npy")
    np.save(tmp_path / "d.npy", np.array([{}], object), allow_pickle=True)
    with pytest.raises(SubquadError, match="is not a whole npy file"):
        read_labelled_array(tmp_path / "d.npy")


@pytest.mark.parametrize("form", ["stream", "file"])
def test_arrow_files_are_tables(form: str, tmp_path: Path) -> None:
    table = pyarrow.table({"tokens": [[3, 1], [], None], "label": ["a", "b", None]})
    path = tmp_path / "data-00000-of-00001.arrow"
    make = pyarrow.ipc.new_stream if form == "stream" else pyarrow.ipc.new_file
    with make(path, table.schema) as writer:
        writer.write_table(table)
    (chunk,) = read_table(path, lambda names: {name: name for name in names}, Tally(path))
    assert list(chunk.columns["tokens"]) == ["3 1", "", ""]
    assert list(chunk.columns["label"]) == ["a", "b", ""]
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(SubquadError, match="cannot be read as Arrow"):
        list(read_table(path, lambda names: {name: name for name in names}, Tally(path)))


def test_splits_have_the_same_shares_of_each_group() -> None:
    names, groups = [f"n{at}" for at in range(52)], np.array([0] * 20 + [1] * 30 + [2] * 2)
    places = divide(names, groups, 0)
    assert [np.bincount(groups[part], minlength=3).tolist() for part in places] == [[14, 21, 2], [2, 3, 0], [4, 6, 0]]
    assert sorted(np.concatenate(places).tolist()) == list(range(52))
    order = np.random.default_rng(0).permutation(52)
    again = divide([names[at] for at in order], groups[order], 0)
    assert [names[at] for at in places.test] == [names[order[at]] for at in again.test]


def test_an_archive_that_does_not_fit_into_memory_is_said_to_be_too_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.savez(tmp_path / "a.npz", X=np.zeros((4, 4)))
    monkeypatch.setattr("subquad.capacity.memory_bytes", lambda: 1)
    with pytest.raises(SubquadError, match="split it"):
        read_archive(tmp_path / "a.npz")
