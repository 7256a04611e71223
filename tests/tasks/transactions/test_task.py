"""The task of the transactions."""

import json
import math
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import torch

from subquad import Linear, ModelOptions, SubquadError
from subquad.tasks import TASKS, Transactions
from subquad.tasks.targets.metrics import auroc
from subquad.tasks.transactions import Histories, TransactionsTask
from subquad.tasks.transactions.batches import EventBatch
from subquad.tasks.transactions.model import Classifier
from subquad.tasks.transactions.splits import split

SMALL = ModelOptions(layers=1, heads=2, head_dim=8)
FEW = Transactions(clients=200, shortest_history=5, longest_history=40, wide="off", importance=False, baselines=False)


def drawn(task: TransactionsTask, size: int = 16) -> EventBatch:
    return task.batch(size, torch.Generator().manual_seed(0))


def test_options_come_back_from_json() -> None:
    kept = json.loads(json.dumps(asdict(FEW)))
    assert TASKS[kept.pop("kind")](**kept) == FEW


def write(path: Path, clients: int = 60) -> Path:
    """Client number c has c + 1 events, all with a code of its own."""
    rows = [f"c{c},{t},only{c},{c % 2}\n" for c in range(clients) for t in range(c + 1)]
    path.write_text("client,time,code,label\n" + "".join(rows))
    return path


def test_the_vocabulary_is_that_of_training_clients(tmp_path: Path) -> None:
    task = Transactions(data=str(write(tmp_path / "t.csv"))).prepare()
    histories, splits = task.data
    assert set(task.learned["codes"]) == {f"only{histories.clients[at][1:]}" for at in splits.train}
    for which in (splits.development, splits.test):
        for client in which:
            assert (task.features.encode(histories.select(np.array([client])))[:, 0] == 0).all()


def test_batches_are_of_training_clients() -> None:
    task = FEW.prepare()
    histories, splits = task.data
    for seed in range(20):
        batch = task.batch(8, torch.Generator().manual_seed(seed))
        assert batch.events.shape[:2] == batch.keep.shape
        assert len(set(batch.target.flatten().tolist()) | {0.0, 1.0}) == 2
        assert task.count(batch) == 8
        for events, keep in zip(batch.events, batch.keep, strict=True):
            length = int(keep.sum())
            same = [
                at
                for at in splits.train
                if histories.lengths[at] == length
                and np.array_equal(task.features.encode(histories.select(np.array([at]))), events[keep].numpy())
            ]
            assert len(same) == 1


def test_the_loss_of_a_model_that_knows_nothing() -> None:
    """And parts of a batch add up to the whole."""
    task = FEW.prepare()
    model = task.build(Linear(), SMALL)
    batch = drawn(task)
    with torch.no_grad():
        whole = task.loss(model, batch)
        halves = [task.loss(model, EventBatch(*(part[at::2] for part in batch))) for at in (0, 1)]
        assert isinstance(model, Classifier)
        model.head.weight.zero_()
        nothing = task.loss(model, batch)
    assert float(nothing.total) / nothing.number == pytest.approx(math.log(2))
    assert sum(float(half.total) for half in halves) == pytest.approx(float(whole.total), rel=1e-4)
    assert sum(half.number for half in halves) == whole.number == 16


def test_scores_are_in_the_clients_order_whatever_the_batches() -> None:
    task = FEW.prepare()
    model = task.build(Linear(), SMALL)
    model.train()
    scores = task.scores(model, "test")
    assert not model.training
    histories, splits = task.data
    alone = [task.scores(model, histories.select(np.array([client])))[0].tolist() for client in splits.test]
    assert scores == pytest.approx(np.array(alone), abs=1e-6)
    assert scores.std() > 1e-3
    narrow = replace(FEW, evaluation_tokens=50).prepare()
    assert narrow.scores(model, "test") == pytest.approx(scores, abs=1e-6)


def test_metrics_are_of_the_development_split_and_the_end_of_the_test(monkeypatch: pytest.MonkeyPatch) -> None:
    task = FEW.prepare()
    model = task.build(Linear(), SMALL)

    def scores(which: str | Histories) -> np.ndarray:
        assert isinstance(which, str)
        labels = task.truth(which)  # type: ignore[arg-type]
        wrong = np.arange(len(labels))[:, None] < (4 if which == "test" else 2)
        return np.where(wrong, 1 - labels, labels)

    monkeypatch.setattr(task, "scores", lambda model, which: scores(which))
    found = task.evaluate(model, torch.Generator())
    assert found["accuracy"] == 1 - 2 / 16
    assert found["auroc"] == auroc(task.truth("development")[:, 0].astype(int), scores("development")[:, 0])
    rows = {row["metric"]: row for row in task.final(model) if row.get("split") == "test"}
    assert rows["accuracy"]["value"] == 1 - 4 / 40
    assert rows["accuracy"]["low"] < 1 - 4 / 40 < rows["accuracy"]["high"]
    histories, splits = task.data
    best = FEW.simulator.ratios(histories)[splits.test]
    assert rows["best_possible_auroc"]["value"] == auroc(task.truth("test")[:, 0].astype(int), best)
    samples = task.samples(model, torch.Generator().manual_seed(0), 16)
    assert sum(sample["answered"] != sample["right"] for sample in samples) == 2
    assert {sample["right"] for sample in samples} == {"from A to B", "from B to A"}


