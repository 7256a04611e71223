"""Files that are not what they say, or that are made to do harm, given to everything that reads a user's files.

Each ends in a result or in one sentence that names the file, in bounded time and memory.
"""

import gzip
import json
import os
import random
import signal
import socket
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from subquad import files
from subquad.cli.lines import LeftOut, open_lines
from subquad.conversion.pretrained import read_pairs
from subquad.data.datasets import load_dataset
from subquad.data.texts import has_labels, load_texts
from subquad.errors import SubquadError
from subquad.tasks.events import load_sequences, load_splits
from subquad.tasks.events.scales import learn as learn_scales
from subquad.tasks.series.loading import load_series
from subquad.tasks.tokens.loading import load_symbols
from subquad.tasks.transactions import load_histories
from subquad.tasks.transactions.features import learn as learn_features
from tests.test_files import another_user

PATIENCE = 120
"""Seconds after which a case is taken to hang. All take far less on any machine."""
LONGEST = 400
"""Characters of a message."""
MOST_MEMORY = 500_000_000
"""Bytes that Python may hold while it reads ten megabytes."""

Load = Callable[[Path], object]


def events(path: Path) -> object:
    splits = load_splits(str(path))
    return learn_scales(splits.train)


def sequences(path: Path) -> object:
    return load_sequences(path, ["a", "b"])


def histories(path: Path) -> object:
    found = load_histories(path)
    return learn_features(found, "quantile", found)


def new_histories(path: Path) -> object:
    return load_histories(path, labelled=False)


def texts(path: Path) -> object:
    return load_texts(path)


def labelled_texts(path: Path) -> object:
    has_labels(path)
    return load_dataset(path, labelled=True)


def dataset(path: Path) -> object:
    return load_dataset(path)


def lines(path: Path) -> object:
    with open_lines(path) as found:
        return list(LeftOut("skip").usable(found))


def symbols(path: Path) -> object:
    return load_symbols(path)


def series(path: Path) -> object:
    return load_series(path)


LOADERS: dict[str, tuple[Load, ...]] = {
    ".json": (events, sequences),
    ".jsonl": (events, texts, dataset, labelled_texts),
    ".csv": (events, sequences, histories, new_histories, dataset, labelled_texts, symbols, series),
    ".txt": (histories, texts, read_pairs, lines, symbols),
    ".npy": (symbols, series),
    ".ts": (series,),
    ".parquet": (events, histories, dataset, labelled_texts, symbols),
    ".jsonl.gz": (texts, labelled_texts),
}


@contextmanager
def watched() -> Iterator[None]:
    """Fails what does not end, and what holds too much."""

    def give_up(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"not done after {PATIENCE} s")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(PATIENCE)
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < MOST_MEMORY
    finally:
        tracemalloc.stop()
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def judge(load: Load, path: Path) -> str:
    """What is said of a file, "" where it is read."""
    with watched():
        try:
            load(path)
        except SubquadError as error:
            said = str(error)
            assert len(said) < LONGEST + len(str(path)), said
            assert said.isprintable(), said
            assert path.name in said, said
            return said
    return ""


def record(**other: object) -> bytes:
    plain: dict[str, Any] = {"time_since_start": [0.0, 1.0], "type_event": [0, 1]}
    return json.dumps([{**plain, **other}] * 5).encode()


def table(*rows: str, head: str = "client,sequence,time,type,amount,label") -> bytes:
    return "\n".join([head, *rows, ""]).encode()


