"""What counts know of a client, and the linear model of it."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from subquad import Linear, ModelOptions
from subquad.tasks import Transactions
from subquad.tasks.targets.kinds import Classes
from subquad.tasks.targets.linear import LinearModel, fit_linear
from subquad.tasks.targets.metrics import auroc
from subquad.tasks.transactions import TransactionsTask
from subquad.tasks.transactions.aggregates import Aggregates, static_width
from subquad.tasks.transactions.features import learn
from subquad.tasks.transactions.labelled import BOOSTING, COUNTS
from tests.tasks.transactions.test_features import history
from tests.tasks.transactions.test_further import table

SMALL = ModelOptions(layers=1, heads=2, head_dim=4)
HABITS = Transactions(clients=300, shortest_history=20, longest_history=40, codes=6, drift=0.8, importance=False)


def test_one_client() -> None:
    single = history(["b", "a", "b", "b"], [1.0, -2.0, 3.0, 4.0], [0.0, 3600.0, 7200.0, 7200.0])
    twice = single._replace(
        clients=["x", "y"],
        offsets=np.array([0, 4, 8]),
        labels=np.array([0, 1]),
        codes=np.tile(single.codes, 2),
        types=np.tile(single.types, 2),
        amounts=np.tile(single.amounts, 2),
        times=np.tile(single.times, 2),
    )
    features = learn(twice, "quantile", twice)
    aggregates = Aggregates.learn(features, twice, 2)
    found = aggregates.table(twice)
    assert found.shape[0] == 2
    assert np.array_equal(found[0], found[1])
    assert found[0, 0] == pytest.approx(np.log(4))
    (codes, pairs) = [each for each in aggregates.counted if each.name == "code"]
    assert codes.symbols == (1, 2)
    assert pairs.symbols == (1 * 3 + 2, 2 * 3 + 1, 2 * 3 + 2)  # a after b is 2 * size + 1
    counts = found[0, 12:14]  # after 6 overall numbers and 6 parts of the day
    assert counts == pytest.approx(np.log1p([1, 3]))
    assert found[0, 14:16] == pytest.approx([0.25, 0.75])
    assert found[0, 16:18] == pytest.approx(np.array([-0.25, -0.75 + 0.25 + 0.75]) / 2)
    assert found[0, 18:21] == pytest.approx(np.log1p([1, 1, 1]))
    again = Aggregates.from_json(features, json.loads(json.dumps(aggregates.as_json())))
    assert np.array_equal(again.table(twice), found)


def test_chunks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    task = replace(HABITS, clients=60).prepare()
    histories = task.data.histories
    aggregates = Aggregates.learn(task.features, histories, 60)
    whole = aggregates.table(histories)
    monkeypatch.setattr("subquad.tasks.transactions.aggregates.CHUNK_EVENTS", 50)
    assert np.allclose(aggregates.table(histories), whole, atol=1e-6)


def test_columns_of_clients_become_numbers(tmp_path: Path) -> None:
    task = Transactions(data=str(table(tmp_path / "t.csv")), column_kinds=("born=category",), wide="off").prepare()
    histories = task.data.histories
    static = Aggregates(task.features, ()).static(histories)
    assert static.shape == (60, static_width(task.features))
    assert (static.sum(1) == 1).all()
    model = task.build(Linear(), SMALL)
    assert model.static is not None
    batch = task.batch(4, torch.Generator().manual_seed(0))
    other = batch._replace(static=1 - batch.static)
    assert not torch.allclose(*(model(b.events, keep=b.keep, static=b.static) for b in (batch, other)))


def test_the_linear_model_finds_what_is_linear() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((300, 20)).astype(np.float32)
    truth = (x[:, :1] + 0.5 * rng.standard_normal((300, 1)) > 0).astype(float)
    model, outside = fit_linear(x[:200], truth[:200], Classes(("a", "b")))
    on_new = auroc(truth[200:, 0].astype(int), model.logits(x[200:])[:, 0])
    assert on_new > 0.9
    assert auroc(truth[:200, 0].astype(int), outside[:, 0]) == pytest.approx(on_new, abs=0.08)
    again = LinearModel.from_json(json.loads(json.dumps(model.as_json())))
    assert np.array_equal(again.logits(x), model.logits(x))
    noise, _ = fit_linear(x[:200], rng.permutation(truth[:200]), Classes(("a", "b")))
    assert noise.penalty > model.penalty


def test_recency_knows_the_simulated_habits_and_the_branch_is_on() -> None:
    task = HABITS.prepare()
    assert task.features.wide
    model = task.build(Linear(), SMALL, torch.Generator().manual_seed(0))
    predicted = task.baselines()
    truth = task.truth("test")[:, 0].astype(int)
    assert auroc(truth, predicted[COUNTS][:, 0]) > 0.9
    # before any training the model is about as good as the linear model, and the same through its stored form
    scores = task.scores(model, "test")
    assert auroc(truth, scores[:, 0]) == pytest.approx(auroc(truth, predicted[COUNTS][:, 0]), abs=0.02)
    later = HABITS.prepare(json.loads(json.dumps(task.learned)))
    assert np.allclose(later.scores(model, "test"), scores, atol=1e-6)
    batches = [each.batch(8, torch.Generator().manual_seed(0)) for each in (task, later)]
    assert torch.allclose(batches[0].offset, batches[1].offset, atol=1e-5)


def test_the_branch_is_off_where_counts_know_nothing() -> None:
    options = Transactions(clients=200, shortest_history=5, longest_history=10, drift=0.0)
    assert not options.prepare().features.wide
    assert replace(options, wide="on").prepare().features.wide


def test_baselines_know_what_counts_tell(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    rng = np.random.default_rng(0)
    rows = [f"c{c},{t},{'xy'[int(rng.random() < 0.3 + 0.4 * (c % 2))]},{c % 2}\n" for c in range(200) for t in range(20)]
    (tmp_path / "t.csv").write_text("client,time,code,label\n" + "".join(rows))
    task: TransactionsTask = Transactions(data=str(tmp_path / "t.csv")).prepare()
    for name, predicted in task.baselines().items():
        assert name in (COUNTS, BOOSTING)
        assert auroc(task.truth("test")[:, 0].astype(int), predicted[:, 0]) > 0.85
