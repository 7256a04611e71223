"""Runs are made and reported hundreds of times here."""

import pytest

from tests.runs.made import write_pages_quickly


@pytest.fixture(autouse=True)
def _quick_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    write_pages_quickly(monkeypatch)
