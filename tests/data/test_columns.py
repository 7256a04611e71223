"""Columns that are recognized, and read into arrays."""

import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from subquad import SubquadError
from subquad.data import times
from subquad.data.column_values import ColumnReader, ColumnValues
from subquad.data.columns import Column, decide, overridden, read_kinds, recognise
from subquad.data.json_tables import json_cells
from subquad.data.tables import StoredColumn, Tally, read_table

DRAW = random.Random(0)


def drawn(*values: str, rows: int = 300) -> list[str]:
    return [DRAW.choice(values) for _ in range(rows)]


CASES: dict[str, tuple[str, list[str]]] = {
    "city": ("category", drawn("Paris", "Rome", "")),
    "amount": ("number", [f"{at * 37 % 1000}.{at % 100:02d}" for at in range(300)]),
    "decimal commas": ("number", [f"{at},5" for at in range(300)]),
    "thousands": ("number", [f"{at},{at % 900 + 100:03d}.25" for at in range(1, 300)]),
    "missing numbers": ("number", [("n/a" if at % 3 else str(at / 7)) for at in range(300)]),
    "active": ("boolean", drawn("yes", "no", "")),
    "truths": ("boolean", drawn("True", "False")),
    "tags": ("several", ["|".join(DRAW.sample("abcd", at % 4)) for at in range(300)]),
    "semicolons": ("several", [";".join(DRAW.sample("abcdef", 2)) for _ in range(300)]),
    "note": ("text", [f"paid the rent of month {at}" for at in range(300)]),
    "trans_id": ("unused", [str(1000 + at) for at in range(300)]),
    "uuid": ("unused", [f"{DRAW.getrandbits(64):x}" for _ in range(300)]),
    "mcc": ("category", [str(1000 + at % 90) for at in range(300)]),
    "postcode": ("category", [f"{at:05d}" for at in range(90)]),
    "level": ("category", drawn("1", "2", "3")),
    "dots": ("time", [f"{at % 28 + 1:02d}.{at % 12 + 1:02d}.2024" for at in range(300)]),
    "slashes": ("time", [f"{at % 12 + 1}/{at % 28 + 1}/2024 3:05 PM" for at in range(300)]),
    "compact": ("time", [f"2024{at % 12 + 1:02d}{at % 28 + 1:02d}" for at in range(300)]),
    "iso": ("time", [f"2024-{at % 12 + 1:02d}-01T10:00:00+01:00" for at in range(300)]),
    "mixed types": ("category", drawn("1", "2.5", "abc", "7")),
}


@pytest.mark.parametrize("name", CASES)
def test_every_kind_is_recognized(name: str) -> None:
    kind, cells = CASES[name]
    assert recognise(name, cells).kind == kind


def read(column: Column, *chunks: Sequence[str]) -> ColumnValues:
    reader = ColumnReader(column)
    for chunk in chunks:
        reader.keep(reader.read(chunk))
    return reader.finished()


def test_cells_become_arrays_chunk_by_chunk() -> None:
    found = read(Column("c", "category"), ["a", " b "], ["NULL", "a", "c"])
    assert [found.names[at] for at in found.values] == ["a", "b", "", "a", "c"]
    assert found.missing().tolist() == [False, False, True, False, False]
    several = read(Column("s", "several", separator="|"), ["a|b", ""], ["b|b| c |d"])
    assert [[several.names[at] for at in row if at >= 0] for row in several.values] == [["a", "b"], [""], ["b", "c", "d"]]
    assert several.missing().tolist() == [False, True, False]
    assert several.take(np.array([2])).values.shape == (1, 3)
    words = read(Column("t", "text"), ["Paid: RENT, paid!", "-"])
    assert [[words.names[at] for at in row if at >= 0] for row in words.values] == [["paid", "rent"], [""]]


def test_numbers_that_are_none_are_missing_and_counted() -> None:
    reader = ColumnReader(Column("n", "number", "comma"))
    values = reader.read(["1.234,5", "x", "", "-2", "1e400"])
    assert values[[0, 3]].tolist() == [1234.5, -2.0]
    assert np.isnan(values[[1, 2, 4]]).all()
    assert reader.sentences("f.csv") == [
        "f.csv: 2 cells are not a number in the column 'n' and count as missing; if it holds something else, name its kind "
        "by --column-kinds"
    ]
    crowded = ColumnReader(Column("s", "several", separator="|"))
    assert crowded.read(["|".join(map(str, range(40)))]).shape == (1, 16)
    assert "1 cells of the column 's' have more than 16 values" in crowded.sentences("f.csv")[0]


@pytest.mark.parametrize(
    ("cells", "numbers"),
    [
        (["850", "1,013", "23,328"], [850.0, 1013.0, 23328.0]),  # commas between thousands
        (["1,013", "23,328.5"], [1013.0, 23328.5]),
        (["0,125", "1,013"], [0.125, 1.013]),  # decimal commas: no thousands begin with 0
        (["12,5", "1,013"], [12.5, 1.013]),
        (["850", *(f"{at}.013" for at in range(1, 13))], [850.0, *(1000.0 * at + 13 for at in range(1, 13))]),
        ([f"{at}.013" for at in range(13)], [at + 0.013 for at in range(13)]),  # three decimals everywhere
        (["850", "1.013", "2.5"], [850.0, 1.013, 2.5]),
        (["1 234,5", "850"], [1234.5, 850.0]),
    ],
)
def test_numbers_of_a_column_are_written_in_one_way(cells: list[str], numbers: list[float]) -> None:
    column = recognise("n", cells * 10)
    found = read(overridden(column, "number", cells), cells)
    np.testing.assert_allclose(found.values, numbers, rtol=1e-6)


