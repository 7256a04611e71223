"""Histories from files: what is read, and what is said of the rest."""

import os
import sys
from pathlib import Path

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from subquad import SubquadError
from subquad.data import tables
from subquad.tasks.transactions import Columns, Histories, load_histories
from tests.data.operations import operations


def table(tmp_path: Path, text: str, name: str = "t.csv") -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


def of(histories: Histories, client: str) -> list[tuple[str, str, float, float]]:
    at = histories.clients.index(client)
    events = range(histories.offsets[at], histories.offsets[at + 1])
    return [
        (
            histories.code_names[histories.codes[event]],
            histories.type_names[histories.types[event]],
            float(histories.amounts[event]),
            float(histories.times[event]),
        )
        for event in events
    ]


def sberbank(tmp_path: Path, genders: str | None = "customer_id,gender\n7,1\n8,0\n9,1\n") -> Path:
    table(
        tmp_path,
        "customer_id,tr_datetime,mcc_code,tr_type,amount,term_id\n"
        "7,1 00:00:60,4814,1030,-2245.92,\n"
        "8,0 10:23:26,6011,7010,100.5,x\n"
        "7,0 10:23:26,6011,7010,56147.89,\n",
        "transactions.csv",
    )
    if genders is not None:
        table(tmp_path, genders, "gender_train.csv")
    return tmp_path


def test_sberbanks_folder(tmp_path: Path) -> None:
    found = load_histories(sberbank(tmp_path))
    assert found.clients == ["7", "8"]
    assert of(found, "7") == [("6011", "7010", 56147.89, 37406.0), ("4814", "1030", -2245.92, 86460.0)]
    assert of(found, "8") == [("6011", "7010", 100.5, 37406.0)]
    assert found.labels.tolist() == [1, 0]
    assert found.label_names == ("0", "1")
    assert found.complaints == ("gender_train.csv: 1 client is with a label but without events: '9'",)


def test_sberbanks_labels_are_needed_to_train_only(tmp_path: Path) -> None:
    folder = sberbank(tmp_path, None)
    with pytest.raises(SubquadError, match=r"gender_train.csv is missing: to train, the clients' labels are needed"):
        load_histories(folder)
    assert load_histories(folder, labelled=False).labels.tolist() == [-1, -1]
    table(tmp_path, "customer,gender\n7,1\n", "gender_train.csv")
    with pytest.raises(SubquadError, match=r"gender_train.csv has no column 'customer_id' but 'customer', 'gender'"):
        load_histories(folder)


def berka(tmp_path: Path) -> Path:
    table(
        tmp_path,
        '"disp_id";"client_id";"account_id";"type"\n1;10;1;"OWNER"\n2;11;1;"DISPONENT"\n3;12;2;"OWNER"\n',
        "disp.asc",
    )
    people = '"client_id";"birth_number";"district_id"\n10;"706213";18\n11;"450204";1\n12;"400101";1\n'
    table(tmp_path, people, "client.asc")
    text = (
        '"trans_id";"account_id";"date";"type";"operation";"amount";"balance";"k_symbol";"bank";"account"\n'
        '1;1;930102;"PRIJEM";"VKLAD";700.00;700.00;" ";;\n'
        '2;2;930101;"PRIJEM";"";900.00;900.00;"UROK";;\n'
        '3;5;930101;"PRIJEM";"";900.00;900.00;"UROK";;\n'
        '4;1;931301;"PRIJEM";"VKLAD";700.00;700.00;"";;\n'
        '5;1;930101;"PRIJ'
    )
    (tmp_path / "trans.asc").write_text(text, encoding="latin-1")
    return tmp_path


@pytest.mark.parametrize(
    ("label", "names", "classes"),
    [("", ("born in 1950 or later", "born before 1950"), [0, 1]), ("gender", ("man", "woman"), [1, 0])],
)
def test_berkas_folder(label: str, names: tuple[str, str], classes: list[int], tmp_path: Path) -> None:
    """Accounts become their owners; a date that is none, an account that is nobody's and the cut row are counted."""
    found = load_histories(berka(tmp_path), Columns(label=label))
    assert found.clients == ["10", "12"]
    day = 23 * 365 + 6  # from 1970 to 1993
    assert of(found, "10") == [("", "PRIJEM VKLAD", 700.0, (day + 1) * 86400.0)]
    assert of(found, "12") == [("UROK", "PRIJEM", 900.0, day * 86400.0)]
    assert found.label_names == names
    assert found.labels.tolist() == classes
    assert found.complaints == (
        "trans.asc: 1 row is left out, of an account without an owner: at line 4",
        "trans.asc: 1 row is left out, with a time that cannot be read: at line 5",
        "trans.asc: 1 row is left out, cut in the middle by the end of the file: at line 6",
        "client.asc: 1 client is with a label but without events: '11'",
    )


