"""Training: the same whatever happens on the way."""

import json
import math
import shutil
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from subquad import Favor, Infinity, Linear, ModelOptions, SubquadError
from subquad.models import Decoder
from subquad.results import Run
from subquad.tasks import Copy
from subquad.tasks.base import Best, Counted
from subquad.training import TrainOptions, checkpoints
from subquad.training.loop import generator, train
from subquad.training.resuming import load_model
from subquad.types import AttentionOptions

TASK = Copy(length=6, held_out=8)
SIZE = ModelOptions(layers=1, heads=2, head_dim=8, dropout=0.1)
OPTIONS = TrainOptions(steps=12, batch=8, evaluate_every=5, checkpoint_every=4)


def make(attention: AttentionOptions | None = None, size: ModelOptions = SIZE, seed: int = 0) -> Decoder:
    model = TASK.build(attention or Linear(), size, generator(seed, 100))
    assert isinstance(model, Decoder)
    return model


def run_of(folder: Path) -> Run:
    return Run.create(folder, "train", {}) if not folder.exists() else Run.open(folder)


def losses(run: Run) -> list[tuple[int, float]]:
    return [(row["step"], row["value"]) for row in run.rows() if row["metric"] == "loss"]


def trained(folder: Path, options: TrainOptions = OPTIONS, **given: Any) -> tuple[Run, Decoder]:
    run, model = run_of(folder), make(**given)
    train(TASK, model, options, run, seed=0)
    return run, model


class KilledError(Exception):
    """In the place of SIGKILL, which leaves no trace either."""


@pytest.mark.parametrize("kill_at", [1, 4, 7, 11])
def test_a_killed_run_goes_on_bit_by_bit(kill_at: int, tmp_path: Path) -> None:
    whole, model = trained(tmp_path / "whole")
    broken = run_of(tmp_path / "broken")

    def watch(progress: Any) -> None:
        if progress.step == kill_at:
            raise KilledError

    with pytest.raises(KilledError):
        train(TASK, make(), OPTIONS, broken, seed=0, watch=watch)
    resumed, again = trained(tmp_path / "broken")
    assert losses(resumed) == losses(whole)
    assert [row for row in resumed.rows() if row["metric"] == "token_accuracy"] == [
        row for row in whole.rows() if row["metric"] == "token_accuracy"
    ]
    for one, other in zip(model.state_dict().values(), again.state_dict().values(), strict=True):
        assert torch.equal(one, other)


def test_it_is_told_when_the_final_measurements_begin(tmp_path: Path) -> None:
    run, seen = run_of(tmp_path / "run"), []

    def watch(progress: Any) -> None:
        has_samples = any(row["metric"] == "sample" for row in run.rows())
        seen.append((progress.step, progress.is_judging, has_samples))

    train(TASK, make(), OPTIONS, run, seed=0, watch=watch)
    assert [told[:2] for told in seen[-3:]] == [(11, False), (12, True), (12, False)]
    assert not seen[-2][2]


def test_rows_of_a_run(tmp_path: Path) -> None:
    run, _ = trained(tmp_path / "run")
    assert [step for step, _ in losses(run)] == list(range(1, 13))
    evaluated = [row["step"] for row in run.rows() if row["metric"] == "sequence_accuracy"]
    assert evaluated == [5, 10, 12]
    samples = [row for row in run.rows() if row["metric"] == "sample"]
    assert len(samples) == 8
    assert {"given", "answered", "right"} <= samples[0].keys()
    kept = sorted(path.name for path in (run.folder / "checkpoint").iterdir())
    assert kept == ["step-000000008", "step-000000012"]


def test_two_runs_of_one_seed_are_the_same_and_seeds_differ(tmp_path: Path) -> None:
    first, second = (losses(trained(tmp_path / name)[0]) for name in "ab")
    assert first == second
    other = run_of(tmp_path / "c")
    train(TASK, make(seed=1), OPTIONS, other, seed=1)
    assert losses(other) != first


