"""Counts the work that reading takes."""

import sys
from collections.abc import Callable, Iterator

import pytest

from subquad.data.tables import Names


class CountingDict(dict[str, int]):
    """Counts the entries that were gone through."""

    entries = 0

    def __iter__(self) -> Iterator[str]:
        CountingDict.entries += len(self)
        return super().__iter__()


def operations(read: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> int:
    """Calls of functions while something is read, and entries of names that were gone through."""

    calls = 0

    def count(*_: object) -> None:
        nonlocal calls
        calls += 1

    def init(names: Names) -> None:
        names.numbers, names.written = CountingDict(), CountingDict()

    monkeypatch.setattr(Names, "__init__", init)
    CountingDict.entries = 0
    before = sys.getprofile()
    sys.setprofile(count)
    try:
        read()
    finally:
        sys.setprofile(before)
    return calls + CountingDict.entries
