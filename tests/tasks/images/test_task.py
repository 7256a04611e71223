"""Images pixel by pixel: batches, likelihood, generation, and what is refused."""

import json
import math
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import torch

from subquad import Cosformer, Favor, Hybrid, Linear, Linformer, ModelOptions, Softmax, SubquadError
from subquad.data.png import decode_png
from subquad.tasks import TASKS, Images
from subquad.tasks.base import Drawing
from subquad.tasks.images import ImagesTask
from subquad.tasks.images.heads import HeadKind
from subquad.tasks.images.model import BEGIN, PixelDecoder, Shape, log_probabilities, shifted, write
from subquad.tasks.images.shapes import sheet
from subquad.types import AttentionOptions

SMALL = ModelOptions(layers=2, heads=2, head_dim=8)
CAUSAL: list[AttentionOptions] = [Softmax(), Linear(), Favor(features=8), Hybrid(block=4)]


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.fixture
def task() -> ImagesTask:
    return Images(side=5, tested=20, held_out=10).prepare()


@pytest.fixture
def colours(tmp_path: Path) -> Images:
    """Twenty pictures of 3 x 4 pixels in three colours, all alike but for a shade."""
    rng = np.random.default_rng(0)
    base = rng.integers(0, 200, (1, 3, 4, 3))
    images = (base + rng.integers(0, 2, (20, 1, 1, 1))).astype(np.uint8)
    np.savez(tmp_path / "a.npz", train_images=images, test_images=images[:6])
    return Images(data=str(tmp_path / "a.npz"), tested=6)


def test_options_come_back_from_json() -> None:
    some = Images(data="x", side=9, head="logistics", grey=True)
    kept = json.loads(json.dumps(asdict(some)))
    assert TASKS[kept.pop("kind")](**kept) == some


def test_splits_do_not_overlap(colours: Images, task: ImagesTask) -> None:
    splits = colours.prepare().splits
    assert [len(split) for split in (splits.train, splits.development, splits.test)] == [18, 2, 6]
    assert [len(split) for split in task.splits[:3]] == [3600, 400, 500]  # drawn shapes
    assert task.shape == (5, 5, 1)
    assert np.array_equal(task.splits.train, Images(side=5).prepare().splits.train)


def test_values_are_in_reading_order(colours: Images) -> None:
    task = colours.prepare()
    batch = task.batch(3, seeded())
    assert batch.values.shape == (3, 36)
    matches = (task.splits.train.reshape(-1, 36) == batch.values[0].numpy()).all(1)
    assert matches.any()
    tokens = shifted(batch.values)
    assert tokens[:, 0].tolist() == [BEGIN] * 3
    assert torch.equal(tokens[:, 1:], batch.values[:, :-1])


@pytest.mark.parametrize("head", ["categorical", "logistics"])
def test_loss_is_the_likelihood_of_each_value_from_those_before(head: HeadKind, colours: Images) -> None:
    """Each value by itself, with nothing after it; changing a value changes no prediction up to it."""
    task = replace(colours, head=head).prepare()
    model = task.build(Linear(), SMALL, seeded()).eval()
    values = task.batch(2, seeded()).values
    with torch.no_grad():
        whole = log_probabilities(model, task.head, values)
        for place in (0, 1, 7, 35):
            alone = task.head.log_probability(model(shifted(values[:, : place + 1]))[:, -1], values[:, place])
            torch.testing.assert_close(whole[:, place], alone, rtol=1e-3, atol=1e-4)
        counted = task.loss(model, task.batch(2, seeded()))
    assert counted.number == 72
    torch.testing.assert_close(counted.total, -whole.sum())
    bits = task.bits(model, values.numpy().reshape(2, 3, 4, 3).astype(np.uint8))
    assert bits == pytest.approx(-whole.mean(1).double().numpy() / math.log(2), rel=1e-4)


@pytest.mark.parametrize("attention", CAUSAL, ids=lambda options: options.kind)
def test_writing_with_a_state_is_writing_without(attention: AttentionOptions) -> None:
    """Against the model that reads everything again for each value."""
    task = Images(side=4).prepare()
    model = task.build(attention, SMALL, seeded())
    known = task.batch(3, seeded()).values[:, :5]
    written = write(model, task.head, known, temperature=1.0, generator=seeded(3))
    values, drawing = known, seeded(3)
    with torch.no_grad():
        while values.shape[1] < 16:
            begun = torch.cat([torch.full((3, 1), BEGIN), values], dim=1)
            values = torch.cat([values, task.head.draw(model(begun)[:, -1], 1.0, drawing)[:, None]], dim=1)
    assert torch.equal(written, values)
    assert torch.equal(written[:, :5], known)


@pytest.mark.parametrize("head", ["categorical", "logistics"])
def test_a_model_has_the_size_that_is_told(head: HeadKind) -> None:
    options = Images(side=5, head=head)
    model = options.prepare().build(Softmax(), SMALL, seeded())
    assert sum(weights.numel() for weights in model.parameters()) == options.size(Softmax(), SMALL).numbers


