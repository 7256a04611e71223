"""Events from files: what is read, and what is said of the rest."""

import json
import os
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from subquad import Linear, ModelOptions, SubquadError
from subquad.tasks import Events
from subquad.tasks.base import Outlook
from subquad.tasks.events import Columns, Repairs, load_sequences, load_splits
from tests.data.operations import operations
from tests.tasks.events.files import easytpp, lines, many, of, record, write


@pytest.mark.parametrize("lines", [False, True])
@pytest.mark.parametrize("development", ["valid", "dev"])
def test_easytpps_folder(lines: bool, development: str, tmp_path: Path) -> None:
    """Types are as many as it says, whether they occur or not."""
    found = load_splits(str(easytpp(tmp_path, lines=lines, development=development)))
    assert found.train.names == ["0", "1"]
    assert of(found.train, "0") == [(0.0, "0"), (1.5, "1"), (2.0, "1")]
    assert of(found.train, "1") == [(0.0, "1"), (0.25, "0")]
    assert of(found.development, "0") == [(0.0, "1"), (3.0, "1")]
    assert of(found.test, "0") == [(0.0, "0"), (0.5, "0")]
    assert all(part.type_names == ["0", "1", "2"] for part in found)
    assert found.train.starts.tolist() == [0.0, 0.0]
    assert found.train.ends.tolist() == [2.0, 0.25]
    assert found.complaints == ()


def test_easytpps_types_may_begin_with_1(tmp_path: Path) -> None:
    easytpp(tmp_path)
    write(tmp_path, json.dumps([record([0.0, 1.0], [1, 3])]), "train.json")
    write(tmp_path, json.dumps([record([0.0, 1.0, 2.0], [1, 2, 3]), record([0.0, 1.0], [3.0, 1], 1)]), "test.json")
    write(tmp_path, json.dumps([record([0.0, 1.0], [1, 3])]), "valid.json")
    found = load_splits(str(tmp_path))
    assert found.test.type_names == ["1", "2", "3"]
    assert of(found.test, "1") == [(0.0, "3"), (1.0, "1")]


def test_fields_that_are_not_used_are_named(tmp_path: Path) -> None:
    folder = easytpp(tmp_path)
    records = json.loads((folder / "test.json").read_text())
    (folder / "test.json").write_text(json.dumps([{**each, "amount": [1, 2]} for each in records]))
    assert load_splits(str(folder)).complaints == (
        "test.json: the field 'amount' is not used: give a table in CSV or Parquet to use more than times and types",
    )


def test_gaps_do_where_there_are_no_times(tmp_path: Path) -> None:
    folder = easytpp(tmp_path)
    one = {"time_since_last_event": [0, 1.5, 0.5], "type_event": [0, 1, 0]}
    write(folder, json.dumps([one, one]), "train.json")
    found = load_splits(str(folder))
    assert of(found.train, "2") == [(0.0, "0"), (1.5, "1"), (2.0, "0")]


def test_easytpps_pickles(tmp_path: Path) -> None:
    """As they are handed around: a dict with a list of sequences by split, each a list of events."""

    def events(times: list[float], types: list[int]) -> list[dict[str, Any]]:
        gaps = np.diff(times, prepend=0.0)
        rows = zip(times, gaps, types, strict=True)
        return [
            {"time_since_start": np.float64(time), "time_since_last_event": gap, "type_event": kind, "idx_event": 1}
            for time, gap, kind in rows
        ]

    for split, shift in (("train", 0.0), ("dev", 1.0), ("test", 2.0)):
        sequences = [events([0.0, 0.5 + shift, 3.0], [0, 2, 1]), events([1.0, 2.0], [1, 1])]
        content = {"dim_process": 3, "train": [], "dev": [], "test": [], split: sequences}
        (tmp_path / f"{split}.pkl").write_bytes(pickle.dumps(content))
    found = load_splits(str(tmp_path))
    assert found.train.type_names == ["0", "1", "2"]
    assert of(found.train, "1") == [(0.0, "0"), (0.5, "2"), (3.0, "1")]
    assert of(found.development, "1") == [(0.0, "0"), (1.5, "2"), (3.0, "1")]
    assert of(found.test, "2") == [(1.0, "1"), (2.0, "1")]
    (tmp_path / "train.pkl").write_bytes(pickle.dumps({"dim_process": 3, "a": [1], "b": [1]}))
    with pytest.raises(
        SubquadError, match=r"is not in EasyTPP's form: it should be a dict with a list of sequences 'train'"
    ):
        load_splits(str(tmp_path))
    (tmp_path / "train.pkl").write_bytes(pickle.dumps({"train": [3]}))
    with pytest.raises(SubquadError, match=r"train.pkl: sequence 1 is no record but 3"):
        load_splits(str(tmp_path))