GOOD = [f"c{c},c{c},{t},a,1.5,{c % 2}" for c in range(40) for t in range(3)]
CONTENTS: dict[str, bytes] = {
    "empty": b"",
    "blank lines": b"\n\r\n \n" * 100,
    "zero bytes": bytes(10_000),
    "random bytes": random.Random(0).randbytes(50_000),
    "a mark alone": b"\xef\xbb\xbf",
    "two marks": b"\xef\xbb\xbf" * 2 + table(*GOOD),
    "UTF-16": table(*GOOD).decode().encode("utf-16"),
    "Latin-1": table("é,é,1,a,1,1").decode().encode("latin-1"),
    "a picture": b"\x89PNG\r\n\x1a\n" + random.Random(1).randbytes(1000),
    "control characters": table(*(row.replace("c", "\x1b[31m\x07") for row in GOOD), "x\x1b[2J,x,q,\x1b]0;t\x07,1,1"),
    "nested lists": b"[" * 200_000,
    "nested objects": b'{"a":' * 200_000,
    "nested and closed": b"[" * 50_000 + b"]" * 50_000,
    "nested in a record": b'[{"time_since_start": ' + b"[" * 50_000 + b"]" * 50_000 + b', "type_event": []}]',
    "nested in a line": b'{"text": "fine", "label": 1}\n' + b"[" * 200_000 + b"\n",
    "a number of many digits": b"[" + b"1" * 50_000 + b"]",
    "a line with many digits": b'{"time_since_start": [0], "type_event": [0]}\n[' + b"1" * 50_000 + b"]\n",
    "a number alone": b"3",
    "null": b"null",
    "NaN": b"NaN",
    "a text alone": b'"' + b"x" * 100_000 + b'"',
    "lists in a list": b"[[1], [2]]",
    "long texts in a list": json.dumps(["x" * 10**6] * 3).encode(),
    "half an object": b'[{"time_since_start": [0.0, 1.',
    "two values": b"{} {}",
    "half a character": b'{"text": "\\ud800", "label": "\\udfff"}\n{"time_since_start": [1], "type_event": ["\\ud800"]}\n',
    "a text of two megabytes": b'{"text": "' + b"x " * 1_000_000 + b'", "label": "' + b"y" * 100_000 + b'"}\n',
    "a name of ten megabytes": json.dumps([{"seq_idx": "n" * 10**7, "time_since_start": [], "type_event": [3]}]).encode(),
    "times that are lists": record(time_since_start=[[0], {}]),
    "times that are texts": record(time_since_start=["0", "one"]),
    "times that are truths": record(time_since_start=[False, True]),
    "infinite times": record(time_since_start=[0.0, 1e400]),
    "huge times": record(time_since_start=[0.0, 1.7e308]),
    "tiny times": record(time_since_start=[0.0, 5e-324]),
    "whole numbers beyond floats": record(time_since_start=[0, 10**400]),
    "gaps beyond floats": record(time_since_start=None, time_since_last_event=[1e308, 1e308]),
    "types that are lists": record(type_event=[["x" * 10**6], {}]),
    "a type of ten megabytes": record(type_event=["x" * 2 * 10**6, "y"]),
    "types beyond counting": record(type_event=[0, 10**15]),
    "more types than can be": record(dim_process=10**12),
    "a length that is a text": record(seq_len="x" * 10**6),
    "names that are lists": record(seq_idx=[["x" * 1000] * 1000]),
    "numbers of types that are none": record(dim_process=[1, 2]),
    "a heading alone": table(),
    "a heading of ten megabytes": b"x" * 10_000_000 + b"\n" + b"\n".join(row.encode() for row in GOOD),
    "a million columns": b"," * 1_000_000 + b"\n",
    "columns twice": table(*(f"{row},7" for row in GOOD), head="client,sequence,time,type,amount,label,time"),
    "columns without names": table(*GOOD, head=",,,,,"),
    "long names of columns": table(*GOOD, head=",".join(f"{'n' * 100_000}{at}" for at in range(6))),
    "a cell of ten megabytes": table(*GOOD, "c0,c0," + "9" * 10_000_000 + ",a,1,1"),
    "a client of a hundred kilobytes": table(*GOOD, "x" * 100_000 + ",q,oops,zz,1,2", "y" * 100_000 + ",q,1,zz,1,2"),
    "a quotation that never ends": table(*GOOD[:5], '"c0,c0,1,a,1,1', *GOOD),
    "a long quotation that never ends": table('"c0,c0,1,a,1,1', *GOOD * 100),
    "a quotation that ends too soon": table(*GOOD, '"c0"x,c0,1,a,1,1'),
    "ragged rows": table(*(row + "," * at for at, row in enumerate(GOOD)), "a", "b,c"),
    "carriage returns alone": table(*GOOD).replace(b"\n", b"\r"),
    "every kind of time": table(*(f"c{at},c{at},{time},a,1,{at % 2}" for at, time in enumerate(
        ["1", "1e400", "-1e308", "nan", "0x10", "١٢", "2024-02-30", "0001-01-01T00:00+14:00", "1 25:61:61", " 5 ", "1_000"]
    ))),
    "amounts beyond floats": table(*(row.replace("1.5", "-1.7e308" if row[1] == "1" else "1.7e308") for row in GOOD)),
    "clients that are formulas": table(*(row.replace("c", "=1+") for row in GOOD)),
    "tabs without scores": b"a\tb\tc\td\tnot a number\tx\ty\n" * 1000,
    "scores beyond floats": b"a\tb\tc\td\t1e999\tx\ty\n" * 10,
    "half a gzip file": gzip.compress(b'{"text": "fine"}\n' * 1000)[:-20],
    "a gzip file with another behind": gzip.compress(b'{"text": "a"}\n') + b"junk",
    "half a Parquet file": b"PAR1" + random.Random(2).randbytes(500) + b"PAR1",
}  # fmt: skip


