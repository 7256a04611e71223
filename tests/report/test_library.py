"""The script that draws charts is bundled once, and a kept file that is damaged or cannot be written does no harm."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import vl_convert

from subquad.report.library import chart_library

BUNDLE = "window.vegaEmbed = '</script>';"
SAFE = r"window.vegaEmbed = '<\/script>';"


@pytest.fixture(autouse=True)
def bundled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The calls of the bundler, with an empty cache folder."""
    calls: list[str] = []

    def bundle(snippet: str, version: str) -> str:
        calls.append(version)
        return BUNDLE

    monkeypatch.setattr(vl_convert, "javascript_bundle", bundle)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    chart_library.cache_clear()
    yield calls
    chart_library.cache_clear()


def read_again() -> str:
    """The text that a new process would get."""
    chart_library.cache_clear()
    return chart_library()


def test_it_is_bundled_once(bundled: list[str]) -> None:
    assert [read_again(), read_again(), read_again()] == [SAFE] * 3
    assert len(bundled) == 1


@pytest.mark.parametrize("content", [b"", b"window", b"0\nwindow.vegaEmbed = null;", b"\xff\xfe"])
def test_a_damaged_file_is_bundled_again(content: bytes, bundled: list[str], tmp_path: Path) -> None:
    read_again()
    (kept,) = (tmp_path / "cache/subquad").iterdir()
    kept.write_bytes(content)
    assert read_again() == SAFE
    assert len(bundled) == 2
    assert read_again() == SAFE
    assert len(bundled) == 2


def test_a_folder_that_cannot_be_made_does_no_harm(bundled: list[str], tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file in its place")
    assert [read_again(), read_again()] == [SAFE] * 2
    assert len(bundled) == 2
