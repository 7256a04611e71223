"""The task of the events."""

import json
import math
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from subquad import MECHANISMS, Favor, Linear, Linformer, ModelOptions, Softmax, SubquadError
from subquad.tasks import TASKS, Events
from subquad.tasks.events import EventSequences, EventsTask
from subquad.tasks.events.batches import EventBatch
from subquad.tasks.events.model import EventModel
from tests.tasks.events.sequences import random_sequences

SMALL = ModelOptions(layers=1, heads=2, head_dim=8)
FEW = Events(sequences=30, head="hawkes", inner=16)


def drawn(task: EventsTask, size: int = 8, seed: int = 0) -> EventBatch:
    return task.batch(size, torch.Generator().manual_seed(seed))


def write(path: Path, sequences: EventSequences) -> Path:
    where = np.repeat(sequences.names, sequences.lengths)
    rows = zip(where, sequences.times.tolist(), sequences.types, strict=True)
    lines = [f"{name},{time!r},{sequences.type_names[kind]}" for name, time, kind in rows]
    path.write_text("\n".join(["sequence,time,type", *lines]) + "\n")
    return path


def from_file(path: Path, **given: Any) -> Events:
    return replace(Events(data=str(path), inner=8), **given)


def test_options_come_back_from_json() -> None:
    kept = json.loads(json.dumps(asdict(FEW)))
    assert TASKS[kept.pop("kind")](**kept) == FEW


@pytest.mark.parametrize("changed", [{"integral_points": 1}, {"chunk": -1}, {"sequences": 0}, {"time_weight": -0.1}])
def test_options_that_cannot_be_run(changed: dict[str, Any]) -> None:
    with pytest.raises(SubquadError, match=f"^{next(iter(changed))} must be"):
        replace(FEW, **changed)


def test_a_mechanism_without_a_causal_form_is_refused_before_data_are_read() -> None:
    with pytest.raises(SubquadError, match="linformer has no causal form"):
        Events(data="/nowhere").prepare().build(Linformer(), SMALL)


def test_parts_of_a_batch_add_up() -> None:
    task = FEW.prepare()
    model = task.build(Linear(), SMALL).eval()
    batch = drawn(task)
    with torch.no_grad():
        whole = task.loss(model, batch)
        halves = [task.loss(model, EventBatch(*(part[at::2] for part in batch))) for at in (0, 1)]
    assert whole.number == task.count(batch) == sum(half.number for half in halves)
    assert sum(float(half.total) for half in halves) == pytest.approx(float(whole.total), rel=1e-5)


@pytest.mark.parametrize("name", [name for name, options in MECHANISMS.items() if options().traits.causal])
def test_losses_of_chunks_are_those_of_the_whole(name: str) -> None:
    """And one piece's gradient is taken without those before it."""
    task, cut = FEW.prepare(), replace(FEW, chunk=16).prepare()
    model = task.build(MECHANISMS[name](), SMALL, torch.Generator().manual_seed(0)).eval()
    batch = drawn(task)
    whole, parts = task.loss(model, batch), list(cut.losses(model, batch))
    assert len(parts) == cut.pieces(batch) > 3
    assert task.pieces(batch) == 1
    assert sum(part.total.item() for part in parts) == pytest.approx(whole.total.item(), rel=1e-4)
    assert sum(part.number for part in parts) == whole.number
    for part in cut.losses(model, batch):
        part.total.backward()


@pytest.mark.parametrize("head", ["hawkes", "mixture"])
def test_the_likelihood_is_in_the_data_s_unit(head: str, tmp_path: Path) -> None:
    """In seconds instead of hours, and since 1970, it is that of hours, less log 3600 for each event: exactly the data's."""
    found = {}
    for name, start, unit in (("hours", 0.0, 1.0), ("seconds", 1.6e9, 3600.0)):
        path = write(tmp_path / f"{name}.csv", random_sequences([12] * 20, start=start, unit=unit))
        task = from_file(path, head=head).prepare()
        model = task.build(Linear(), SMALL, torch.Generator().manual_seed(0))
        found[name] = (task.evaluate(model, torch.Generator()), task.loss(model.eval(), drawn(task)))
    hours, seconds = found["hours"][0], found["seconds"][0]
    assert seconds["nll"] == pytest.approx(hours["nll"] + math.log(3600), abs=1e-4)
    assert seconds["rmse"] == pytest.approx(3600 * hours["rmse"], rel=1e-3)
    assert seconds["accuracy"] == hours["accuracy"]
    losses = [found[name][1].total.item() / found[name][1].number for name in ("hours", "seconds")]
    assert losses[1] == pytest.approx(losses[0] + math.log(3600), abs=1e-4)


