"""Which columns of clients matter."""

from typing import Any

import numpy as np

from subquad.data.column_values import ColumnValues
from subquad.data.columns import Column
from subquad.tasks.targets.kinds import Classes
from subquad.tasks.transactions.importance import ORDER, importance_rows
from subquad.tasks.transactions.simulator import Simulator

TWO = Classes(("no", "yes"))


def test_columns_that_matter_are_found() -> None:
    """A model that decides by codes and their order alone."""
    simulator = Simulator(clients=300, shortest=20, longest=40, drift=0.8)
    histories = simulator.draw()

    def predict(some: Any) -> Any:
        return 1 / (1 + np.exp(-simulator.ratios(some)))[:, None]

    rows = {row["column"]: row for row in importance_rows(TWO, histories, predict, histories.fields)}
    assert set(rows) == {"code", "type", "amount", ORDER}
    for name in ("code", ORDER):
        assert rows[name]["low"] > 0.2
    for name in ("type", "amount"):
        assert (rows[name]["low"], rows[name]["value"], rows[name]["high"]) == (0, 0, 0)
    numbers = np.arange(float(len(histories.times)))
    further = tuple(ColumnValues(Column(name, "number"), numbers, []) for name in ("used", "unused"))
    wider = histories._replace(columns=further)
    found = importance_rows(TWO, wider, predict, (*histories.fields, "used"))
    assert {row["column"] for row in found} == {"code", "type", "amount", ORDER, "used"}
