"""Learning from histories without labels."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from subquad import Linear, ModelOptions, SubquadError
from subquad.cli import main
from subquad.tasks import Transactions
from subquad.tasks.transactions.pretraining import (
    PartsBatch,
    Pretrainer,
    contrastive_losses,
    draw_samples,
    draw_slices,
    next_losses,
    predicted_fields,
)
from tests.tasks.transactions.test_further import table

SMALL = ModelOptions(layers=1, heads=2, head_dim=4)
FEW = Transactions(clients=80, shortest_history=5, longest_history=40, objective="both")


def test_parts_are_of_one_client_and_what_follows_is_counted() -> None:
    task = FEW.prepare()
    histories, features = task.data.histories, task.features
    batch = draw_slices(histories, features, np.array([3, 7]), seed=0)
    encoded = features.encode(histories.select(np.array([3])))
    part = batch.events[0][batch.keep[0]].numpy()
    starts = [at for at in range(len(encoded) - len(part) + 1) if np.array_equal(encoded[at : at + len(part)], part)]
    assert starts
    assert 0 < len(part) < len(encoded)
    after = encoded[starts[0] + len(part) :][:10]
    size = predicted_fields(features)[0][2]
    wanted = np.bincount(after[:, 0].astype(int), minlength=size) / max(1, len(after))
    assert batch.following[0, :size].numpy() == pytest.approx(wanted)


def test_samples_share_no_event_and_reach_over_the_whole_history() -> None:
    task = FEW.prepare()
    histories, features = task.data.histories, task.features
    for seed in range(3):
        batch = draw_samples(histories, features, np.array([3, 7, 11]), seed=seed)
        for at, client in enumerate((3, 7, 11)):
            whole = features.encode(histories.select(np.array([client])))
            first, second = batch.events[at][batch.keep[at]].numpy(), batch.other[at][batch.other_keep[at]].numpy()
            assert len(first) + len(second) == len(whole)
            assert np.array_equal(first[0], whole[0])
            assert np.array_equal(second[-1], whole[-1])
            joined = np.concatenate([first, second])
            assert np.array_equal(joined[np.lexsort(joined.T)], whole[np.lexsort(whole.T)])
    single = histories.latest(1)
    batch = draw_samples(single, features, np.array([0, 1]), seed=0)
    assert torch.equal(batch.events, batch.other)
    with pytest.raises(SubquadError, match="nothing follows a sample of all events: give --objective contrastive"):
        replace(FEW, parts="samples")


def test_losses_are_small_where_parts_and_symbols_are_told() -> None:
    same = torch.eye(4) * 5
    assert contrastive_losses(same, same).max() < 0.01
    assert contrastive_losses(same, same.roll(1, 0)).min() > 5
    shares = torch.tensor([[1.0, 0.0, 0.5, 0.5], [0.0, 0.0, 0.0, 0.0]])
    losses = next_losses(torch.zeros(2, 4), shares, [2, 2])
    assert losses.tolist() == pytest.approx([np.log(2), 0.0])


@pytest.mark.parametrize(
    ("objective", "parts"), [("next", "slices"), ("contrastive", "slices"), ("both", "slices"), ("contrastive", "samples")]
)
def test_it_learns(objective: Any, parts: Any) -> None:
    task = replace(FEW, objective=objective, parts=parts).prepare()
    model = task.build(Linear(), SMALL, torch.Generator().manual_seed(0))
    assert isinstance(model, Pretrainer)
    batch = task.batch(16, torch.Generator().manual_seed(0))
    assert isinstance(batch, PartsBatch)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(30):
        counted = task.loss(model, batch)
        optimizer.zero_grad()
        (counted.total / counted.number).backward()
        optimizer.step()
        losses.append(float(counted.total.detach()) / counted.number)
    assert losses[-1] < losses[0] - 0.05
    assert set(task.evaluate(model, torch.Generator())) == {"held_out_loss", "nearest_is_same_client"}
    judged = task.judge(model)
    assert len(judged.parts) == len(task.data.splits.test)
    assert (judged.metric, judged.good) == ("held_out_loss", "low")


def test_a_model_of_labels_starts_with_what_was_learned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = str(table(tmp_path / "t.csv"))
    size = ["--layers", "1", "--heads", "1", "--head-dim", "4", "--batch", "8"]
    few = ["--steps", "2", "--no-page"]
    run, later = str(tmp_path / "first"), str(tmp_path / "second")
    assert main(["train", "transactions", "--data", data, "--objective", "both", *size, *few, "--out", run]) == 0
    more = ["--no-baselines", "--no-importance", "--learning-rate", "1e-9"]
    assert main(["train", "transactions", "--data", data, "--start", run, *few, "--batch", "8", *more, "--out", later]) == 0
    import subquad as sq

    first, second = sq.load(run), sq.load(later)
    for name, tensor in first.model.model.encoder.state_dict().items():  # type: ignore[union-attr]
        assert torch.allclose(tensor, second.model.encoder.state_dict()[name], atol=1e-5), name  # type: ignore[union-attr]
    assert first.embed(data).vectors == pytest.approx(second.embed(data).vectors, abs=0.2)
    capsys.readouterr()
    assert main(["predict", run, "--data", data]) == 2
    assert "predicts none" in capsys.readouterr().err
    with pytest.raises(SubquadError, match="did not learn from histories without labels"):
        Transactions(data=data, start=later).prepare().data  # noqa: B018
