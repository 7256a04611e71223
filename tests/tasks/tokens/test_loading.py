"""Sequences of symbols in every format, how they are recognised, and what is left out or refused."""

from pathlib import Path

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from subquad.errors import SubquadError
from subquad.tasks.tokens.forms import Form, recognise_form
from subquad.tasks.tokens.loading import Columns, SymbolSequences, load_symbols


def spelled(loaded: SymbolSequences) -> list[str]:
    return [" ".join(loaded.alphabet[symbol] for symbol in sequence) for sequence in loaded.sequences]


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("texts", "form"),
    [
        (["a b", "b c a"], Form()),
        (["1,2,3", "4,5"], Form(separator=",")),
        (["[1, 2, 3]", "[4, 5]"], Form(separator=",")),
        (["[1 2 3]", "[4 5]"], Form()),
        (["x|y", "y|z"], Form(separator="|")),
        (["ACGT", "GGTTACA"], Form(characters=True)),
        (["a", "b"], Form()),
        ([], Form()),
    ],
)
def test_the_form_is_recognised(texts: list[str], form: Form) -> None:
    assert recognise_form(texts) == form


def test_lines_of_text(tmp_path: Path) -> None:
    loaded = load_symbols(write(tmp_path / "a.txt", "login view\n\nview  buy\tlogout\n"))
    assert spelled(loaded) == ["login view", "view buy logout"]
    assert loaded.names == ["line 1", "line 3"]
    assert loaded.labels is None
    letters = load_symbols(tmp_path / "a.txt", form=Form(characters=True))
    assert spelled(letters)[0] == " ".join("login view")


def test_a_row_for_each_sequence_or_for_each_token(tmp_path: Path) -> None:
    wide = load_symbols(write(tmp_path / "wide.csv", 'id,sequence,label\nu,"a, b",x\nv,"c,a",\nw,,y\n'))
    assert (wide.names, spelled(wide), wide.labels) == (["u", "v"], ["a b", "c a"], ["x", None])
    assert wide.complaints == ("wide.csv: 1 sequence is left out, without symbols: wide.csv: w",)
    assert load_symbols(tmp_path / "wide.csv", keep_empty=True).names == ["u", "v", "w"]
    rows = "user,time,item,class\nu,2024-01-02,b,x\nv,2024-01-01,c,\nu,2024-01-01,a,x\nv,2024-01-03,a,z\nu,2024-01-05,,x\n"
    long = load_symbols(write(tmp_path / "long.csv", rows))
    assert (long.names, spelled(long), long.labels) == (["u", "v"], ["a b", "c a"], ["x", "z"])
    assert long.said == ("columns: token 'item', id 'user', order 'time', label 'class'",)
    path = write(tmp_path / "odd.csv", "clicks,bought\na b,x\n")
    assert load_symbols(path, Columns(label="bought")).labels == ["x"]
    assert load_symbols(path, Columns(label="bought"), labels=False).names == ["line 2"]
    path = write(tmp_path / "new.csv", "clicks\na b\n")
    assert spelled(load_symbols(path, Columns(label="bought"), labels=False)) == ["a b"]
    with pytest.raises(SubquadError, match="by --label-column"):
        load_symbols(path, Columns(label="bought"))
    named = load_symbols(tmp_path / "long.csv", Columns(sequence="item"))
    assert spelled(named) == ["b", "c", "a", "a"]


