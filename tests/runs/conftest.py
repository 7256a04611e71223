"""Runs are made once, and reported hundreds of times."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from tests.runs.made import MAKERS, write_pages_quickly


@pytest.fixture(autouse=True)
def _quick_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    write_pages_quickly(monkeypatch)


@pytest.fixture(scope="session")
def whole_run(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Gives a run of a kind that came to its end. All tests share it, so that they may change copies only."""
    return cache(lambda kind: MAKERS[kind](tmp_path_factory.mktemp(kind)))