def test_what_was_learned_works_without_the_data(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv")
    options = Transactions(data=str(path))
    task = options.prepare()
    model = task.build(Linear(), SMALL)
    scores = task.scores(model, "test")
    learned = json.loads(json.dumps(task.learned))
    clients = [task.data.histories.clients[at] for at in task.data.splits.test]
    new = tmp_path / "new.csv"
    lines = path.read_text().splitlines()
    new.write_text("\n".join(["client,time,code"] + [line.rsplit(",", 1)[0] for line in lines[1:]]) + "\n")
    path.unlink()
    later = options.prepare(learned)
    copy = later.build(Linear(), SMALL)
    copy.load_state_dict(model.state_dict())
    predicted = later.predict(copy, new)
    by_client = {client: float(score) for client, score, _ in predicted.lines}
    assert [by_client[client] for client in clients] == pytest.approx(scores[:, 0].tolist(), abs=1e-6)
    with pytest.raises(SubquadError, match="there is no file or folder"):
        drawn(later)


def test_data_that_have_changed_are_refused(tmp_path: Path) -> None:
    options = Transactions(data=str(write(tmp_path / "t.csv")))
    learned = options.prepare().learned
    assert len(drawn(options.prepare(learned)).target) == 16
    write(tmp_path / "t.csv", 61)
    with pytest.raises(SubquadError, match="it had 60 clients and 1,830 events, they have 61 and 1,891; start a new run"):
        drawn(options.prepare(learned))


def test_the_latest_events_are_read() -> None:
    task = replace(FEW, latest=7).prepare()
    assert task.data.histories.lengths.max() == 7
    with pytest.raises(SubquadError, match="latest must be positive, but is 0"):
        Transactions(latest=0).prepare()


def test_it_can_be_learned() -> None:
    """With strong habits, by a small model, in few steps."""
    options = Transactions(clients=600, shortest_history=20, longest_history=40, codes=3, drift=0.9, wide="off")
    task = options.prepare()
    model = task.build(Linear(), ModelOptions(layers=1, heads=2, head_dim=16), torch.Generator().manual_seed(0))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for step in range(60):
        losses = task.loss(model, task.batch(32, torch.Generator().manual_seed(step)))
        optimizer.zero_grad()
        (losses.total / losses.number).backward()
        optimizer.step()
    assert task.evaluate(model, torch.Generator())["auroc"] > 0.9


def test_events_and_clients_may_share_the_name_of_a_column(tmp_path: Path) -> None:
    rows = "".join(f"c{client},{time},{('RU', 'DE')[(client + time) % 2]}\n" for client in range(200) for time in range(3))
    (tmp_path / "events.csv").write_text("client,time,country\n" + rows)
    rows = "".join(f"c{client},{('AT', 'CH')[client % 3 > 0]},{client % 2}\n" for client in range(200))
    (tmp_path / "clients.csv").write_text("client,country,label\n" + rows)
    options = Transactions(data=str(tmp_path), wide="off", baselines=False, importance=False)
    task = options.prepare()
    model = task.build(Linear(), SMALL)
    again = options.prepare(json.loads(json.dumps(task.learned)))
    assert len(again.predict(model, tmp_path).lines) == 200


def test_a_test_without_observed_events_ends_well(tmp_path: Path) -> None:
    names = [f"c{client}" for client in range(60)]
    observed = set(split(names, np.zeros(60, int), folds=5, fold=0, seed=0, by_class=False).train[:5].tolist())
    rows = "".join(
        f"c{client},{time},{client % 7 + 1},{int(client in observed)}\n" for client in range(60) for time in range(3)
    )
    (tmp_path / "t.csv").write_text("client,time,days,happened\n" + rows)
    task = Transactions(data=str(tmp_path / "t.csv"), label="days", observed_column="happened", wide="off").prepare()
    assert all(math.isfinite(row["value"]) for row in task.final(task.build(Linear(), SMALL)))