def test_one_sequence_a_line(tmp_path: Path) -> None:
    """A tenth of the training sequences is for development; a type of the test is known to all."""
    found = load_splits(str(lines(tmp_path)))
    assert [len(part.names) for part in found] == [18, 2, 2]
    assert {*found.train.names, *found.development.names} == {str(number) for number in range(1, 21)}
    name = found.train.names[0]
    assert of(found.train, name) == [(0.0, "1"), (int(name) - 0.5, "2"), (40.25, "1")]
    assert of(found.test, "1") == [(0.1, "1"), (0.2, "4")]
    assert of(found.test, "2") == [(0.5, "2"), (1.5, "2")]
    assert all(part.type_names == ["1", "2", "3", "4"] for part in found)
    same, other = (load_splits(str(tmp_path), seed=seed).development.names for seed in (0, 1))
    assert found.development.names == same != other
    assert len(load_splits(str(lines(tmp_path, 3)), fold=3).train.names) == 18
    with pytest.raises(SubquadError, match=r"has no time-2-train.txt: choose --fold 1 or 3"):
        load_splits(str(tmp_path), fold=2)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("time-1-test.txt", "1 2\n", r"time-1-test.txt has 1 sequences but event-1-test.txt 2: both must have the same"),
        ("event-1-test.txt", "1 2\n1\n", r"line 2 of .*time-1-test.txt has 2 times but that of event-1-test.txt 1 types"),
        ("event-1-test.txt", "1 2\n0 1\n", r"the type '0', which is none of the 2 .*: sequence '2', line 2, event 1"),
        ("event-1-test.txt", "1 2\nx 1\n", r"an event has the type 'x', which is none of the 2 known"),
        ("time-1-test.txt", "1 2\n5 4\n", r"test.txt: time goes backwards, from 5 to 4: sequence '2', line 2, event 2"),
        ("time-1-test.txt", "1 2\n1 x\n", r"missing or neither a number nor a date: sequence '2', line 2, event 2"),
    ],
)  # fmt: skip
def test_bad_lines_are_named(name: str, text: str, said: str, tmp_path: Path) -> None:
    write(lines(tmp_path), text, name)
    with pytest.raises(SubquadError, match=said):
        load_splits(str(tmp_path))


def test_a_missing_half_is_named(tmp_path: Path) -> None:
    (lines(tmp_path) / "event-1-test.txt").unlink()
    with pytest.raises(SubquadError, match=r"cannot read .*event-1-test.txt: No such file or directory"):
        load_splits(str(tmp_path))


TABLE = "id,time,type\n" + "".join(
    f"{name},{time},{kind}\n" for time, kind in ((1, "b"), (2.5, "a"), (4, "b")) for name in range(10)
)


def test_a_table_is_split_by_sequence(tmp_path: Path) -> None:
    path = write(tmp_path, TABLE)
    found = load_splits(str(path))
    assert [len(part.names) for part in found] == [6, 2, 2]
    assert sorted(name for part in found for name in part.names) == [str(name) for name in range(10)]
    for part in found:
        assert part.type_names == ["a", "b"]
        for name in part.names:
            assert of(part, name) == [(1.0, "b"), (2.5, "a"), (4.0, "b")]
    rows = TABLE.splitlines(keepends=True)
    turned = write(tmp_path, rows[0] + "".join(sorted(rows[1:], key=lambda row: (-int(row[0]), row))), "turned.csv")
    assert [sorted(part.names) for part in load_splits(str(turned))] == [sorted(part.names) for part in found]
    assert load_splits(str(path), seed=1).test.names != found.test.names


