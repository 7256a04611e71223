"""Gradient boosting on aggregates."""

import sys
from pathlib import Path

import numpy as np
import pytest

from subquad import SubquadError
from subquad.tasks import Transactions
from subquad.tasks.transactions.boosting import aggregates, boosted_scores
from subquad.tasks.transactions.features import learn
from subquad.tasks.transactions.metrics import auroc
from tests.tasks.transactions.test_features import history

FEW = Transactions(clients=300, shortest_history=5, longest_history=40)


def test_aggregates_of_one_client() -> None:
    one = history(["b", "a", "b", "b"], [1.0, -2.0, 3.0, 4.0], [0.0, 3600.0, 7200.0, 7200.0])
    found = aggregates(one, learn(one, "log", one).encode(one), np.array([0]))[0]
    assert found[:3].tolist() == [4, 6, 10]
    assert found[3] == pytest.approx(2 * np.log(3601) / 4)
    logs = np.log([2, 1 / 3, 4, 5])
    assert found[4:6] == pytest.approx([logs.mean(), logs.std()])
    assert found[6] == pytest.approx(logs.min())
    assert found[12] == pytest.approx(logs.max())
    assert found[13:15].tolist() == [0.75, 0.25]  # the most frequent code first


def test_it_learns_what_counts_tell(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    rng = np.random.default_rng(0)
    rows = [f"c{c},{t},{'xy'[int(rng.random() < 0.3 + 0.4 * (c % 2))]},{c % 2}\n" for c in range(200) for t in range(20)]
    (tmp_path / "t.csv").write_text("client,time,code,label\n" + "".join(rows))
    task = Transactions(data=str(tmp_path / "t.csv")).prepare()
    scores = boosted_scores(task)
    assert len(scores) == 40
    assert auroc(task.labels("test"), scores) > 0.9


def test_it_cannot_learn_what_only_order_tells() -> None:
    pytest.importorskip("sklearn")
    task = FEW.prepare()
    assert abs(auroc(task.labels("test"), boosted_scores(task)) - 0.5) < 0.2
    best = FEW.simulator.best_auroc(task.data.histories.select(task.data.splits.test))
    assert best > 0.6


def test_without_scikit_learn_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.ensemble", None)  # as if it were not installed
    with pytest.raises(SubquadError, match=r"gradient boosting needs scikit-learn: pip install 'subquad\[data\]'"):
        boosted_scores(FEW.prepare())
