"""Ways to spoil JSON and files, which damaged runs and hostile models have in common."""

import copy
import json
from collections.abc import Iterator
from typing import Any

from tests.robustness.cases import Edit

Place = tuple[str | int, ...]
"""Where in a nested value something is."""

WRONG: dict[str, Any] = {
    "null": None,
    "a list": [1, "a"],
    "a text": "some text",
    "a number": 7.5,
    "an object": {"a": {"b": [None]}},
    "true": True,
    "negative": -1,
    "huge": 10**30,
    "an overlong text": "x" * 5000,
    "a NUL": "a\0b",
    "a surrogate": "\ud800",
    "not a number": float("nan"),
    "infinite": float("inf"),
}
"""Values of other kinds than a field has, whatever its kind is."""


def places(value: Any, at: Place = ()) -> Iterator[Place]:
    """Every place in a nested value. Of a list, the first element stands for all."""
    if at:
        yield at
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from places(inner, (*at, key))
    elif isinstance(value, list) and value:
        yield from places(value[0], (*at, 0))


def without(value: Any, place: Place) -> Any:
    """A copy that lacks what is at a place."""
    changed = copy.deepcopy(value)
    del _inner(changed, place[:-1])[place[-1]]
    return changed


def replaced(value: Any, place: Place, new: Any) -> Any:
    """A copy with something else at a place."""
    changed = copy.deepcopy(value)
    _inner(changed, place[:-1])[place[-1]] = new
    return changed


def _inner(value: Any, place: Place) -> Any:
    for key in place:
        value = value[key]
    return value


def as_json(value: Any) -> bytes:
    """The text of a file, in which numbers need not be finite."""
    return json.dumps(value, indent=2).encode()


def spoilt(path: str, content: bytes) -> Iterator[tuple[str, tuple[Edit, ...]]]:
    """A file cut, emptied, replaced by what is none, or filled with something else, each with a name."""
    half = len(content) // 2
    newline = content.find(b"\n", half)
    contents = {
        "empty": b"",
        "cut after a byte": content[:1],
        "cut after 8 bytes": content[:8],
        "cut after a half": content[:half],
        "cut in a token": content[: content.find(b'"', half) + 2],
        "cut before a line's end": content[:newline],
        "cut after a line's end": content[: newline + 1],
        "without its last byte": content[:-1],
        "with more behind it": content + b"}{ more",
        "twice": content * 2,
        "of zeros": bytes(len(content)),
        "of any bytes": bytes(range(256)) * 4,
        "with a byte that is not UTF-8": content[:half] + b"\xff" + content[half:],
        "in UTF-16": content.decode(errors="replace").encode("utf-16"),
        "after a byte order mark": b"\xef\xbb\xbf" + content,
        "with Windows' line ends": content.replace(b"\n", b"\r\n"),
    }
    for label, changed in contents.items():
        yield label, (Edit("write", path, changed),)
    yield "removed", (Edit("remove", path),)
    yield "a folder", (Edit("folder", path),)
    yield "a dangling link", (Edit("link", path, b"nothing/here"),)
    yield "a link to itself", (Edit("link", path, path.rsplit("/", 1)[-1].encode()),)