def test_a_table_in_json_lines(tmp_path: Path) -> None:
    rows = [
        {
            "id": f"s{at // 3}",
            "time": f"2024-01-0{at % 3 + 1}T10:00:00+02:00",
            "type": "ab"[at % 2],
            "tags": ["x", "y"][: at % 3],
        }
        for at in range(30)
    ]
    path = write(tmp_path, "\n".join(map(json.dumps, rows)), "t.jsonl")
    splits = load_splits(str(path))
    assert [len(part.names) for part in splits] == [6, 2, 2]
    assert [column.column.kind for column in splits.train.columns] == ["several"]
    times = of(splits.train, splits.train.names[0])
    assert [time - times[0][0] for time, _ in times] == [0.0, 86400.0, 172800.0]
    assert splits.train.dated


def test_columns_by_their_names(tmp_path: Path) -> None:
    path = write(tmp_path, TABLE.replace("id,time,type", "who,when,what").replace(",", "\t"), "t.tsv")
    found = load_splits(str(path), Columns("who", "when", "what"))
    assert found.train.type_names == ["a", "b"]
    with pytest.raises(
        SubquadError,
        match=r"has no column 'sequence' but 'who', 'when', 'what': name the one with the sequence by --sequence-column",
    ):
        load_splits(str(path))
    with pytest.raises(SubquadError, match=r"has no column 'kind' but .*: name the one with the type by --type-column"):
        load_splits(str(path), Columns("who", "when", "kind"))


def test_types_that_are_numbers_are_in_their_order(tmp_path: Path) -> None:
    path = write(tmp_path, "id,time,type\n" + "".join(f"{name},{time},{time}\n" for name in "abc" for time in (2, 10, 11)))
    assert load_splits(str(path)).train.type_names == ["2", "10", "11"]


@pytest.mark.parametrize(
    ("times", "seconds"),
    [
        (["1e1", "30.5"], [10.0, 30.5]),
        (["1970-01-01T00:00:01", "1970-01-02"], [1.0, 86400.0]),
        (["1969-12-31T23:59:59", "1970-01-01T01:00:00+01:00"], [-1.0, 0.0]),
        (["1700000000.125", "1700000000.25"], [1700000000.125, 1700000000.25]),
    ],
)
def test_times(times: list[str], seconds: list[float], tmp_path: Path) -> None:
    """Dates may be before 1970; seconds since then are as exact as they are written."""
    path = write(tmp_path, "sequence,time,type\n" + "".join(f"a,{time},x\n" for time in times))
    found = load_sequences(path, ["x"])
    assert found.times.tolist() == seconds
    assert found.gaps.tolist() == [0.0, seconds[1] - seconds[0]]
    assert (found.starts[0], found.ends[0]) == (seconds[0], seconds[1])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda text: text[: len(text) // 2], r"train.json is not whole: .* at line 1, column \d+; it may have been cut"),
        (lambda text: "", r"train.json is empty"),
        (lambda text: '"hello"', r"train.json is not in EasyTPP's form: it should be a list of records"),
        (lambda text: "[3]", r"train.json: record 1 is no record but 3"),
        (lambda text: "[]", r"train.json has no event that can be used: there are none"),
        (lambda text: text.replace("type_event", "types"), r"train.json: record 1 has no list 'type_event'"),
        (lambda text: text.replace("time_since", "since"), r"train.json: record 1 has no list 'time_since_start'"),
        (lambda text: text.replace('"seq_len": 2', '"seq_len": 5'), r"record 2 has 2 times, 2 types and a seq_len of 5"),
        (lambda text: text.replace("[0.0, 0.25]", "[0.0, null]"), r"time that is missing .* '1', record 2, event 2"),
        (lambda text: text.replace("[0.0, 0.25]", '[0.0, "x"]'), r"time that is missing .* '1', record 2, event 2"),
        (lambda text: text.replace("[0.0, 0.25]", "[0.5, 0.25]"), r"from 0.5 to 0.25: sequence '1', record 2, event 2"),
        (lambda text: text.replace("[1, 0]", "[1, 3]"), r"type '3', which is none of the 3 .* '1', record 2, event 2"),
        (lambda text: text.replace("[1, 0]", "[1, -1]"), r"type '-1', which is none of the 3 known"),
        (lambda text: text.replace("[1, 0]", "[1, 0.5]"), r"type '0.5', which is none of the 3 known"),
        (lambda text: text.replace("[1, 0]", "[1, null]"), r"an event has no type: sequence '1', record 2, event 2"),
        (lambda text: json.dumps([record([], []), record([0.0, 1.0], [0, 0], 1)]), r"sequence '0' has no events: take"),
        (lambda text: json.dumps([record([0.0], [0])]), r"the train split of .* has no sequence of 2 events or more"),
    ],
)  # fmt: skip
def test_bad_json_is_refused(change: Callable[[str], str], said: str, tmp_path: Path) -> None:
    folder = easytpp(tmp_path)
    write(folder, change((folder / "train.json").read_text()), "train.json")
    with pytest.raises(SubquadError, match=said):
        load_splits(str(folder))


