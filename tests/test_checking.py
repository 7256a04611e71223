"""Values and the types of the fields that hold them."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from typing_extensions import TypedDict

from subquad.checking import (
    LARGEST,
    LARGEST_NUMBER,
    STRICT,
    BelowOne,
    Checked,
    Count,
    Exponent,
    FileName,
    FilePath,
    GivenFileName,
    InnerShare,
    NonNegative,
    Place,
    Positive,
    PositiveShare,
    Seed,
    Several,
    Share,
    Whole,
    Words,
    check,
    deferred,
    excerpt,
    read,
    read_as,
    read_kind,
)
from subquad.errors import OptionError, SubquadError


@dataclass(frozen=True)
class Inner(Checked):
    size: Count = 1
    kind: str = field(default="inner", init=False)


@dataclass(frozen=True)
class Options(Checked):
    count: Count = 1
    rate: Positive = 1.0
    shape: Literal["round", "square"] = "round"
    is_loud: bool = False
    limit: Count | None = None
    sizes: tuple[Count, ...] = ()
    folder: FilePath | None = None
    label: Words = ""
    inner: Inner = field(default_factory=Inner)

    def check(self) -> None:
        if self.limit is not None and self.count > self.limit:
            raise OptionError("count", f"must be at most the limit, {self.limit}, but is {self.count}")


BOUNDS: list[tuple[Any, list[Any], list[Any]]] = [
    (Count, [1, 2, LARGEST], [0, -1, LARGEST + 1, 1.0, "1", None, True, math.nan, [1]]),
    (Whole, [0, 1, LARGEST], [-1, LARGEST + 1, 0.5, "", False]),
    (Place, [-LARGEST, 0, LARGEST], [LARGEST + 1, -LARGEST - 1, 1.5]),
    (Seed, [0, 2**63 - 1], [-1, 2**63, 1.5, "0"]),
    (Positive, [5e-324, 1, 1.5, LARGEST_NUMBER], [0.0, -0.0, -1.0, 1e39, math.inf, -math.inf, math.nan, "1", None, True]),
    (NonNegative, [0, 0.0, LARGEST_NUMBER], [-5e-324, math.inf, math.nan, 1e39]),
    (Exponent, [-80, 0, 80.0], [80.1, -80.1, math.inf]),
    (Share, [0, 0.5, 1], [-0.1, 1.0000001, math.nan]),
    (InnerShare, [5e-324, 0.5], [0, 1, 1.0, math.nan]),
    (BelowOne, [0, 0.999], [1, -0.1, math.inf]),
    (PositiveShare, [0.1, 1], [0, 1.1]),
    (Several[Count], [[1], [1, 2]], [[], [0], 1, [1, None]]),
    (Words, ["", "a b", "ü☃", "x" * 4095], ["a\0b", "\ud800", "x" * 4096, 1, None, ["a"]]),
    (FileName, ["", "a/b", "/dev/null", "ü" * 127], ["a\0b", "x" * 256, "ü" * 128, "a/" * 3000, 1, None]),
    (GivenFileName, ["a"], ["", "a\0b", "x" * 256]),
    (FilePath, ["a/b"], ["a\0b", "x" * 256, 1, None]),
]


@pytest.mark.parametrize(("hint", "good", "bad"), BOUNDS, ids=lambda part: str(part)[:30])
def test_types_take_what_is_inside_their_bounds_and_nothing_else(hint: Any, good: list[Any], bad: list[Any]) -> None:
    for value in good:
        read_as(hint, value, "here")
    for value in bad:
        with pytest.raises(SubquadError, match=r"^here (\[\d\] )?must be "):
            read_as(hint, value, "here")


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"count": 0}, "count must be positive, but is 0"),
        ({"count": LARGEST + 1}, "count must be at most 281474976710656, but is 281474976710657"),
        ({"count": 1.5}, "count must be a whole number, but is 1.5"),
        ({"count": "many"}, "count must be a whole number, but is 'many'"),
        ({"rate": math.nan}, "rate must be a finite number, but is nan"),
        ({"rate": None}, "rate must be a number, but is None"),
        ({"shape": "oval"}, "shape must be round or square, but is 'oval'"),
        ({"is_loud": 1}, "is_loud must be true or false, but is 1"),
        ({"limit": 0}, "limit must be positive, but is 0"),
        ({"sizes": (1, 0)}, "sizes [1] must be positive, but is 0"),
        ({"sizes": 3}, "sizes must be a list, but is 3"),
        ({"folder": ""}, "folder must be the name of a file or folder, but is ''"),
        ({"folder": Path("a\0b")}, "folder must be a text without NUL characters, but is PosixPath('a\\x00b')"),
        ({"label": "\ud800"}, "label must be a text that UTF-8 can write, but is '\\ud800'"),
        ({"inner": 3}, "inner must be an instance of Inner, but is 3"),
        ({"count": 3, "limit": 2}, "count must be at most the limit, 2, but is 3"),
    ],
)
def test_options_are_checked_when_they_are_made(values: dict[str, Any], said: str) -> None:
    with pytest.raises(OptionError) as raised:
        Options(**values)
    assert str(raised.value) == said


def test_numbers_of_numpy_and_lists_become_python_s_own() -> None:
    sizes: Any = [1, 2]
    options = Options(count=np.int64(3), rate=np.float32(0.5), sizes=sizes)  # type: ignore[arg-type]
    assert options == Options(count=3, rate=0.5, sizes=(1, 2))
    assert type(options.count) is int
    assert type(options.rate) is float


def test_a_check_can_be_put_off() -> None:
    with deferred():
        options = Options(count=0)
    with pytest.raises(OptionError, match="count must be positive"):
        check(options)
    with pytest.raises(OptionError, match="count must be positive"):
        Options(count=0)


def test_what_json_holds_becomes_options() -> None:
    values = {"count": 2, "sizes": [1, 2], "folder": "a/b", "limit": None, "inner": Inner(3)}
    assert read(Options, values, "run.json") == Options(2, sizes=(1, 2), folder=Path("a/b"), inner=Inner(3))


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (None, "run.json: task must be an object with fields, but is None"),
        ([1], "run.json: task must be an object with fields, but is [1]"),
        ({"colour": 1}, "run.json: task has 'colour', which this version does not know: it was made by another one"),
        ({3: 1}, "run.json: task has 3, which this version does not know: it was made by another one"),
        ({"count": None}, "run.json: task: count must be a whole number, but is None"),
        ({"sizes": [1, [2]]}, "run.json: task: sizes [1] must be a whole number, but is [2]"),
        ({"label": "\ud800"}, "run.json: task: label must be made of characters that UTF-8 can write, but is '\\ud800'"),
        ({"rate": math.inf}, "run.json: task: rate must be a finite number, but is inf"),
        ({"count": 3, "limit": 2}, "run.json: task: count must be at most the limit, 2, but is 3"),
    ],
)
def test_files_are_refused_by_the_place_of_what_is_wrong(values: Any, said: str) -> None:
    with pytest.raises(SubquadError) as raised:
        read(Options, values, "run.json: task")
    assert str(raised.value) == said


def test_a_list_that_is_too_short_is_said_to_be() -> None:
    @dataclass(frozen=True)
    class Pair(Checked):
        ends: tuple[str, str]

    with pytest.raises(SubquadError, match=r"^here: ends lacks 1: the file is damaged$"):
        read(Pair, {"ends": ["low"]}, "here")


def test_a_field_without_a_default_must_be_there() -> None:
    @dataclass(frozen=True)
    class Needed(Checked):
        size: Count

    with pytest.raises(SubquadError, match=r"^here lacks size: the file is damaged$"):
        read(Needed, {}, "here")


def test_nesting_without_end_is_refused() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(SubquadError, match=r"^here: count is nested too deep$"):
        read(Options, {"count": deep}, "here")


def test_a_kind_is_looked_up() -> None:
    registry: Mapping[str, type[Any]] = {"inner": Inner}
    assert read_kind(registry, {"kind": "inner", "size": 3}, "here") == Inner(3)
    for values in ({}, {"kind": "outer"}, {"kind": ["inner"]}, None, "inner"):
        with pytest.raises(SubquadError, match=r"^here must have a kind out of inner, but is "):
            read_kind(registry, values, "here")


def test_other_types_are_read_too() -> None:
    class Fields(TypedDict):
        __pydantic_config__ = STRICT  # type: ignore[misc]
        name: str
        sizes: dict[str, Count]

    good = {"name": "a", "sizes": {"x": 1}}
    assert read_as(Fields, good, "here") == good
    with pytest.raises(SubquadError, match=r"^here \['sizes'\]\['x'\] must be positive, but is 0$"):
        read_as(Fields, {"name": "a", "sizes": {"x": 0}}, "here")
    with pytest.raises(SubquadError, match=r"^here lacks 'name': the file is damaged$"):
        read_as(Fields, {"sizes": {}}, "here")


def test_long_values_are_cut_in_messages() -> None:
    assert len(excerpt("x" * 10_000)) < 100
    assert len(excerpt(list(range(10_000)))) < 100
    assert len(excerpt(10**4000)) < 100
