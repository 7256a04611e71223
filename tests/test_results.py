"""Rows."""

from pathlib import Path

import pytest

from subquad.errors import SubquadError
from subquad.results import append_rows, read_rows


def test_rows_come_back_and_are_added_to(tmp_path: Path) -> None:
    path = tmp_path / "run" / "rows.jsonl"
    append_rows(path, [{"metric": "loss", "value": 0.25, "step": 1}])
    append_rows(path, [{"metric": "loss", "value": None, "step": 2}])
    assert read_rows(path) == [{"metric": "loss", "value": 0.25, "step": 1}, {"metric": "loss", "value": None, "step": 2}]


def test_a_half_written_last_row_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    append_rows(path, [{"value": 1}, {"value": 2}])
    path.write_bytes(path.read_bytes()[:-4])
    assert read_rows(path) == [{"value": 1}]


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(SubquadError, match="there is no file of rows at"):
        read_rows(tmp_path / "none.jsonl")
    (tmp_path / "bad.jsonl").write_text('{"value": 1}\nnonsense\n')
    with pytest.raises(SubquadError, match=r"line 2 of .*bad.jsonl is not a JSON row"):
        read_rows(tmp_path / "bad.jsonl")