def test_lists_hold_several_values() -> None:
    import pyarrow

    lists = pyarrow.array([["New York", "Rome"], None, [], ["Rome"]])
    cells = StoredColumn(pyarrow.array(["New York Rome", None, "", "Rome"]), lists=lists).with_marks()
    column = recognise("towns", cells)
    assert (column.kind, column.separator) == ("several", "|")
    found = read(column, cells, ["Rome|Oslo"])
    assert [[found.names[at] for at in row if at >= 0] for row in found.values] == [
        ["New York", "Rome"],
        [""],
        [""],
        ["Rome"],
        ["Rome", "Oslo"],
    ]
    as_json = json_cells('{"towns": ["New York", "Rome"], "n": 1.5, "ok": true, "none": null}')
    assert [as_json["n"], as_json["ok"], as_json["none"]] == ["1.5", "true", ""]
    semicolons = read(Column("towns", "several", separator=";"), [as_json["towns"], "Rome;Oslo"])
    assert semicolons.names == ["New York", "Rome", "Oslo"]


def test_tables_in_json_lines(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text('{"a": 1, "b": "x"}\n\n{"b": null, "c": [1, 2]}\n')
    (chunk,) = read_table(path, lambda names: {name: name for name in names}, Tally(path))
    assert chunk.columns == {"a": ["1", ""], "b": ["x", ""], "c": ["", "1\x1f2"]}
    assert chunk.lines.tolist() == [1, 3]
    path.write_text('{"a": 1}\n[1]\n')
    with pytest.raises(SubquadError, match=r"line 2 of .*t.jsonl cannot be read: it is no JSON object"):
        list(read_table(path, lambda names: {name: name for name in names}, Tally(path)))
    path.write_text("\n")
    with pytest.raises(SubquadError, match="is empty: it should have a JSON object in each line"):
        list(read_table(path, lambda names: {name: name for name in names}, Tally(path)))


def test_kinds_can_be_named() -> None:
    assert read_kinds(["a=b=category", "n=unused"], "--column-kinds") == {"a=b": "category", "n": "unused"}
    for wrong in ("a", "=number", "a=float"):
        with pytest.raises(SubquadError, match="--column-kinds takes NAME=KIND with a kind out of category, number"):
            read_kinds([wrong], "--column-kinds")
    decided = decide({"level": ["1", "2", "3"], "city": ["x", "y", "x"]}, {"level": "number", "city": "unused"})
    assert [(column.kind, column.form, column.why) for column in decided.values()] == [
        ("number", "point", "as named"),
        ("unused", "", "as named"),
    ]
    assert overridden(Column("t", "category"), "several", ["a;b", "c"]).separator == ";"


@pytest.mark.parametrize(
    ("cells", "form"),
    [
        (["10.5", "7"], "seconds"),
        (["1700000000000", "1700000001000"], "milliseconds"),
        (["20240131", "20231201"], "compact"),
        (["2024-01-31", "2024-01-31 10:00"], "iso"),
        (["3 10:00:00"], "days"),
        (["31.1.2024", "1.2.24"], "day-first"),
        (["1/31/2024 6:30 PM", "1/2/2024"], "month-first"),
        (["noon", "later"], None),
    ],
)
def test_formats_of_times(cells: list[str], form: str | None) -> None:
    assert times.guess(cells) == form


def test_dates_in_several_formats_are_read_where_that_is_certain() -> None:
    lenient = times.lenient("iso")
    day = times.iso("2024-01-31")
    assert [lenient(text) for text in ("2024-01-31", "31.01.2024", "1/31/2024")] == [day] * 3
    with pytest.raises(ValueError, match="1/2/2024"):
        lenient("1/2/2024")
    assert times.month_first("1/31/2024 12:30 AM") == day + 1800
    assert times.is_ambiguous(["1/2/2024", "3/4/2024"])
    assert not times.is_ambiguous(["1/2/2024", "13/4/2024"])
    assert not times.is_ambiguous(["2024-01-31"])


def test_parquet_keeps_its_types(tmp_path: Path) -> None:
    pyarrow, parquet = (pytest.importorskip(name) for name in ("pyarrow", "pyarrow.parquet"))
    rows = {
        "n": pyarrow.array([1.5, None, 2.0]),
        "t": pyarrow.array([1_500_000, None, 0], pyarrow.timestamp("us")),
        "b": pyarrow.array([True, None, False]),
        "d": pyarrow.array(["x", None, "y"]).dictionary_encode(),
    }
    parquet.write_table(pyarrow.table(rows), tmp_path / "t.parquet")
    (chunk,) = read_table(tmp_path / "t.parquet", lambda names: {name: name for name in names}, Tally(tmp_path))
    kinds = decide(chunk.columns, {})
    assert {name: column.kind for name, column in kinds.items()} == {
        "n": "number",
        "t": "time",
        "b": "boolean",
        "d": "category",
    }
    found = {name: read(column, chunk.columns[name]) for name, column in kinds.items()}
    assert found["t"].values[[0, 2]].tolist() == [1.5, 0.0]
    assert all(values.missing().tolist() == [False, True, False] for values in found.values())
    assert list(chunk.columns["d"]) == ["x", "", "y"]