def test_scores_do_not_depend_on_batches(tmp_path: Path) -> None:
    path = write(tmp_path / "e.csv", random_sequences([3, 40, 11, 2, 25, 7, 1, 9, 30, 5, 4, 6]))
    task = from_file(path).prepare()
    model = task.build(Linear(), SMALL, torch.Generator().manual_seed(0)).train()
    sequences = task.data.train
    whole = task.score(model, sequences)
    assert not model.training
    narrow = from_file(path, evaluation_tokens=8).prepare().score(model, sequences)
    for name, one, other in zip(whole._fields, whole, narrow, strict=True):
        assert other == pytest.approx(one, rel=1e-3, abs=1e-3), name
    assert len(whole.time) == (sequences.lengths - 1).clip(0).sum()
    assert whole.gaps == pytest.approx(sequences.gaps[~sequences.first])
    order = np.arange(len(sequences.names))[::-1]
    turned = task.score(model, sequences.select(order))
    assert turned.time.sum() == pytest.approx(whole.time.sum(), rel=1e-5)


@pytest.mark.parametrize("head", ["hawkes", "mixture"])
def test_forecasts_that_are_left_out_change_nothing_else(head: str) -> None:
    task = replace(FEW, head=head).prepare()
    model = task.build(Linear(), SMALL, torch.Generator().manual_seed(0))
    whole, gaps, none = (task.score(model, task.data.development, levels=levels) for levels in ((0.1, 0.9), (), None))
    assert [scored.quantiles.shape[1] for scored in (whole, gaps, none)] == [2, 0, 0]
    assert_close(gaps.expected, whole.expected)
    assert not none.expected.any()
    for name in ("time", "type", "likeliest", "confidence", "lengths"):
        assert_close(getattr(gaps, name), getattr(whole, name))
        assert_close(getattr(none, name), getattr(whole, name))


def test_the_loss_is_the_evaluated_likelihood() -> None:
    task = replace(FEW, integral="trapezoid", integral_points=64).prepare()
    model = task.build(Linear(), SMALL).eval()
    train = task.data.train
    with torch.no_grad():
        loss = task.loss(model, task.encoded.pad(np.arange(len(train.names))))
    found = task.score(model, train)
    assert float(loss.total) / loss.number == pytest.approx(-(found.time + found.type).mean(), rel=1e-5)


@pytest.mark.parametrize("options", [FEW, replace(FEW, head="mixture", type_weight=1.0, time_weight=0.1)])
def test_rows_of_the_test_split(options: Events) -> None:
    task = options.prepare()
    model = task.build(Linear(), SMALL)
    found = task.final(model)
    json.dumps(found, allow_nan=False)
    rows = {row["metric"]: row for row in found}
    for name in ("nll", "nll_time", "nll_type", "accuracy", "macro_f1", "rmse", "mae", "within_interval"):
        assert rows[name]["split"] == "test"
        assert rows[name]["low"] <= rows[name]["value"] <= rows[name]["high"]
    assert rows["nll"]["value"] == pytest.approx(rows["nll_time"]["value"] + rows["nll_type"]["value"])
    assert rows["nll"]["value"] - rows["nll_of_truth"]["value"] == pytest.approx(rows["nll_above_truth"]["value"])
    assert rows["nll_above_truth"]["value"] > 0
    assert rows["accuracy_of_most_frequent"]["value"] > 0.4
    assert rows["rmse_of_mean_gap"]["unit"] == "time"
    assert ("accuracy_by_head" in rows) == ("rmse_by_head" in rows) == (options.type_weight > 0)
    assert rows["integral_error"]["value"] < 0.01
    points = [row for row in found if row["metric"] == "residual_quantile"]
    assert len(points) == 100
    assert all(earlier["exponential"] < later["exponential"] for earlier, later in pairwise(points))
    assert 0 <= rows["residual_p_value"]["value"] <= 1


def test_it_is_learned() -> None:
    """Few steps lower the likelihood of what was not trained on, near to the true one."""
    task = replace(FEW, sequences=100, head="mixture").prepare()
    model = task.build(Favor(features=16), SMALL, torch.Generator().manual_seed(0))
    before = task.evaluate(model, torch.Generator())["nll"]
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for step in range(30):
        losses = task.loss(model.train(), drawn(task, 8, step))
        optimizer.zero_grad()
        (losses.total / losses.number).backward()
        optimizer.step()
    after = {row["metric"]: row["value"] for row in task.final(model)}
    assert task.evaluate(model, torch.Generator())["nll"] < before - 0.1
    assert after["nll_above_truth"] < 0.12


def test_samples_are_last_events() -> None:
    task = FEW.prepare()
    model = task.build(Softmax(), SMALL)
    samples = task.samples(model, torch.Generator().manual_seed(0), 4)
    assert len(samples) == 4
    names = {task.data.development.names[at]: at for at in range(len(task.data.development.names))}
    for sample in samples:
        at = names[sample["given"].split(",")[0]]
        last = task.data.development.types[task.data.development.offsets[at + 1] - 1]
        assert sample["right"] == str(last)
        assert sample["answered"] in ("0", "1")
        assert "expected after" in sample["given"]


