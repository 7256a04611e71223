"""Series in every format, how columns are recognised, and what is left out or refused."""

from pathlib import Path

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from subquad.errors import SubquadError
from subquad.tasks.series.loading import load_series
from subquad.tasks.series.sets import Reading


def write(path: Path, *lines: str) -> Path:
    path.write_text("\n".join([*lines, ""]))
    return path


def test_a_step_in_each_row(tmp_path: Path) -> None:
    path = write(
        tmp_path / "long.csv",
        "unique_id,ds,y,z,note,label",
        "b,2024-01-02,2,5,hello,x",
        "a,2024-01-01,1,,world,y",
        "b,2024-01-01,3,6.5,,x",
        "b,soon,3,6.5,,x",
        ",2024-01-01,3,6.5,,x",
        "a,2024-01-03,-1,1e40,,",
    )
    series = load_series(path)
    assert series.names == ["b", "a"]
    assert series.channels == ("y", "z")
    assert series.labels == ["x", "y"]
    np.testing.assert_array_equal(series.of(0), [[3, 6.5], [2, 5]])
    np.testing.assert_array_equal(series.of(1), [[1, np.nan], [-1, np.nan]])
    assert np.diff(series.times_of(1)).tolist() == [2 * 86400]
    assert series.reading == Reading("long", "unique_id", "ds", "label", ("y", "z"), "iso")
    assert any(said.startswith("not used: note") for said in series.said)
    assert series.complaints == (
        "long.csv: 1 row is left out, without the name of a series: at line 6",
        "long.csv: 1 row is left out, without a valid time: at line 5",
    )
    named = load_series(path, Reading(values=("z",), label="note", id="label"))
    assert named.channels == ("z",)


def test_whole_numbers_that_look_like_dates_are_values_if_named(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "time,sold,flag", "1,20240101,0", "2,20240102,1")
    assert load_series(path).channels == ("flag",)
    assert load_series(path, Reading(values=("sold", "flag"))).values[:, 0] == pytest.approx([20240101, 20240102])
    with pytest.raises(SubquadError, match="has no numbers in a column that should hold some: word: category"):
        load_series(write(tmp_path / "b.csv", "time,word", "1,a", "2,b"), Reading(values=("word",)))


def test_rows_in_order_are_one_series(tmp_path: Path) -> None:
    series = load_series(write(tmp_path / "a.csv", "load;price", "1,5;2", "3;4", ";6"))
    assert series.names == ["series"]
    np.testing.assert_array_equal(series.values, np.array([[1.5, 2], [3, 4], [np.nan, 6]], np.float32))
    assert series.times.tolist() == [0, 1, 2]


def test_a_series_in_each_row(tmp_path: Path) -> None:
    path = write(tmp_path / "wide.csv", "id,t10,t2,t0,t1,class", "u,4,3,1,2,x", "v,,,5,6,y")
    series = load_series(path)
    assert (series.names, series.labels, series.channels) == (["u", "v"], ["x", "y"], ("t",))
    assert series.of(0).ravel().tolist() == [1, 2, 3, 4]
    assert series.of(1).ravel().tolist() == [5, 6]  # steps without values at the end are no steps
    two = ",".join([f"x_{at}" for at in range(4)] + [f"y_{at}" for at in range(4)])
    both = load_series(write(tmp_path / "two.csv", two, "1,2,3,4,5,6,7,8"))
    assert both.channels == ("x", "y")
    np.testing.assert_array_equal(both.of(0), [[1, 5], [2, 6], [3, 7], [4, 8]])
    long = load_series(path, Reading(layout="long"))
    assert long.channels == ("t10", "t2", "t0", "t1")


def test_tables_without_names(tmp_path: Path) -> None:
    ucr = load_series(write(tmp_path / "x.tsv", "1\t0.5\t0.25\tNaN", "2.0\t1\t2\t3"))
    assert ucr.labels == ["1", "2"]
    assert ucr.of(0).ravel().tolist() == [0.5, 0.25]
    plain = load_series(write(tmp_path / "x.csv", "0.5,0.25", "1,1", "3"))
    assert plain.labels is None
    assert plain.lengths.tolist() == [2, 2, 1]
    column = load_series(write(tmp_path / "y.csv", "0.5", "1", "3"))
    assert column.of(0).ravel().tolist() == [0.5, 1, 3]
    steps = load_series(tmp_path / "x.tsv", Reading(layout="long"))
    assert steps.values.shape == (2, 4)
    with pytest.raises(SubquadError, match="line 2 has 'abc', which is no number"):
        load_series(write(tmp_path / "z.csv", "1,2", "3,abc"))


def test_arrays_and_archives(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.ones((3, 5, 2)))
    assert load_series(tmp_path / "a.npy").channels == ("channel 1", "channel 2")
    np.save(tmp_path / "b.npy", np.ones((3, 5)))
    assert load_series(tmp_path / "b.npy").lengths.tolist() == [5, 5, 5]
    assert load_series(tmp_path / "b.npy", Reading(layout="long")).values.shape == (3, 5)
    np.savez(tmp_path / "c.npz", X=np.ones((2, 4)), y=["p", "q"])
    assert load_series(tmp_path / "c.npz").labels == ["p", "q"]
    np.save(tmp_path / "d.npy", np.array(["a"]))
    with pytest.raises(SubquadError, match="series are numbers by series, steps and channels"):
        load_series(tmp_path / "d.npy")
    uea = write(tmp_path / "e.ts", "# about", "@classLabel true a b", "@data", "1,2,?:4,5,6:a", "1,2:3,4:b")
    series = load_series(uea)
    assert series.labels == ["a", "b"]
    np.testing.assert_array_equal(series.of(0), [[1, 4], [2, 5], [np.nan, 6]])
    with pytest.raises(SubquadError, match="has no series below @data"):
        load_series(write(tmp_path / "f.ts", "@data"))