@pytest.mark.parametrize("changed", [{"accumulate": 4}, {"recompute": True}])
def test_saving_memory_changes_the_loss_by_rounding_only(changed: dict[str, Any], tmp_path: Path) -> None:
    still = replace(SIZE, dropout=0.0)
    plain = losses(trained(tmp_path / "plain", size=still)[0])
    saved = losses(trained(tmp_path / "saved", replace(OPTIONS, **changed), size=still)[0])
    assert [loss for _, loss in saved] == pytest.approx([loss for _, loss in plain], rel=1e-4)


def test_bfloat16_trains(tmp_path: Path) -> None:
    found = losses(trained(tmp_path / "run", replace(OPTIONS, precision="bfloat16"), size=replace(SIZE, dropout=0.0))[0])
    plain = losses(trained(tmp_path / "plain", size=replace(SIZE, dropout=0.0))[0])
    assert found != plain
    assert [loss for _, loss in found] == pytest.approx([loss for _, loss in plain], rel=0.05)


def test_training_learns(tmp_path: Path) -> None:
    """To copy one symbol of four."""
    task, run = Copy(length=1, symbols=4, held_out=64), run_of(tmp_path / "run")
    model = task.build(Linear(), replace(SIZE, dropout=0.0), generator(0, 100))
    train(task, model, TrainOptions(steps=150, batch=16, learning_rate=1e-2), run, seed=0)
    found = [loss for _, loss in losses(run)]
    assert found[0] > 1.0
    assert sum(found[-10:]) / 10 < 0.05
    assert run.rows()[-9]["metric"] == "tokens_per_second"
    assert [row["value"] for row in run.rows() if row["metric"] == "token_accuracy"] == [1.0]


def test_features_are_redrawn_when_asked(tmp_path: Path) -> None:
    def directions(model: Decoder) -> torch.Tensor:
        return next(buffer for name, buffer in model.named_buffers() if "feature_map" in name)

    before = directions(make(Favor(features=16))).clone()
    _, kept = trained(tmp_path / "kept", attention=Favor(features=16))
    _, drawn = trained(tmp_path / "drawn", replace(OPTIONS, redraw=5), attention=Favor(features=16))
    assert torch.equal(directions(kept), before)
    assert not torch.equal(directions(drawn), before)


def test_a_loss_that_is_not_finite_stops_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original, calls = Copy.loss, []

    def loss(self: Copy, model: Any, batch: Any) -> Any:
        calls.append(1)
        found = original(self, model, batch)
        return found._replace(total=found.total * float("nan")) if len(calls) == 7 else found

    monkeypatch.setattr(Copy, "loss", loss)
    run = run_of(tmp_path / "run")
    with pytest.raises(
        SubquadError, match=r"the loss is nan at step 7; the last good checkpoint is of step 4 .*--learning-rate"
    ):
        train(TASK, make(), OPTIONS, run, seed=0)
    assert [step for step, _ in losses(run)] == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(("steps", "stopped"), [(1, 1), (3, 2)])
def test_weights_that_are_not_finite_stop_the_run(tmp_path: Path, steps: int, stopped: int) -> None:
    """A mechanism that is given NaN complains about its inputs. The user is told what to do about the training."""
    with pytest.raises(SubquadError, match=rf"the loss is nan at step {stopped}; .*--learning-rate"):
        trained(tmp_path / "run", replace(OPTIONS, learning_rate=3e38, steps=steps, clip=0.0))


def test_a_truncated_checkpoint_gives_way_to_the_one_before(tmp_path: Path) -> None:
    whole, _ = trained(tmp_path / "whole", replace(OPTIONS, steps=16))
    run, _ = trained(tmp_path / "run")
    file = run.folder / "checkpoint" / "step-000000012" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    said: list[str] = []
    train(TASK, make(), replace(OPTIONS, steps=16), run, seed=0, say=said.append)
    assert len(said) == 1
    assert "step-000000012 cannot be read" in said[0]
    assert "the one before it is used" in said[0]
    assert losses(run) == losses(whole)


