"""Values to try for a field, derived from its type: at its bounds, outside of them, of another kind, and strange."""

import math
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt

UNICODE = "Ünïcødé ☃ \u202e \U0001f600"
OVERLONG_PART = "a" * 300
OVERLONG_PATH = "b/" * 3000


class Tried(NamedTuple):
    """Words on a command line that stand behind an option's name, and what is special about them."""

    label: str
    words: tuple[str, ...]


def values_for(hint: Any) -> Iterator[Tried]:
    """What is tried for a field of this type."""
    yield Tried("no value", ())
    yield from _of(hint)


def _of(hint: Any) -> Iterator[Tried]:
    kind, rules = _plain(hint)
    if get_origin(kind) in (Union, types.UnionType):
        yield Tried("None", ("None",))
        inner = [part for part in get_args(kind) if part is not type(None)]
        yield from _of(inner[0])
    elif get_origin(kind) is tuple:
        yield from _several(get_args(kind)[0])
    elif get_origin(kind) is Literal:
        yield from _choices([str(choice) for choice in get_args(kind)])
    elif kind is bool:
        yield from (Tried("a value", ("maybe",)), Tried("a number", ("1",)))
    elif kind is int:
        yield from _whole(rules)
    elif kind is float:
        yield from _real(rules)
    elif kind is Path:
        yield from _paths()
    elif kind is str:
        yield from _texts()
    else:  # chosen by a name, as feature maps are
        yield from _choices(["elu", "learned"])


def _plain(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    if get_origin(hint) is Annotated:
        kind, *rules = get_args(hint)
        return kind, tuple(rules)
    return hint, ()


def _whole(rules: tuple[Any, ...]) -> Iterator[Tried]:
    low, high = _bounds(rules, 1)
    if math.isfinite(low):
        yield from (Tried("lowest", (str(int(low)),)), Tried("below the lowest", (str(int(low) - 1),)))
        yield Tried("second lowest", (str(int(low) + 1),))
    if math.isfinite(high):
        yield from (Tried("highest", (str(int(high)),)), Tried("above the highest", (str(int(high) + 1),)))
    yield Tried("a billion", ("1000000000",))
    yield Tried("negative", ("-7",))
    yield Tried("huge", ("9" * 40,))
    yield Tried("more digits than Python reads", ("9" * 5000,))
    yield from _no_numbers()
    yield from (Tried("a fraction", ("1.5",)), Tried("infinite", ("inf",)), Tried("nan", ("nan",)))


def _real(rules: tuple[Any, ...]) -> Iterator[Tried]:
    low, high = _bounds(rules, 0)
    for name, bound in (("low", low), ("high", high)):
        if math.isfinite(bound):
            yield Tried(f"at its {name} bound", (repr(bound),))
            yield Tried(f"just above its {name} bound", (repr(math.nextafter(bound, math.inf)),))
            yield Tried(f"just below its {name} bound", (repr(math.nextafter(bound, -math.inf)),))
    yield from (Tried("nan", ("nan",)), Tried("infinite", ("inf",)), Tried("minus infinity", ("-inf",)))
    yield from (Tried("largest", ("1.7e308",)), Tried("overflowing", ("1e999",)), Tried("smallest", ("5e-324",)))
    yield Tried("negative", ("-0.5",))
    yield from _no_numbers()


def _no_numbers() -> Iterator[Tried]:
    yield from (Tried("empty", ("",)), Tried("a word", ("many",)), Tried("unicode", (UNICODE,)))
    yield Tried("hexadecimal", ("0x10",))


def _bounds(rules: tuple[Any, ...], step: int) -> tuple[float, float]:
    """The lowest and the highest value. A bound that is excluded is moved by a step."""
    low: Any = -math.inf
    high: Any = math.inf
    for rule in rules:
        match rule:
            case Ge(ge=bound):
                low = bound
            case Gt(gt=bound):
                low = bound + step  # type: ignore[operator]
            case Le(le=bound):
                high = bound
            case Lt(lt=bound):
                high = bound - step  # type: ignore[operator]
    return low, high


def _choices(names: list[str]) -> Iterator[Tried]:
    yield from (Tried(name, (name,)) for name in names)
    yield from (Tried("unknown", ("no-such-thing",)), Tried("empty", ("",)), Tried("unicode", (UNICODE,)))
    yield Tried("in capitals", (names[0].upper(),))


def _texts() -> Iterator[Tried]:
    yield from _paths()
    yield Tried("a number", ("7",))


def _paths() -> Iterator[Tried]:
    yield from (Tried("empty", ("",)), Tried("unicode", (UNICODE,)), Tried("blank", (" ",)))
    yield from (Tried("an overlong name", (OVERLONG_PART,)), Tried("an overlong path", (OVERLONG_PATH,)))
    yield from (Tried("a NUL byte", ("a\0b",)), Tried("a surrogate", ("a\udcffb",)), Tried("a line break", ("a\nb",)))
    yield from (Tried("nothing there", ("nowhere/at/all",)), Tried("a folder", ("folder",)), Tried("a file", ("file",)))
    yield from (Tried("a dangling link", ("dangling",)), Tried("below a file", ("file/below",)))
    yield from (Tried("a link to itself", ("circle",)), Tried("a binary file", ("binary",)))


def _several(hint: Any) -> Iterator[Tried]:
    one = [tried for tried in _of(hint) if tried.words]
    yield from one
    yield Tried("the first twice", one[0].words * 2)
    yield Tried("good and bad", (*one[0].words, *one[1].words))