def test_a_cut_line_of_json_is_named(tmp_path: Path) -> None:
    folder = easytpp(tmp_path, lines=True)
    write(folder, (folder / "train.json").read_text()[:-20], "train.json")
    with pytest.raises(SubquadError, match=r"train.json is not whole: .* at line 2, column \d+; it may have been cut"):
        load_splits(str(folder))


def test_types_without_end_are_refused(tmp_path: Path) -> None:
    folder = lines(tmp_path)
    write(folder, "1 999999999\n1 1\n", "event-1-test.txt")
    with pytest.raises(SubquadError, match=r"has types up to number 999,999,999, and more than 100,000"):
        load_splits(str(folder))


def test_empty_and_single_sequences(tmp_path: Path) -> None:
    folder = easytpp(tmp_path)
    records = [record([], [], 5), record([0.0, 1.0], [0, 0], 6), record([2.0], [1], 7)]
    write(folder, json.dumps(records), "train.json")
    found = load_splits(str(folder), repairs=Repairs(broken="drop"))
    assert found.train.names == ["6", "7"]
    assert found.complaints == (
        "train.json: 1 sequence is left out, without events: '5'",
        "train.json: 1 sequence has a single event, which leaves nothing to predict: '7'",
    )


def test_what_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SubquadError, match=r"there is no file or folder .*none.csv: check the path given by --data"):
        load_splits(str(tmp_path / "none.csv"))
    with pytest.raises(SubquadError, match=r"there is no file or folder events/none.csv: check the path"):
        load_splits("events/none.csv")
    with pytest.raises(SubquadError, match=r"there is no file or folder ../none: check the path"):
        load_splits("../none")
    with pytest.raises(SubquadError, match=r"there is no file or folder .*none: check the path given by --data"):
        load_sequences(tmp_path / "none", ["x"])
    with pytest.raises(SubquadError, match=r"is of no known layout: it has neither train.json .* nor time-1-train.txt"):
        load_splits(str(tmp_path))
    with pytest.raises(SubquadError, match=r"is of no known kind: give a folder, or a file that ends in .json"):
        load_splits(str(write(tmp_path, "x", "t.xlsx")))
    write(tmp_path, "[]", "train.json")
    with pytest.raises(SubquadError, match=r"has no test.json beside the others"):
        load_splits(str(tmp_path))
    with pytest.raises(SubquadError, match=r"two.csv has 2 sequences, but at least 3 are needed"):
        load_splits(str(write(tmp_path, "id,time,type\na,1,x\na,2,x\nb,1,x\n", "two.csv")))
    named = write(tmp_path, "sequence,time,type,note\ns,1,unknown,x\n", "unknown.csv")
    with pytest.raises(SubquadError, match=r"^unknown.csv has no event that can be used: 1 event is left out"):
        load_sequences(named, ["a"], Columns(decided={}), Repairs(broken="drop"))
    with pytest.raises(SubquadError, match=r"rows.csv has no event that can be used: there are none"):
        load_splits(str(write(tmp_path, "id,time,type\n", "rows.csv")))
    (tmp_path / "latin.json").write_bytes(b'["\xe9"]')
    with pytest.raises(SubquadError, match=r"latin.json is not text in UTF-8: save it as such"):
        load_splits(str(tmp_path / "latin.json"))


