"""Columns without a known role, from files to features."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from subquad import SubquadError
from subquad.data.column_values import ColumnReader
from subquad.data.columns import Column
from subquad.tasks.columns.features import ColumnFeatures, learn_column
from subquad.tasks.transactions import load_histories
from subquad.tasks.transactions.aggregates import Aggregates
from subquad.tasks.transactions.collecting import Columns, Reading
from subquad.tasks.transactions.features import FIELDS, Features, learn
from subquad.tasks.transactions.histories import Histories
from subquad.tasks.transactions.summary import summarise

HEADS = "client;time;city;paid;tags;note;valid;born;trans_id;label"


def table(path: Path, clients: int = 60, events: int = 4, *, commas: bool = True) -> Path:
    """Clients with a semicolon between cells, decimal commas, a mark at the beginning, and line breaks in texts."""
    rows = []
    for client in range(clients):
        for at in range(events):
            number = client * events + at
            cells = [
                f"c{client}",
                f"{at % 28 + 1}.1.2024",
                ("Rome", "Oslo", "")[number % 3],
                f"{number},5" if commas else f"{number}.5",
            ]
            cells += [
                "|".join("abc"[: number % 4]),
                f'"bought nothing of use\nin shop {number}"',
                f"{number % 28 + 1}.3.2024",
            ]
            cells += [str(1950 + client % 40), str(10_000 + number), "xy"[client % 2]]
            rows.append(";".join(cells))
    path.write_bytes(b"\xef\xbb\xbf" + "\n".join([HEADS, *rows, ""]).encode())
    return path


def learned(histories: Histories) -> Features:
    return learn(histories, "quantile", histories)


def test_every_column_is_used_or_named(tmp_path: Path) -> None:
    found = load_histories(table(tmp_path / "t.csv"))
    assert {column.column.name: column.column.kind for column in found.columns} == {
        "city": "category",
        "paid": "number",
        "tags": "several",
        "note": "text",
        "valid": "time",
    }
    assert {column.column.name: column.column.kind for column in found.static} == {"born": "number"}
    assert [column.name for column in found.unused] == ["trans_id"]
    assert found.time_form == "day-first"
    assert found.columns[1].values[:2].tolist() == [0.5, 1.5]
    features = learned(found)
    layout = features.layout
    assert layout.widths == (1, 1, 3, 7, 1)
    assert layout.numbers == 2
    encoded = features.encode(found)
    assert encoded.shape == (240, layout.width)
    cities = encoded[:, len(FIELDS)]
    assert len(np.unique(cities)) == 3
    assert (cities > 0).all()
    again = Features.from_json(features.as_json())
    assert np.array_equal(again.encode(found), encoded)


def test_decisions_can_be_overridden(tmp_path: Path) -> None:
    how = Reading(kinds={"paid": "category", "note": "unused", "trans_id": "number"})
    found = load_histories(table(tmp_path / "t.csv"), how=how)
    assert {column.column.name: column.column.kind for column in found.columns} == {
        "city": "category",
        "paid": "category",
        "tags": "several",
        "valid": "time",
        "trans_id": "number",
    }
    assert [(column.name, column.why) for column in found.unused] == [("note", "as named")]
    assert not load_histories(tmp_path / "t.csv", how=Reading(further=False)).columns


def test_new_data_are_read_as_those_trained_on(tmp_path: Path) -> None:
    found = load_histories(table(tmp_path / "t.csv"))
    features = learned(found)
    how = Reading(
        decided={column.name: column.column for column in (*features.further_columns, *features.static_columns)},
        static=frozenset(["born"]),
        time_form=features.time_form,
    )
    new = load_histories(table(tmp_path / "new.csv", clients=3, events=1), labelled=False, how=how)
    assert [column.column.name for column in new.static] == ["born"]
    features.require_fields(new)
    assert features.encode(new).shape == (3, features.layout.width)
    with pytest.raises(SubquadError, match="'born', but the data have none: add the column, or give --data a folder with"):
        features.require_fields(new._replace(static=()))
    (tmp_path / "less.csv").write_text("client;time\na;1.1.2024\n")
    with pytest.raises(SubquadError, match="trained with the column 'city', but the data have none: add the column"):
        features.require_fields(load_histories(tmp_path / "less.csv", labelled=False, how=how))


def test_a_table_of_clients_beside_the_events(tmp_path: Path) -> None:
    (tmp_path / "events.csv").write_text("client,time,code\n" + "".join(f"c{c},{t},x\n" for c in range(4) for t in range(2)))
    rows = "c0,10,Rome,0\nc1,,Oslo,1\nc3,12,Rome,1\nghost,1,Rome,0\nc0,99,Oslo,0\n"
    (tmp_path / "clients.csv").write_text("client,age,town,label\n" + rows)
    found = load_histories(tmp_path, how=Reading(kinds={"age": "number"}))
    age, town = found.static
    assert age.values[[0, 3]].tolist() == [10, 12]
    assert np.isnan(age.values[[1, 2]]).all()
    assert [town.names[at] for at in town.values] == ["Rome", "Oslo", "", "Rome"]
    assert found.labels.tolist() == [0, 1, -1, 1]
    assert found.complaints == (
        "clients.csv: 1 client is in several rows, the first of which counts: 'c0'",
        "1 client is not trained on, without a label: 'c2'",
        "clients.csv: 1 client is with a label but without events: 'ghost'",
    )
    with pytest.raises(SubquadError, match=r"there is no file .*none.csv: check the path given by --client-table"):
        load_histories(tmp_path, how=Reading(clients=tmp_path / "none.csv"))


@pytest.mark.parametrize(("clients_of_each", "buckets"), [(2, 8), (1, 1)])
def test_rare_values_share_vectors(clients_of_each: int, buckets: int, tmp_path: Path) -> None:
    """A value that one client has, such as an account number, tells nothing about others, so that one vector will do."""
    count = 600
    rows = [
        f"c{c},{t},{f'rare{c // clients_of_each}' if t == 0 else f'shop{c % 5}'},{c % 2}"
        for c in range(count)
        for t in (0, 1)
    ]
    (tmp_path / "t.csv").write_text("\n".join(["client,time,shop,label", *rows]) + "\n")
    found = load_histories(tmp_path / "t.csv", how=Reading(kinds={"shop": "category"}))
    client = np.repeat(np.arange(count), 2)
    features = learn_column(found.columns[0], client, found.times, rare=5, buckets=8)
    assert isinstance(features, ColumnFeatures)
    assert features.values == tuple(f"shop{at}" for at in range(5))
    symbols = features.encode(found.columns[0], None)[:, 0]
    assert symbols.max() < features.symbols == 6 + buckets
    assert (symbols[::2] > 5).all()
    assert (symbols[1::2] <= 5).all()


def test_columns_that_say_nothing_are_named(tmp_path: Path) -> None:
    rows = [f"c{c},{t},same,,{c % 2}" for c in range(10) for t in range(2)]
    (tmp_path / "t.csv").write_text("\n".join(["client,time,one,none,label", *rows]) + "\n")
    features = learned(load_histories(tmp_path / "t.csv"))
    assert dict(features.unused) == {"one": "the same value everywhere", "none": "no values"}


def test_ambiguous_dates_are_said(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(
        "client,time,label\n" + "".join(f"c{at},{at + 1}/{at + 2}/2024,{at % 2}\n" for at in range(9))
    )
    assert "are read with the day first" in load_histories(tmp_path / "t.csv").complaints[0]
    american = load_histories(tmp_path / "t.csv", how=Reading(time_form="month-first"))
    assert american.time_form == "month-first"
    assert american.times[1] - american.times[0] == 32 * 86400.0


def test_amounts_with_decimal_commas(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(
        "client;time;amount;label\n" + "".join(f"c{at};{at};1.234,{at}5;{at % 2}\n" for at in range(5))
    )
    assert load_histories(tmp_path / "t.csv").amounts[:2].tolist() == [1234.05, 1234.15]


def test_columns_twice_are_refused(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("client,time,x,x,label\na,1,1,2,0\nb,1,1,2,1\n")
    with pytest.raises(SubquadError, match="has 2 columns 'x': rename all but one"):
        load_histories(tmp_path / "t.csv", Columns())


def test_lists_and_times_of_parquet_and_json_lines(tmp_path: Path) -> None:
    import datetime

    import pyarrow
    from pyarrow import parquet

    day = datetime.datetime(2024, 1, 31, tzinfo=datetime.UTC)
    tags = [["new york", "b"], ["b", "c"], None, ["c"]] * 5
    rows = {
        "client": [f"c{at // 2}" for at in range(20)],
        "time": [day + datetime.timedelta(days=at) for at in range(20)],
        "tags": tags,
        "due": [day + datetime.timedelta(days=2 * at) for at in range(20)],
        "label": [str(at // 2 % 2) for at in range(20)],
    }
    parquet.write_table(pyarrow.table(rows), tmp_path / "t.parquet")
    found = load_histories(tmp_path / "t.parquet")
    assert {column.column.name: column.column.kind for column in found.columns} == {"tags": "several", "due": "time"}
    assert found.columns[0].names == ["new york", "b", "c", ""]
    how = Reading(
        decided={column.column.name: column.column for column in found.columns}, time_form=found.time_form or "auto"
    )
    lines = [
        json.dumps({"client": f"c{at}", "time": f"2024-02-0{at + 1}", "tags": ["c", "new york"], "due": "2024-03-01"})
        for at in range(2)
    ]
    (tmp_path / "new.jsonl").write_text("\n".join(lines))
    new = load_histories(tmp_path / "new.jsonl", labelled=False, how=how)
    assert new.complaints == ()
    assert [new.columns[0].names[at] for at in new.columns[0].values[0]] == ["c", "new york"]
    assert new.times[1] - new.times[0] == 86400.0
    assert new.columns[1].values.tolist() == [new.times[0] + 29 * 86400.0] * 2


def test_truths_of_another_file_are_the_same(tmp_path: Path) -> None:
    column = Column("vip", "boolean")
    reader = ColumnReader(column)
    values = reader.read(["yes", "no", "", "yes"])
    reader.keep(values)
    features = learn_column(reader.finished(), np.arange(4), None, rare=1, buckets=4)
    assert isinstance(features, ColumnFeatures)
    other = ColumnReader(column)
    other.keep(other.read(["True", "0", "NO", "", "perhaps"]))
    yes, no, missing = features.encode(reader.finished(), None)[:3, 0]
    assert features.encode(other.finished(), None)[:, 0].tolist() == [yes, no, no, missing, 0]


def test_a_missing_amount_is_a_value(tmp_path: Path) -> None:
    rows = "".join(f'c{at // 4},{at},"{at},250",{at // 4 % 2}\n' if at % 4 else f"c{at // 4},{at},,\n" for at in range(40))
    (tmp_path / "t.csv").write_text("client,time,amount,label\n" + rows)
    found = load_histories(tmp_path / "t.csv")
    np.testing.assert_equal(found.amounts[:3], [np.nan, 1250.0, 2250.0])
    assert found.amount_form == "grouped"
    features = learn(found, "quantile", found)
    amounts = features.encode(found)[:, FIELDS.index("amount bin")]
    assert (amounts[::4] == 0).all()
    assert (np.delete(amounts, np.s_[::4]) > 0).all()
    assert np.isfinite(learn(found, "log", found).encode(found)).all()
    assert np.isfinite(Aggregates.learn(features, found, 10).table(found)).all()
    (amount,) = [entry for entry in summarise(found, features) if entry["name"] == "amount"]
    assert (amount["missing"], amount["note"]) == (0.25, "1250 to 39250")
    assert Features.from_json(json.loads(json.dumps(features.as_json()))).amount_form == "grouped"


def test_new_data_may_be_written_otherwise(tmp_path: Path) -> None:
    """Dates and numbers of new data are read as those trained on, or as they are written themselves if these do not fit."""
    days = [f"2024-{at % 12 + 1:02}-{at % 28 + 1:02}" for at in range(40)]
    rows = [f"c{at // 2},{day},{1000.5 + at},{2000.5 + 7 * at},{at // 2 % 2}" for at, day in enumerate(days)]
    (tmp_path / "t.csv").write_text("client,time,amount,sum,label\n" + "\n".join(rows) + "\n")
    found = load_histories(tmp_path / "t.csv")
    decided = {column.column.name: column.column for column in found.columns}
    how = Reading(decided=decided, static=frozenset(), time_form=found.time_form, amount_form=found.amount_form)
    assert (how.time_form, how.amount_form, decided["sum"].form) == ("iso", "point", "point")
    dotted = [".".join(reversed(day.split("-"))) for day in days]
    german = [f'c{at // 2},{day},"1.{at:03},5","2.{at:03},25"' for at, day in enumerate(dotted)]
    (tmp_path / "new.csv").write_text("client,time,amount,sum\n" + "\n".join(german) + "\n")
    new = load_histories(tmp_path / "new.csv", labelled=False, how=how)
    assert new.times.tolist() == found.times.tolist()
    assert new.complaints == ()
    assert new.amounts[:2].tolist() == [1000.5, 1001.5]
    assert new.columns[0].values[:2].tolist() == [2000.25, 2001.25]
    (tmp_path / "open.csv").write_text('client,time,amount,sum\na,3.4.2024,1,2\na,5.4.2024,"1,5",2\n')
    said = load_histories(tmp_path / "open.csv", labelled=False, how=how).complaints
    assert any("read with the day first; if that is wrong, write them as 2024-01-31" in sentence for sentence in said)
    numbered = replace(how, time_form="seconds")  # these may count from any time, so that dates do not fit them
    with pytest.raises(SubquadError, match="with a time that cannot be read"):
        load_histories(tmp_path / "new.csv", labelled=False, how=numbered)