def test_a_model_is_loaded_from_its_newest_checkpoint(tmp_path: Path) -> None:
    run, model = trained(tmp_path / "run")
    fresh = make(seed=5)
    assert load_model(run.folder, fresh, print) == 12
    for one, other in zip(model.state_dict().values(), fresh.state_dict().values(), strict=True):
        assert torch.equal(one, other)
    with pytest.raises(SubquadError, match="does not fit the model: it was made with other options"):
        load_model(run.folder, make(size=replace(SIZE, layers=2)), print)
    shutil.rmtree(run.folder / "checkpoint")
    with pytest.raises(SubquadError, match="has no checkpoint that can be read"):
        load_model(run.folder, fresh, print)


def test_no_space_left_is_said_and_nothing_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: Any) -> None:
        raise OSError(28, "No space left on device")

    run = run_of(tmp_path / "run")
    train(TASK, make(), replace(OPTIONS, steps=4), run, seed=0)
    monkeypatch.setattr(checkpoints, "save_file", full)
    with pytest.raises(SubquadError, match=r"cannot write the checkpoint of step 8 .*No space left on device; make room"):
        train(TASK, make(), OPTIONS, run, seed=0)
    assert [step for step, _ in losses(run)] == list(range(1, 9))
    assert [path.name for path in (run.folder / "checkpoint").iterdir()] == ["step-000000004"]


@pytest.mark.parametrize(
    ("options", "rates"),
    [
        (TrainOptions(steps=10, learning_rate=1.0), [1.0] * 10),
        (TrainOptions(steps=6, learning_rate=1.0, schedule="drop", drop_at=4), [1.0] * 4 + [0.1] * 2),
        (TrainOptions(steps=4, learning_rate=1.0, warm_up=4), [0.25, 0.5, 0.75, 1.0]),
    ],
)
def test_schedules(options: TrainOptions, rates: list[float]) -> None:
    assert [options.rate(step) for step in range(options.steps)] == pytest.approx(rates)


def test_the_cosine_falls_to_zero() -> None:
    options = TrainOptions(steps=100, learning_rate=1.0, schedule="cosine", warm_up=10)
    rates = [options.rate(step) for step in range(101)]
    assert rates[9] == pytest.approx(1.0)
    assert rates[55] == pytest.approx(0.5)
    assert rates[100] == pytest.approx(0.0)
    assert all(later <= earlier for earlier, later in pairwise(rates[9:]))


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"steps": 0}, "steps must be positive, but is 0"),
        ({"learning_rate": 0.0}, "learning_rate must be positive, but is 0.0"),
        ({"learning_rate": math.nan}, "learning_rate must be a finite number, but is nan"),
        ({"batch": 10, "accumulate": 4}, "--batch must be a multiple of --accumulate"),
    ],
)
def test_options_that_cannot_be_run(values: dict[str, Any], words: str) -> None:
    with pytest.raises(SubquadError, match=words):
        TrainOptions(**values)


def test_checkpoints_are_readable_by_others(tmp_path: Path) -> None:
    run, model = trained(tmp_path / "run")
    folder = run.folder / "checkpoint" / "step-000000012"
    counts = {"rows": len(run.rows()), "moments": 3 * len(list(model.parameters()))}
    assert json.loads((folder / "about.json").read_text()) == {"step": 12, "seed": 0, **counts}
    from safetensors.torch import load_file

    assert load_file(folder / "model.safetensors").keys() == model.state_dict().keys()


class Watched(Copy):
    """A task with a metric that falls and rises again, by the weights alone: how far a bias is from where it was once."""

    best: ClassVar[Best | None] = Best("distance", "low")
    units: ClassVar = {"distance": "m"}

    def evaluate(self, model: Any, generator: torch.Generator) -> dict[str, float]:
        bias = model.blocks[0].norm_feed.bias
        return {"distance": float((bias.detach() - TURN).abs().sum())}


TURN = 0.012  # where the largest biases are after about half of the steps
FAST = replace(OPTIONS, evaluate_every=2, learning_rate=3e-3, optimizer="adamw")


def watched(folder: Path, options: TrainOptions = FAST, watch: Any = lambda progress: None) -> tuple[Run, Decoder]:
    task, run = Watched(length=14, held_out=8), run_of(folder)
    model = make()
    train(task, model, options, run, seed=0, watch=watch)
    return run, model


def distances(run: Run) -> dict[int, float]:
    return {row["step"]: row["value"] for row in run.rows() if row["metric"] == "distance"}