@pytest.mark.parametrize("head", ["categorical", "logistics"])
def test_it_can_be_learned_and_drawn(head: HeadKind, colours: Images) -> None:
    task = replace(colours, head=head).prepare()
    model = task.build(Linear(), SMALL, seeded())
    before = task.bits(model, task.splits.test).mean()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-2)
    decay = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.02, total_iters=120)
    for step in range(120):
        losses = task.loss(model, task.batch(8, seeded(step)))
        optimizer.zero_grad()
        (losses.total / losses.number).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        decay.step()
    rows = {row["metric"]: row for row in task.final(model)}
    bits = rows["bits_per_dimension"]
    assert bits["value"] < before - (6 if head == "categorical" else 1)  # narrow logistics take far longer
    assert rows["bits_per_dimension_of_frequencies"]["value"] < 6  # 72 values of 256 occur
    assert bits["low"] <= bits["value"] <= bits["high"]
    assert rows["evaluated_images"]["value"] == 6
    developed = task.bits(model, task.splits.development).mean()
    assert task.evaluate(model, seeded())["bits_per_dimension"] == pytest.approx(developed)
    *halves, new = task.samples(model, seeded(), 8)
    assert len(halves) == 2  # development images
    assert all(row[name].startswith("data:image/png;base64,") for row in halves for name in ("given", "answered", "right"))
    assert new["given"] == "nothing: drawn anew"
    finished = decode_png(task.draw(model, Drawing(number=2, known=0.5)), "x")
    cut = finished[:: 128 // 3, :: 128 // 3]  # one pixel of each that was magnified
    assert cut.shape == (7, 14, 3)
    given, completed, original = (cut[:3, left : left + 4] for left in (0, 5, 10))
    assert np.array_equal(original, task.splits.test[0])
    known = 18  # one row and a half
    assert np.array_equal(given.reshape(-1)[:known], original.reshape(-1)[:known])
    assert (given.reshape(-1)[known:] == 128).all()
    assert np.array_equal(completed.reshape(-1)[:known], original.reshape(-1)[:known])
    assert decode_png(task.draw(model, Drawing(number=3, known=0.0)), "x")[::42, ::42].shape == (7, 9, 3)
    assert task.draw(model, Drawing(number=3, known=0.0)) == task.draw(model, Drawing(number=3, known=0.0))


def test_pictures_of_a_user_are_finished(colours: Images, tmp_path: Path) -> None:
    task = colours.prepare()
    model = task.build(Linear(), SMALL, seeded())
    mine = np.full((2, 3, 4, 3), 9, np.uint8)
    np.savez(tmp_path / "mine.npz", train_images=mine)
    finished = decode_png(task.draw(model, Drawing(number=1), tmp_path / "mine.npz"), "x")
    assert (finished[::42, ::42][:1, 5:9] == 9).all()
    np.savez(tmp_path / "other.npz", train_images=mine[:, :2])
    with pytest.raises(SubquadError, match="has images of 2 x 4 x 3, but the model learned images of 3 x 4 x 3"):
        task.draw(model, Drawing(number=1), tmp_path / "other.npz")


def test_a_sheet_places_pictures_side_by_side() -> None:
    pictures = np.arange(6, dtype=np.uint8).reshape(2, 3, 1, 1, 1)
    assert sheet(pictures)[..., 0].tolist() == [[0, 128, 1, 128, 2], [128] * 5, [3, 128, 4, 128, 5]]


def test_a_run_knows_its_images_again(colours: Images, tmp_path: Path) -> None:
    kept = json.loads(json.dumps(colours.prepare().learned))
    again = colours.prepare(kept)
    assert again.shape == Shape(3, 4, 3)
    assert isinstance(again.build(Linear(), SMALL), PixelDecoder)
    assert len(again.splits.train) == 18
    np.savez(tmp_path / "a.npz", train_images=np.zeros((9, 3, 4, 3), np.uint8))
    with pytest.raises(SubquadError, match="are not those that the run was made with, 18 of 3 x 4 pixels"):
        _ = colours.prepare(kept).splits


def test_what_cannot_be_learned_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SubquadError, match="linformer has no causal form"):
        Images().check_model(Linformer(), SMALL)
    with pytest.raises(SubquadError, match="an image has 256 values, too many for cosformer"):
        Images().check_model(Cosformer(max_length=100), SMALL)
    learned = ModelOptions(layers=1, heads=1, head_dim=4, positions="learned", longest=100)
    with pytest.raises(SubquadError, match="an image has 256 values, but --longest is 100"):
        Images().check_model(Linear(), learned)
    with pytest.raises(SubquadError, match="side must be at most 4096"):
        Images(side=5000)
    np.savez(tmp_path / "few.npz", train_images=np.zeros((2, 3, 4), np.uint8))
    with pytest.raises(SubquadError, match="has 2 images, too few to learn from"):
        _ = Images(data=str(tmp_path / "few.npz")).prepare().splits
    task = Images(side=5).prepare()
    with pytest.raises(SubquadError, match="are too many at once: give at most"):
        task.draw(task.build(Linear(), SMALL), Drawing(number=10**6))
