"""Labels of clients as targets."""

from pathlib import Path

import numpy as np
import pytest

from subquad import SubquadError
from subquad.tasks.transactions import Columns, load_histories
from subquad.tasks.transactions.collecting import Reading
from subquad.tasks.transactions.histories import Histories


def load(tmp_path: Path, rows: list[str], heads: str = "client,time,label", how: Reading | None = None) -> Histories:
    path = tmp_path / "t.csv"
    path.write_text("\n".join([heads, *rows]) + "\n")
    return load_histories(path, Columns(), how=how)


def test_many_classes_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    found = load(tmp_path, ["a,1,10", "b,1,9", "c,1,2", "d,1,"])
    assert (found.target_kind, found.label_names) == ("classes", ("2", "9", "10"))
    assert found.labels.tolist() == [2, 1, 0, -1]


def test_many_numbers_are_a_number(tmp_path: Path) -> None:
    found = load(tmp_path, [f"c{at},1,{at / 2}" for at in range(30)] + ["x,1,"])
    assert found.target_kind == "number"
    assert found.targets[:3, 0].tolist() == [0.0, 0.5, 1.0]
    assert found.labels.tolist() == [0] * 30 + [-1]
    named = load(tmp_path, ["a,1,3", "b,1,4", "c,1,x"], how=Reading(target="number"))
    assert named.target_kind == "number"
    assert "1 label is no number and left out: 'x'" in named.complaints
    with pytest.raises(SubquadError, match="must have two numbers or more"):
        load(tmp_path, ["a,1,3", "b,1,3"], how=Reading(target="number"))


def test_all_numbers_are_written_in_one_way(tmp_path: Path) -> None:
    found = load(tmp_path, [*(f'c{at:02},1,"{at},500"' for at in range(1, 30)), "x,1,850"])
    assert found.target_kind == "number"
    assert found.targets[[0, 28, 29], 0].tolist() == [1500.0, 29500.0, 850.0]
    commas = load(tmp_path, [*(f'c{at:02},1,"{at},5"' for at in range(1, 30)), 'x,1,"3,250"'])
    assert commas.targets[[0, 28, 29], 0].tolist() == [1.5, 29.5, 3.25]


def test_several_labels_from_columns_or_from_one_cell(tmp_path: Path) -> None:
    rows = ["a,1,yes,0", "b,1,no,1", "c,1,yes,", "d,1,,"]
    found = load(tmp_path, rows, "client,time,old,rich", Reading(labels=("old", "rich")))
    assert (found.target_kind, found.label_names) == ("labels", ("old", "rich"))
    assert found.targets[:2].tolist() == [[1, 0], [0, 1]]
    assert np.isnan(found.targets[2, 1])
    assert found.labels.tolist() == [0, 0, 0, -1]
    assert not found.columns
    cells = load(tmp_path, ["a,1,x|y", "b,1,y", "c,1,x"])
    assert (cells.target_kind, cells.label_names) == ("labels", ("x", "y"))
    assert cells.targets.tolist() == [[1, 1], [0, 1], [1, 0]]
    with pytest.raises(SubquadError, match=r"the label 'old' in .* must have two values, but has '1', '2', '3'"):
        load(tmp_path, ["a,1,1,0", "b,1,2,1", "c,1,3,0"], "client,time,old,rich", Reading(labels=("old", "rich")))
    with pytest.raises(SubquadError, match="has no column 'poor'"):
        load(tmp_path, rows, "client,time,old,rich", Reading(labels=("old", "poor")))


def test_times_to_an_event(tmp_path: Path) -> None:
    heads = "client,time,label,seen"
    how = Reading(observed="seen")
    found = load(tmp_path, ["a,1,5.5,1", "b,1,7,0", "c,1,-1,1", "d,1,x,0"], heads, how)
    assert found.target_kind == "event"
    assert found.targets[:2].tolist() == [[5.5, 1], [7, 0]]
    assert found.labels.tolist() == [0, 0, -1, -1]
    with pytest.raises(SubquadError, match=r"no event of .* was observed"):
        load(tmp_path, ["a,1,5,0", "b,1,7,0"], heads, how)
    with pytest.raises(SubquadError, match="name the column by --observed-column"):
        load(tmp_path, ["a,1,5", "b,1,7"], how=Reading(target="event"))