def test_berka_has_two_labels(tmp_path: Path) -> None:
    with pytest.raises(SubquadError, match="no label 'height': choose --label age or --label gender"):
        load_histories(berka(tmp_path), Columns(label="height"))
    (tmp_path / "disp.asc").unlink()
    with pytest.raises(SubquadError, match=r"cannot read .*disp.asc: No such file or directory"):
        load_histories(tmp_path)


def test_the_real_berka() -> None:
    folder = Path(os.environ.get("SUBQUAD_DATA", "")) / "transactions" / "berka"
    if not folder.exists():
        pytest.skip("Berka's files are looked for in transactions/berka of the folder that SUBQUAD_DATA names")
    found = load_histories(folder)
    assert len(found.times) == 49_102
    assert len(found.clients) == 1_229
    assert "trans.asc: 1 row is left out, cut in the middle by the end of the file: at line 49104" in found.complaints
    assert (np.diff(found.times)[np.diff(np.repeat(np.arange(1229), found.lengths)) == 0] >= 0).all()
    assert 0.3 < found.labels.mean() < 0.5
    assert np.bincount(load_histories(folder, Columns(label="gender")).labels).min() > 500


@pytest.mark.parametrize(
    ("times", "seconds"),
    [
        (["30", "1e1"], [10.0, 30.0]),
        (["1970-01-02", "1970-01-01T00:00:01"], [1.0, 86400.0]),
        (["1970-01-02 00:00:05", "1970-01-01T01:00:00+01:00"], [0.0, 86405.0]),
        (["3 00:00:01", "2 23:59:60"], [2 * 86400 + 86400.0, 3 * 86400 + 1.0]),
    ],
)
def test_times(times: list[str], seconds: list[float], tmp_path: Path) -> None:
    rows = "".join(f"a,{time}\n" for time in times)
    assert load_histories(table(tmp_path, "client,time\n" + rows), labelled=False).times.tolist() == seconds


def test_events_at_the_same_time_keep_their_order(tmp_path: Path) -> None:
    text = "client;time;code\n" + "".join(f"{at % 3};{at // 40};{at}\n" for at in range(120))
    found = load_histories(table(tmp_path, text), labelled=False)
    assert [int(code) for code, *_ in of(found, "1")] == list(range(1, 120, 3))
    assert found.fields == ("code",)
    assert (found.amounts == 0).all()


def test_columns_by_their_names(tmp_path: Path) -> None:
    path = table(tmp_path, "who\twhen\twhat\thow\tmuch\tgood\na\t1\tx\ty\t2\tyes\nb\t1\tx\ty\t3\tno\n", "t.tsv")
    found = load_histories(path, Columns("who", "when", "what", "how", "much", "good"))
    assert of(found, "a") == [("x", "y", 2.0, 1.0)]
    assert found.label_names == ("no", "yes")
    assert found.labels.tolist() == [1, 0]
    with pytest.raises(
        SubquadError, match=r"has no column 'client' but 'who', 'when'.*: name the one with the client by --client"
    ):
        load_histories(path)
    with pytest.raises(SubquadError, match=r"has no column 'code2' but .*: name the one with the code by --code-column"):
        load_histories(path, Columns("who", "when", "code2"), labelled=False)
    with pytest.raises(SubquadError, match=r"has no column 'label' but .*: name the one with the label by --label"):
        load_histories(path, Columns("who", "when"))


BAD = (
    "client,time,amount,label\n"  # line 1
    "a,1,2.5,0\n"
    'b,2,"3\n4",1\n'  # over two lines; not a number
    "\n"
    "b,noon,1,1\n"  # line 6
    "a,2,nan,0\n"
    "b,2,inf,1\n"
    ",2,1,0\n"
    "a,2\n"
    "a,2,1,0,9\n"
    "b,3,1,1\n"
    "c,3,1,\n"
    "d,3,1,0\nd,3,1,1\n"
    "a,3,1"
)


