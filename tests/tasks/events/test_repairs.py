"""Events that cannot be used as they are: what is mended, left out or refused."""

from pathlib import Path

import pytest

from subquad import SubquadError
from subquad.data import tables
from subquad.tasks.events import Repairs, load_sequences
from tests.tasks.events.files import of, write

BAD = (
    "sequence,time,type\n"  # line 1
    "a,1,x\n"
    "b,1,x\n"
    "a,,x\n"
    "a,inf,x\n"  # line 5
    "a,-2,y\n"
    "a,2,\n"
    "a,2,z\n"
    ",2,x\n"
    "a,2,x\n"  # line 10
    "c,noon,x\n"
    "a,3"
)


@pytest.mark.parametrize("chunk", [2, 50_000])
def test_bad_rows_are_left_out_if_asked(chunk: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "CHUNK", chunk)
    found = load_sequences(write(tmp_path, BAD), ["x", "y"], repairs=Repairs(broken="drop"))
    assert found.names == ["a", "b"]
    assert of(found, "a") == [(1.0, "x"), (2.0, "x")]
    assert of(found, "b") == [(1.0, "x")]
    assert sorted(found.complaints) == [
        "t.csv: 1 event is left out, with a negative time: in sequence 'a', line 6",
        "t.csv: 1 event is left out, with no type: in sequence 'a', line 7",
        "t.csv: 1 event is left out, with the type 'z', which is none of the 2 known ('x', 'y'): in sequence 'a', line 8",
        "t.csv: 1 row is left out, cut in the middle by the end of the file: at line 12",
        "t.csv: 1 row is left out, without a sequence: at line 9",
        "t.csv: 1 sequence is left out, without events: 'c'",
        "t.csv: 3 events are left out, with a time that is missing or neither a number nor a date: "
        "the first in sequence 'a', line 4",
    ]


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (
            "a,,x",
            "an event has a time that is missing or neither a number nor a date: sequence 'a', line 3; mend it, or leave",
        ),
        ("a,nan,x", "a time that is missing or neither a number nor a date: sequence 'a', line 3"),
        ("a,-1,x", "t.csv: an event has a negative time: sequence 'a', line 3; .* by --broken drop"),
        ("a,2,", "t.csv: an event has no type: sequence 'a', line 3"),
        ("a,2,q", r"has the type 'q', which is none of the 1 known \('x'\): sequence 'a', line 3"),
        ("a,0.5,x", "t.csv: time goes backwards, from 1 to 0.5: sequence 'a', line 3; .* by --backwards sort"),
    ],
)
def test_the_default_is_to_refuse(row: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(SubquadError, match=said):
        load_sequences(write(tmp_path, f"sequence,time,type\na,1,x\n{row}\na,3,x\n"), ["x"])


TIED = "sequence,time,type\nb,2,y\na,1,x\na,3,x\na,3,y\nb,2,x\na,3,x\na,3.5,x\n"


def test_ties(tmp_path: Path) -> None:
    path = write(tmp_path, TIED)
    kept = load_sequences(path, ["x", "y"])
    assert of(kept, "a") == [(1.0, "x"), (3.0, "x"), (3.0, "y"), (3.0, "x"), (3.5, "x")]
    assert kept.complaints == (
        "t.csv: 3 events are at the time of the one before and kept there (--ties spread or drop does otherwise): "
        "the first in sequence 'b', line 6",
    )
    spread = load_sequences(path, ["x", "y"], repairs=Repairs(ties="spread"))
    moved = [time for time, _ in of(spread, "a")]
    assert moved == pytest.approx([1.0, 3.0, 3.0 + 0.25 / 3, 3.0 + 0.5 / 3, 3.5])
    assert of(spread, "b") == [(2.0, "y"), (2.125, "x")]
    assert spread.ends.tolist() == [2.125, 3.5]
    assert "3 events are at the time of the one before and moved apart" in spread.complaints[0]
    dropped = load_sequences(path, ["x", "y"], repairs=Repairs(ties="drop"))
    assert of(dropped, "a") == [(1.0, "x"), (3.0, "x"), (3.5, "x")]
    assert of(dropped, "b") == [(2.0, "y")]
    assert "3 events are at the time of the one before and left out" in dropped.complaints[0]
    with pytest.raises(
        SubquadError, match=r"at the time of the one before, 2: sequence 'b', line 6; .* --ties keep, spread"
    ):
        load_sequences(path, ["x", "y"], repairs=Repairs(ties="refuse"))


def test_ties_can_be_too_far_out_to_be_spread(tmp_path: Path) -> None:
    rows = "".join(f"a,{time},x\n" for time in (0, 1e-9, 1e9, 1e9))
    path = write(tmp_path, "sequence,time,type\n" + rows)
    with pytest.raises(SubquadError, match=r"times as large as 1000000000 cannot be moved apart .*: sequence 'a', line 5"):
        load_sequences(path, ["x"], repairs=Repairs(ties="spread"))
    only = write(tmp_path, "sequence,time,type\na,1e9,x\na,1e9,x\n", "only.csv")
    assert load_sequences(only, ["x"], repairs=Repairs(ties="spread")).gaps.tolist() == [0.0, 0.25]


def test_backwards_can_be_sorted(tmp_path: Path) -> None:
    path = write(tmp_path, "sequence,time,type\na,3,x\nb,1,x\na,2,y\na,2,x\nb,0,y\n")
    found = load_sequences(path, ["x", "y"], repairs=Repairs(backwards="sort"))
    assert of(found, "a") == [(2.0, "y"), (2.0, "x"), (3.0, "x")]
    assert of(found, "b") == [(0.0, "y"), (1.0, "x")]
    assert found.complaints[0] == (
        "t.csv: 2 events are before the one before, which is mended by sorting: the first in sequence 'a', line 4"
    )