def test_parquet_with_times_and_a_folder_that_tells_splits(tmp_path: Path) -> None:
    table = pyarrow.table({"id": ["a", "a"], "time": pyarrow.array([0, 3600], pyarrow.timestamp("s")), "v": [1.0, None]})
    for split in ("train", "test"):
        parquet.write_table(table, tmp_path / f"{split}.parquet")
    series = load_series(tmp_path)
    assert series.told == {"test": [0], "train": [1]}
    assert series.names == ["test", "train"]
    assert series.times.tolist() == [0, 3600, 0, 3600]


def test_lists_in_cells(tmp_path: Path) -> None:
    table = pyarrow.table({"item_id": ["a", "b"], "target": [[1.0, 2.0, None], [4.0, 5.0, 6.0, 7.0]], "feat": ["x", "y"]})
    parquet.write_table(table, tmp_path / "a.parquet")
    series = load_series(tmp_path / "a.parquet")
    assert (series.names, series.channels, series.lengths.tolist()) == (["a", "b"], ("target",), [2, 4])
    two = write(tmp_path / "b.csv", "x,y,label", '"[1, 2, 3]",4 5 6,p', '"7,8,9",1;2;nan,q')
    assert load_series(two).of(0).tolist() == [[1, 4], [2, 5], [3, 6]]
    assert load_series(two).labels == ["p", "q"]
    with pytest.raises(SubquadError, match=r"line 2 has lists of 3 and of other numbers of steps"):
        load_series(write(tmp_path / "c.csv", "x,y", "1 2 3,4 5 6 7"))


def test_labels_in_a_table_of_their_own(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "id,time,v", "u,1,2", "u,2,3", "w,1,1")
    labels = write(tmp_path / "labels.csv", "id,group", "u,good", "x,bad")
    assert load_series(path, label_file=str(labels)).labels == ["good", None]
    with pytest.raises(SubquadError, match="no name is the same"):
        load_series(path, label_file=str(write(tmp_path / "other.csv", "id,group", "x,bad")))


@pytest.mark.parametrize(
    ("lines", "wanted", "said"),
    [
        ([], Reading(), "is empty: it should begin with a line of column names"),
        (["time,value"], Reading(), "has no rows that can be used"),
        (["time,value", "1,nan"], Reading(), "has no value that can be used: all are missing"),
        (["time,value", "1,abc"], Reading(), "has no columns of numbers but 'time', 'value'"),
        (["time,value", "1,2"], Reading(time="when"), "name the one with the time by --time-column"),
        (["time,value", "1,2"], Reading(values=("load",)), "by --value-columns"),
        (["time,value", "soon,2"], Reading(), "has neither numbers nor dates"),
        (["v,v", "1,2"], Reading(), "has 2 columns 'v': rename all but one"),
    ],
)
def test_what_cannot_be_read_is_refused(lines: list[str], wanted: Reading, said: str, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("\n".join([*lines, ""]) if lines else "")
    with pytest.raises(SubquadError, match=said) as caught:
        load_series(path, wanted)
    assert str(path) in str(caught.value)


def test_files_of_the_archives(tmp_path: Path) -> None:
    for split in ("TRAIN", "TEST"):
        write(tmp_path / f"Basic_{split}.ts", "@classLabel true a b", "@data", "1,2,3:a", "3,2,1:b")
        write(tmp_path / f"Basic_{split}.txt", "1 1 2 3", "2 3 2 1")
    write(tmp_path / "Basic_more.ts", "@classLabel true a b", "@data", "1,2,3:a", "3,2,1:b")
    series = load_series(tmp_path)
    assert series.told == {"test": [0, 1], "train": [2, 3]}
    assert any("Basic_more.ts" in said for said in series.complaints)
    long = "  5.0000000e-01" * 100
    old = load_series(write(tmp_path / "x.txt", f"  1.0000000e+00{long}", f"  2.0000000e+00{long}"))
    assert (old.labels, old.lengths.tolist()) == (["1", "2"], [100, 100])


def test_channels_are_joined_by_name(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", "time,load,temp", "1,10.5,1.5", "2,11.5,2.5")
    write(tmp_path / "b.csv", "time,temp,load", "1,1.5,10.5", "2,2.5,11.5")
    series = load_series(tmp_path)
    np.testing.assert_array_equal(series.of(0), series.of(1))
    write(tmp_path / "b.csv", "time,temp,wind", "1,1.5,10.5", "2,2.5,11.5")
    with pytest.raises(SubquadError, match="give the same names"):
        load_series(tmp_path)


def test_dates_that_can_be_read_in_two_ways_are_named(tmp_path: Path) -> None:
    series = load_series(write(tmp_path / "a.csv", "date,v", *(f"{at}/1/2024,{at}.5" for at in range(1, 13))))
    assert any("could have the day or the month first" in said for said in series.complaints)