@pytest.mark.parametrize("chunk", [2, 50_000])
def test_bad_rows_are_counted_with_the_first_ones_line(chunk: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "CHUNK", chunk)
    found = load_histories(table(tmp_path, BAD))
    assert found.clients == ["a", "b", "c", "d"]
    assert found.lengths.tolist() == [2, 1, 1, 2]
    np.testing.assert_equal(found.amounts[:2], [2.5, np.nan])  # a missing amount is no reason to leave an event out
    assert found.labels.tolist() == [0, 1, -1, -1]
    assert sorted(found.complaints) == [
        "2 clients are not trained on, without a label: the first is 'c'",
        "t.csv: 1 client is not trained on, with two labels: 'd'",
        "t.csv: 1 row is left out, cut in the middle by the end of the file: at line 16",
        "t.csv: 1 row is left out, with a time that cannot be read: at line 6",
        "t.csv: 1 row is left out, with too few columns: at line 10",
        "t.csv: 1 row is left out, with too many columns: at line 11",
        "t.csv: 1 row is left out, without a client: at line 9",
        "t.csv: 2 rows are left out, with an amount that is not a finite number: the first at line 3",
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "t.csv is empty: it should begin with a line of column names"),
        ("client,time,label\n", "has no row that can be used: there are none"),
        ("client,time,label\na,x,0\n", "no row that can be used: t.csv: 1 row is left out, with a time .* at line 2"),
        ("client,time,label\na,1,0\nb,1,0\n", r"must have two to 200 values, but has 1 values? \('0'\)"),
        ("client,time,label\na,1,\n", "must have two to 200 values, but has no value at all"),
    ],
)
def test_what_is_no_data_is_refused(text: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(SubquadError, match=said):
        load_histories(table(tmp_path, text))


def test_what_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SubquadError, match=r"there is no file or folder .*none.csv: check the path given by --data"):
        load_histories(tmp_path / "none.csv")
    with pytest.raises(SubquadError, match=r"has neither transactions.csv .* nor trans.asc"):
        load_histories(tmp_path)
    with pytest.raises(SubquadError, match=r"is of no known kind: give a folder, or a file that ends in .csv"):
        load_histories(table(tmp_path, "x", "t.xlsx"))
    (tmp_path / "latin.csv").write_bytes(b"client,time\n\xe9,1\n")
    with pytest.raises(SubquadError, match=r"latin.csv is not text in UTF-8: save it as such"):
        load_histories(tmp_path / "latin.csv", labelled=False)


def test_parquet(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    rows = {
        "client": [1, 1, None, 2],
        "time": pyarrow.array([1_500_000, 500_000, 0, None], pyarrow.timestamp("us")),
        "amount": [1.5, -2.0, 1.0, 1.0],
        "label": ["x", "x", "y", "y"],
    }
    path = tmp_path / "t.parquet"
    parquet.write_table(pyarrow.table(rows), path)
    found = load_histories(path, labelled=False)
    assert of(found, "1") == [("", "", -2.0, 0.5), ("", "", 1.5, 1.5)]
    assert found.complaints == (
        "t.parquet: 1 row is left out, without a client: at row 3",
        "t.parquet: 1 row is left out, with a time that cannot be read: at row 4",
    )
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(SubquadError, match=r"t.parquet cannot be read as Parquet"):
        load_histories(path)


def test_parquet_without_its_reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)  # as if it were not installed
    with pytest.raises(SubquadError, match=r"is a Parquet file: to read it, pip install 'subquad\[data\]'"):
        load_histories(table(tmp_path, "", "t.parquet"))


def test_reading_takes_work_in_proportion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten times the clients are at most about ten times the work."""
    found = []
    for clients in (100, 1000):
        rows = "".join(f"c{n},{time},{n % 7},{time},{n % 2}\n" for n in range(clients) for time in range(3))
        (tmp_path / f"{clients}.csv").write_text("client,time,code,amount,label\n" + rows)
        path = tmp_path / f"{clients}.csv"
        found.append(operations(lambda path=path: load_histories(path), monkeypatch))  # type: ignore[misc]
    assert found[0] > 300
    assert found[1] < 12 * found[0]


def test_the_label_is_no_field_of_events(tmp_path: Path) -> None:
    rows = "".join(f"c{client},{time},{'ab'[client % 2]}\n" for client in range(20) for time in range(3))
    (tmp_path / "t.csv").write_text("client,time,type\n" + rows)
    with pytest.raises(SubquadError, match="'type' is the label, and by its name the type of each event"):
        load_histories(tmp_path / "t.csv", Columns(label="type"))


def test_whole_numbers_that_are_dates(tmp_path: Path) -> None:
    rows = {"client": [f"c{at // 2}" for at in range(20)], "time": list(range(20))}
    rows |= {"due": [20240101 + at for at in range(20)], "label": [str(at // 2 % 2) for at in range(20)]}
    parquet.write_table(pyarrow.table(rows), tmp_path / "t.parquet")
    (column,) = load_histories(tmp_path / "t.parquet").columns
    assert (column.column.kind, column.column.form) == ("time", "compact")
    assert np.diff(column.values.ravel()[:2]).tolist() == [86400.0]
    assert column.values.ravel()[0] > 1.7e9