def same(one: Decoder, other: Decoder) -> bool:
    return all(torch.equal(*pair) for pair in zip(one.state_dict().values(), other.state_dict().values(), strict=True))


def test_the_best_weights_are_kept(tmp_path: Path) -> None:
    """They are those that the run had then, and what is used afterwards; the run itself went on to its end."""
    run, model = watched(tmp_path / "run")
    found = distances(run)
    best = min(found, key=lambda step: found[step])
    assert 2 < best < 12
    assert [row["value"] for row in run.rows() if row["metric"] == "best_step"] == [best]
    assert {row["unit"] for row in run.rows() if row["metric"] == "distance"} == {"m"}
    assert same(model, watched(tmp_path / "short", replace(FAST, steps=best, keep_best=False))[1])
    loaded = make(seed=3)
    assert load_model(run.folder, loaded, print) == best
    assert same(loaded, model)
    last_run, last = watched(tmp_path / "last", replace(FAST, keep_best=False))
    assert not same(last, model)
    assert not (last_run.folder / "best").exists()
    kept, _ = checkpoints.load(run.folder / "checkpoint")
    assert kept is not None
    assert kept.step == 12
    checkpoints.restore(kept, loaded)
    assert same(loaded, last)


@pytest.mark.parametrize("kill_at", [5, 9, 11])
def test_the_best_weights_survive_a_kill(kill_at: int, tmp_path: Path) -> None:
    whole, model = watched(tmp_path / "whole")

    def watch(progress: Any) -> None:
        if progress.step == kill_at:
            raise KilledError

    with pytest.raises(KilledError):
        watched(tmp_path / "broken", watch=watch)
    resumed, again = watched(tmp_path / "broken")
    assert distances(resumed) == distances(whole)
    assert same(model, again)
    finished, once_more = watched(tmp_path / "broken")
    assert same(model, once_more)
    assert [row for row in finished.rows() if row["metric"] == "best_step"] == [
        row for row in whole.rows() if row["metric"] == "best_step"
    ]


class Undefined(Copy):
    """A task with a metric that is not defined for its few sequences."""

    def evaluate(self, model: Any, generator: torch.Generator) -> dict[str, float]:
        return super().evaluate(model, generator) | {"auroc": math.nan}


def test_a_metric_that_is_not_defined_has_no_row(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run")
    train(Undefined(length=6, held_out=8), make(), OPTIONS, run, seed=0)
    assert "auroc" not in {row["metric"] for row in Run.open(run.folder).rows()}


class Cut(Copy):
    """A task whose batches come in pieces: here the sequences of a batch, some at a time."""

    def pieces(self, batch: Any) -> int:
        return 2

    def losses(self, model: Any, batch: Any) -> Iterator[Counted]:
        for at in range(2):
            yield self.loss(model, type(batch)(*(part[at::2] for part in batch)))


def test_pieces_add_up(tmp_path: Path) -> None:
    still, found = replace(SIZE, dropout=0.0), []
    for name, kind in (("whole", Copy), ("cut", Cut)):
        run, task = run_of(tmp_path / name), kind(length=14, held_out=8)
        train(task, make(size=still), OPTIONS, run, seed=0)
        found.append([loss for _, loss in losses(run)])
    assert found[1] == pytest.approx(found[0], rel=1e-4)


def test_a_module_can_add_a_term_to_the_loss(tmp_path: Path) -> None:
    """A heavy divergence pulls the densities to the prior's width; without it they stay where they started."""
    options = replace(OPTIONS, steps=40, optimizer="adamw", learning_rate=3e-2, evaluate_every=50, checkpoint_every=50)
    spreads = []
    for weight in (0.0, 100.0):
        given = Infinity(segment=4, basis=8, widths=(0.1,), divergence=weight, prior_width=0.1)
        _, model = trained(tmp_path / str(weight), options, attention=given)
        bias = next(value for name, value in model.named_parameters() if name.endswith("attend.bias"))
        spreads.append(float(torch.nn.functional.softplus(bias.detach()[:, 1]).sqrt().mean()))
    assert spreads[0] == pytest.approx(0.25, abs=0.03)
    assert spreads[1] < 0.2