@pytest.mark.parametrize("suffix", LOADERS)
@pytest.mark.parametrize("content", CONTENTS)
def test_every_content_under_every_name(content: str, suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"hostile{suffix}"
    written = CONTENTS[content]
    is_packed = suffix.endswith(".gz") and "gzip" not in content
    path.write_bytes(gzip.compress(written, 1) if is_packed else written)
    for load in LOADERS[suffix]:
        judge(load, path)


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(name, marks=[pytest.mark.slow] if content.count(b" ") > 100_000 else [])
        for name, content in CONTENTS.items()
    ],
)
def test_every_content_as_texts_with_a_sequence_a_line(content: str, tmp_path: Path) -> None:
    for name in ("time-1-train.txt", "event-1-train.txt", "time-1-test.txt", "event-1-test.txt"):
        (tmp_path / name).write_bytes(CONTENTS[content])
    with watched(), suppress(SubquadError):
        load_splits(str(tmp_path))


def test_what_is_refused_is_refused_for_the_right_reason(tmp_path: Path) -> None:
    """A sample, for the sentences."""
    for content, suffix, load, said in (
        ("nested lists", ".json", events, "hostile.json cannot be read: it is nested too deep"),
        ("a number of many digits", ".json", events, "hostile.json cannot be read: a number has too many digits"),
        ("columns twice", ".csv", events, "hostile.csv has 2 columns 'time': rename all but one"),
        (
            "a quotation that never ends",
            ".csv",
            events,
            "cannot be read near line 127: a quotation mark never ends; mend it",
        ),
        ("a long quotation that never ends", ".csv", events, "a text in it has more than 131,072 characters, maybe because"),
        ("a heading of ten megabytes", ".csv", events, "line 1 of .*hostile.csv is longer than 1,048,576 characters"),
        ("huge times", ".json", events, r"hostile.json: an event has a time beyond 1e\+30: sequence '1', record 1, event 2"),
        ("a name of ten megabytes", ".json", events, "hostile.json: record 1 has 0 times, 1 types and a seq_len of 1"),
        ("UTF-16", ".csv", histories, "hostile.csv is not text in UTF-8: save it as such"),
        ("half a Parquet file", ".parquet", events, "hostile.parquet cannot be read as Parquet: "),
        ("amounts beyond floats", ".csv", histories, r"no row that can be used: .*beyond 1e\+30: the first at line 2"),
    ):
        path = tmp_path / f"hostile{suffix}"
        path.write_bytes(CONTENTS[content])
        with pytest.raises(SubquadError, match=said):
            load(path)


def parquet_columns() -> dict[str, Any]:
    """Columns of every kind but those that are meant."""
    pyarrow = pytest.importorskip("pyarrow")
    return {
        "lists": pyarrow.array([[1, 2], None, []], pyarrow.list_(pyarrow.int64())),
        "structures": pyarrow.array([{"a": 1}, None, {"a": 2}]),
        "bytes": pyarrow.array([b"\xff\xfe", b"ok", None]),
        "nothing": pyarrow.nulls(3),
        "truths": pyarrow.array([True, False, None]),
        "durations": pyarrow.array([1, 2, None], pyarrow.duration("s")),
        "times of day": pyarrow.array([1, 2, None], pyarrow.time64("us")),
        "far dates": pyarrow.array([2**62, -(2**62), None], pyarrow.timestamp("ns")),
        "farther dates": pyarrow.array([2**50, -(2**50), None], pyarrow.timestamp("s")),
        "dictionary": pyarrow.array(["a", "b", None]).dictionary_encode(),
        "decimals": pyarrow.array([1, 2, None]).cast(pyarrow.decimal128(30, 2)),
        "large texts": pyarrow.array(["x" * 10**6, "y", None], pyarrow.large_string()),
        "not numbers": pyarrow.array([float("nan"), float("inf"), None]),
    }