def test_arrays_with_padding_and_labels(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.array([[3, 1, -1], [2, 2, 7], [-1, -1, -1]]))
    loaded = load_symbols(tmp_path / "a.npy")
    assert spelled(loaded) == ["3 1", "2 2 7"]
    assert loaded.said == ("negative numbers at the end of a row are taken for padding",)
    np.save(tmp_path / "b.npy", np.arange(5))
    assert spelled(load_symbols(tmp_path / "b.npy")) == ["0 1 2 3 4"]
    np.savez(tmp_path / "c.npz", X=np.array([[1, 2], [3, 4]], np.uint8), y=np.array([0.0, 1.0]))
    assert load_symbols(tmp_path / "c.npz").labels == ["0", "1"]
    np.save(tmp_path / "d.npy", np.ones((2, 2)))
    with pytest.raises(SubquadError, match="for real numbers, use the task series"):
        load_symbols(tmp_path / "d.npy")
    np.savez(tmp_path / "e.npz", X=np.ones((2, 2), int), y=np.ones(3))
    with pytest.raises(SubquadError, match="there should be one for each"):
        load_symbols(tmp_path / "e.npz")


def test_fasta(tmp_path: Path) -> None:
    loaded = load_symbols(write(tmp_path / "a.fa", ">one chromosome\nACg\nT\n>\nGG\n"))
    assert (loaded.names, spelled(loaded)) == (["one", "record 2"], ["A C G T", "G G"])
    assert loaded.form == Form(characters=True)
    with pytest.raises(SubquadError, match="it is no FASTA file"):
        load_symbols(write(tmp_path / "b.fasta", "ACGT\n"))


def test_names_of_files_tell_splits(tmp_path: Path) -> None:
    for name in ("train", "test", "notes"):
        write(tmp_path / f"{name}.txt", f"a b\nb {name}\n")
    loaded = load_symbols(tmp_path)
    assert {split: len(places) for split, places in loaded.told.items()} == {"train": 2, "test": 2}
    assert loaded.complaints == (f"{tmp_path.name}: 1 file is left out, as its name tells no split: notes.txt",)


def test_a_folder_that_hugging_face_saved(tmp_path: Path) -> None:
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    for split in ("train", "test"):
        (tmp_path / split).mkdir()
        (tmp_path / split / "state.json").write_text("{}")
        table = pyarrow.table({"input_ids": [[3, 1], [2]], "label": [0, 1]})
        with pyarrow.ipc.new_stream(tmp_path / split / "data-00000-of-00001.arrow", table.schema) as writer:
            writer.write_table(table)
    loaded = load_symbols(tmp_path)
    assert spelled(loaded) == ["3 1", "2"] * 2
    assert loaded.told == {"test": [0, 1], "train": [2, 3]}
    assert loaded.labels == ["0", "1"] * 2


@pytest.mark.parametrize(
    ("name", "text", "columns", "said"),
    [
        ("a.txt", "", Columns(), "has no sequence that can be used: it is empty"),
        ("a.txt", " \n\n", Columns(), "has no sequence that can be used"),
        ("a.csv", "", Columns(), "is empty: it should begin with a line of column names"),
        ("a.csv", "one,two\n1,2\n", Columns(), "has no column of sequences but 'one', 'two'"),
        ("a.csv", "one,two\n1,2\n", Columns(sequence="three"), "name the one with the sequence by --sequence-column"),
        ("a.csv", "token,two\n1,2\n", Columns(token="token"), "give --id-column"),
        ("a.csv", "id,token,time\n1,2,soon\n", Columns(), "name another one by --order-column"),
        ("a.npy", "text", Columns(), "is not a whole npy file of numbers"),
        ("a.npz", "text", Columns(), "is not a whole npz file of numbers"),
    ],
)
def test_what_cannot_be_read_is_refused(name: str, text: str, columns: Columns, said: str, tmp_path: Path) -> None:
    with pytest.raises(SubquadError, match=said) as caught:
        load_symbols(write(tmp_path / name, text), columns)
    assert str(tmp_path / name) in str(caught.value)


def test_symbols_in_lists_may_have_spaces(tmp_path: Path) -> None:
    rows = {"id": ["a", "b"], "sequence": [["add to cart", " pay", ""], ["pay", "add to cart", None]]}
    parquet.write_table(pyarrow.table(rows), tmp_path / "t.parquet")
    assert load_symbols(tmp_path / "t.parquet").alphabet == ["add to cart", "pay"]