def test_new_sequences_have_known_types(tmp_path: Path) -> None:
    """In the order that the types are known in; from JSON by their numbers."""
    path = write(tmp_path, "sequence,time,type\na,1,y\na,2,x\n")
    assert load_sequences(path, ["x", "y", "z"]).types.tolist() == [1, 0]
    assert load_sequences(path, ["y", "x"]).types.tolist() == [0, 1]
    with pytest.raises(SubquadError, match=r"has the type 'y', which is none of the 5 known \('x', 'a', 'b', 'c', ...\)"):
        load_sequences(path, ["x", "a", "b", "c", "d"])
    folder = easytpp(tmp_path)
    assert of(load_sequences(folder / "train.json", ["1", "0"]), "1") == [(0.0, "1"), (0.25, "0")]
    assert of(load_sequences(folder, ["1", "0"]), "0") == [(0.0, "0"), (0.5, "0")]  # its test split
    (folder / "train.json").unlink()
    assert [len(one.names) for one in load_splits(str(write(tmp_path, TABLE, "other.csv")))] == [6, 2, 2]


def test_parquet(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    rows = {
        "id": [1, 1, 2, 1],
        "time": pyarrow.array([1_700_000_000_500_000, 1_700_000_001_000_000, 0, None], pyarrow.timestamp("us")),
        "type": [7, 8, 7, 7],
    }
    path = tmp_path / "t.parquet"
    parquet.write_table(pyarrow.table(rows), path)
    with pytest.raises(SubquadError, match=r"a time that is missing .*: sequence '1', row 4"):
        load_sequences(path, ["7", "8"])
    found = load_sequences(path, ["7", "8"], repairs=Repairs(broken="drop"))
    assert of(found, "1") == [(1_700_000_000.5, "7"), (1_700_000_001.0, "8")]
    exact = [1e9 + 1 / 3, 1e9 + 2 / 3]
    parquet.write_table(pyarrow.table({"id": ["a", "a"], "time": exact, "type": ["x", "x"]}), path)
    assert load_sequences(path, ["x"]).times.tolist() == exact


def test_a_dataset_of_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")
    folder = easytpp(tmp_path)
    names = {"train": "train", "validation": "valid", "test": "test"}
    parts = {
        split: datasets.Dataset.from_list(json.loads((folder / f"{name}.json").read_text())) for split, name in names.items()
    }
    asked = []

    def load_dataset(name: str) -> Any:
        asked.append(name)
        return datasets.DatasetDict(parts)

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    found, wanted = load_splits("easytpp/small"), load_splits(str(folder))
    assert asked == ["easytpp/small"]
    for one, other in zip(found, wanted, strict=True):
        assert one.names == other.names
        assert np.array_equal(one.times, other.times)
        assert np.array_equal(one.types, other.types)
        assert one.type_names == other.type_names
    del parts["test"]
    with pytest.raises(SubquadError, match=r"the dataset easytpp/small has no split 'test' but 'train', 'validation'"):
        load_splits("easytpp/small")


def test_the_hub_out_of_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")

    def load_dataset(name: str) -> Any:
        raise ConnectionError("Couldn't reach it.\nTry again")

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    with pytest.raises(
        SubquadError,
        match=r"no file or folder easytpp/taxi, nor could .* from the Hugging Face hub \(Couldn't reach it\): get its files "
        "elsewhere and give the path of their folder",
    ):
        load_splits("easytpp/taxi")
    monkeypatch.setitem(sys.modules, "datasets", None)  # as if it were not installed
    with pytest.raises(SubquadError, match=r"to look for a dataset of that name, pip install 'subquad\[hub\]'"):
        load_splits("easytpp/taxi")


@pytest.mark.parametrize("kind", ["json", "text", "csv", "parquet"])
def test_reading_takes_work_in_proportion(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten times the sequences are at most about ten times the work: once it was a hundred times."""
    paths = {count: str(many(tmp_path, kind, count)) for count in (100, 1000)}
    load_splits(paths[100])  # imports
    few, more = (operations(lambda path=path: load_splits(path), monkeypatch) for path in paths.values())  # type: ignore[misc]
    assert few > 300
    assert more < 12 * few


@pytest.mark.parametrize(
    ("name", "sequences", "events", "types", "ties"),
    [
        ("stackoverflow", [1401, 401, 401], [90497, 25762, 26518], 22, 3),
        ("taxi", [1400, 200, 400], [51854, 7404, 14820], 10, 0),
        ("financial", [90, 10, 100], [298_710, 33_190, 82_900], 2, 0),
        ("mimic2", [527, 58, 65], None, 75, 0),
    ],
)
def test_real_data(name: str, sequences: list[int], events: list[int] | None, types: int, ties: int) -> None:
    folder = Path(os.environ.get("SUBQUAD_DATA", "")) / "point-process" / name
    if not folder.exists():
        pytest.skip(f"{name} is looked for in point-process/{name} of the folder that SUBQUAD_DATA names")
    found = load_splits(str(folder))
    assert [len(part.names) for part in found] == sequences
    assert events is None or [len(part.times) for part in found] == events
    assert len(found.train.type_names) == types
    assert len(found.complaints) == ties  # a sentence for each file that has some
    for part in found:
        assert (part.gaps >= 0).all()
        assert part.types.max() < types


def test_dates_as_people_write_them(tmp_path: Path) -> None:
    """A file to forecast from may hold nothing that tells the day from the month, so it is read as the training data."""
    rows = [f"s{number},{10 + day}.02.2024 0{day}:30,a" for number in range(12) for day in range(6)]
    path = write(tmp_path, "\n".join(["sequence,time,type", *rows]))
    task = Events(data=str(path)).prepare()
    assert (task.scales.time_form, task.scales.dated, task.complaints) == ("day-first", True, ())
    assert task.scales.mean_gap == 25 * 3600
    new = write(tmp_path, "sequence,time,type\nn,03.04.2024 10:00,a\nn,05.04.2024 10:00,a\n", "new.csv")
    again = Events(data=str(path)).prepare(task.learned)
    model = again.build(Linear(), ModelOptions(layers=1, heads=1, head_dim=4))
    line = again.predict(model, new).lines[0]
    assert line[2] == "2024-04-05T10:00:00"
    assert "2024-04-05T10" <= line[4] <= line[5] <= "2024-05"
    ahead = again.forecast(model, new, Outlook(events=2, samples=4)).lines
    assert all(cell.startswith("2024-0") for cell in ahead[0][2:5])
    parts = again.forecast(model, new, Outlook(window=86400.0, samples=4)).lines
    assert parts[0][1:3] == ["2024-04-05T10:00:00", "2024-04-06T10:00:00"]
    follower = again.follow(model, 2)
    follower.take_record({"time": "05.04.2024 10:00", "type": "a"})
    assert follower.forecast("stream")[2] == "2024-04-05T10:00:00"


def test_dates_that_can_be_read_in_two_ways_are_told(tmp_path: Path) -> None:
    rows = [f"s{number},{1 + day}/{1 + day % 3}/2024,a" for number in range(6) for day in range(4)]
    path = write(tmp_path, "\n".join(["sequence,time,type", *rows]))
    said = "t.csv: its dates could have the day or the month first, and are read with the day first"
    assert any(said in sentence for sentence in Events(data=str(path), backwards="sort").prepare().complaints)
    task = Events(data=str(path), backwards="sort", time_form="month-first").prepare()
    assert not any(said in sentence for sentence in task.complaints)
    assert task.scales.time_form == "month-first"
    with pytest.raises(SubquadError, match=r"--time-form must be auto or one of 'compact'"):
        Events(data=str(path), time_form="month").check()