@pytest.mark.parametrize("role", ["sequence", "time", "type", "client", "label"])
def test_parquet_of_other_types(role: str, tmp_path: Path) -> None:
    pyarrow, parquet = (pytest.importorskip(name) for name in ("pyarrow", "pyarrow.parquet"))
    plain = {"sequence": ["a", "a", "b"], "client": ["a", "a", "b"], "time": [1.0, 2.0, 3.0], "type": ["x"] * 3}
    for kind, column in parquet_columns().items():
        path = tmp_path / f"{kind}.parquet"
        parquet.write_table(pyarrow.table({**plain, "label": [0, 0, 1], role: column}), path)
        for load in (events, sequences, histories, new_histories):
            judge(load, path)


def test_parquet_of_odd_shapes(tmp_path: Path) -> None:
    pyarrow, parquet = (pytest.importorskip(name) for name in ("pyarrow", "pyarrow.parquet"))
    tables = {
        "no rows": pyarrow.table({"sequence": pyarrow.array([], "string"), "time": pyarrow.array([], "float64")}),
        "no columns": pyarrow.table({}),
        "columns twice": pyarrow.Table.from_arrays([pyarrow.array([1])] * 4, names=["sequence", "time", "type", "time"]),
        "dots": pyarrow.table({"sequence.a": [1], "time": [2], "type": [3]}),
        "inner": pyarrow.table({"a": [{"sequence": 1, "time": 2, "type": 3}]}),
    }
    for kind, content in tables.items():
        path = tmp_path / f"{kind}.parquet"
        parquet.write_table(content, path)
        for load in (events, sequences, histories):
            assert judge(load, path)
    many = pyarrow.table({"sequence": pyarrow.nulls(1, "string"), "time": [1.0], "type": ["x"]})
    path = tmp_path / "cut.parquet"
    parquet.write_table(many, path)
    path.write_bytes(path.read_bytes()[:-30] + path.read_bytes()[-8:])
    assert judge(events, path)


EVERY: tuple[tuple[str, Load], ...] = tuple(
    (suffix, load) for suffix, own in LOADERS.items() for load in dict.fromkeys([*own, read_pairs, lines])
)


@pytest.mark.parametrize(
    "kind", ["nothing", "folder", "loop", "dangling", "pipe", "socket", "long", "below", "sparse", "bomb"]
)
def test_what_is_no_plain_file(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """None of them is waited for, followed for ever, or read whole."""
    monkeypatch.setattr(files, "LARGEST", 20_000_000)
    for suffix, load in EVERY:
        path = tmp_path / (f"{'n' * 300}{suffix}" if kind == "long" else f"hostile{suffix}")
        if kind == "folder":
            path.mkdir(exist_ok=True)
        elif kind == "loop" and not path.is_symlink():
            path.symlink_to(path.name)
        elif kind == "dangling" and not path.is_symlink():
            path.symlink_to("elsewhere")
        elif kind == "pipe" and not path.exists():
            os.mkfifo(path)
        elif kind == "socket" and not path.exists():
            with socket.socket(socket.AF_UNIX) as listening:
                listening.bind(str(path))
        elif kind == "below":
            path.write_bytes(b"x")
            path = path / f"hostile{suffix}"
        elif kind == "sparse":
            with path.open("wb") as file:
                file.truncate(2**40)
        elif kind == "bomb":
            path.write_bytes(gzip.compress(bytes(100_000_000), 1) if suffix.endswith(".gz") else b"\x1f\x8b\x08")
        if kind == "sparse" and load is lines:
            continue  # which ends after 2**40 bytes: a stream has no end that is known before
        said = judge(load, path)
        assert said or (load is lines and kind == "bomb")


@pytest.mark.parametrize("load", [events, histories, texts, read_pairs, lines])
def test_what_may_not_be_read(load: Load) -> None:
    with another_user() as folder:
        path = folder / "hostile.csv"
        path.write_bytes(table(*GOOD))
        path.chmod(0)
        assert "Permission denied; change its permissions" in judge(load, path)
        path.chmod(0o600)
        (folder / "inner").mkdir()
        inner = folder / "inner" / "hostile.csv"
        inner.write_bytes(table(*GOOD))
        (folder / "inner").chmod(0)
        assert "Permission denied; change its permissions" in judge(load, inner)
        (folder / "inner").chmod(0o700)