def test_what_was_learned_works_without_the_data(tmp_path: Path) -> None:
    path = write(tmp_path / "e.csv", random_sequences([12] * 20))
    options = from_file(path)
    task = options.prepare()
    model = task.build(Linear(), SMALL, torch.Generator().manual_seed(0))
    learned = json.loads(json.dumps(task.learned))
    before = task.predict(model, path)
    new = tmp_path / "new.csv"
    path.rename(new)
    later = options.prepare(learned)
    copy = later.build(Linear(), SMALL)
    copy.load_state_dict(model.state_dict())
    assert later.predict(copy, new)[:2] == before[:2]
    with pytest.raises(SubquadError, match="there is no file or folder"):
        drawn(later)


def test_data_that_have_changed_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "e.csv", random_sequences([12] * 20))
    learned = from_file(path).prepare().learned
    write(path, random_sequences([12] * 19))
    with pytest.raises(SubquadError, match="it had 20 sequences and 240 events, they have 19 and 228; start a new run"):
        drawn(from_file(path).prepare(learned))


def test_following_is_reading(tmp_path: Path) -> None:
    """Event by event, several sequences in turns, or all at once: the same forecasts."""
    given = random_sequences([6, 3, 9], start=1.6e9)
    path = write(tmp_path / "e.csv", given)
    task = from_file(write(tmp_path / "train.csv", random_sequences([12] * 20))).prepare()
    model = task.build(Linear(), SMALL, torch.Generator().manual_seed(0))
    assert isinstance(model, EventModel)
    read = {line[0]: line for line in task.predict(model, path).lines}
    for asking in (True, False):
        follower = task.follow(model, 3)
        places = [(place, at) for at, n in enumerate(given.lengths) for place in range(n)]
        for place, at in sorted(places):
            event = given.offsets[at] + place
            follower.take([given.names[at], repr(float(given.times[event])), f"t{given.types[event]}"])
            if asking:
                follower.forecast(given.names[at])
        for name in given.names:
            found = follower.forecast(name)
            assert found[:3] == read[name][:3]
            numbers, others = (torch.tensor([float(part) for part in line[2:]]).double() for line in (found, read[name]))
            assert_close(numbers[:4] - 1.6e9, others[:4] - 1.6e9, rtol=1e-3, atol=1e-3)
            assert_close(numbers[4:], others[4:], rtol=1e-3, atol=1e-4)


def test_a_follower_forgets_and_refuses() -> None:
    task = FEW.prepare()
    follower = task.follow(task.build(Linear(), SMALL), 2)
    for words in (["a", "1", "0"], ["b", "1", "0"], ["a", "2", "1"], ["c", "5", "0"]):
        follower.take(words)
    assert list(follower.known) == ["a", "c"]
    assert follower.forgotten == 1
    assert follower.take(["c"]) is None
    assert list(follower.known) == ["a"]
    for words, said in (
        (["a", "1.5", "0"], "sequence 'a' goes back in time, from 2 to 1.5"),
        (["a", "noon", "0"], "'noon' is no time"),
        (["a", "nan", "0"], "'nan' is no time: write a finite number"),
        (["a", "3", "9"], "the model knows no type '9': it was trained on '0', '1'"),
        (["a", "3", "0", "1"], "but there are 4 words"),
        (["z"], "there is no sequence 'z' to end"),
    ):
        with pytest.raises(SubquadError, match=said):
            follower.take(words)
    assert follower.forecast("a")[:3] == ["a", "2", "2"]


def test_a_vector_for_each_event(tmp_path: Path) -> None:
    """It tells of the events up to it: those of a sequence that is cut short are the same."""
    task = from_file(write(tmp_path / "train.csv", random_sequences([12] * 20))).prepare()
    model = task.build(Linear(), SMALL, torch.Generator().manual_seed(0))
    given = random_sequences([6, 3], start=1.6e9)
    whole = task.embed(model, write(tmp_path / "e.csv", given))
    assert whole.unit == "sequence"
    assert whole.names == ["s0"] * 6 + ["s1"] * 3
    assert whole.places == [1, 2, 3, 4, 5, 6, 1, 2, 3]
    assert whole.vectors.shape == (9, 16)
    (tmp_path / "cut.csv").write_text("\n".join((tmp_path / "e.csv").read_text().splitlines()[:5]) + "\n")
    cut = task.embed(model, tmp_path / "cut.csv")
    assert_close(cut.vectors, whole.vectors[:4], rtol=1e-4, atol=1e-5)
