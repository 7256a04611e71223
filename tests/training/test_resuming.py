"""Where a run goes on, whatever became of its checkpoints."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from subquad import SubquadError
from subquad.results import Run
from subquad.training import checkpoints
from subquad.training.loop import train
from subquad.training.resuming import Start, find_start, go_back
from tests.training.test_loop import FAST, OPTIONS, TASK, Watched, losses, make, same, trained, watched

Damage = Callable[[Path], object]


def rewrite(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Changes the fields of a JSON file, or the tensors of a safetensors file."""
    if path.suffix == ".json":
        fields = json.loads(path.read_text())
        change(fields)
        path.write_text(json.dumps(fields))
    else:
        tensors = load_file(path)
        change(tensors)
        save_file(tensors, path)


def about(**fields: Any) -> Damage:
    return lambda folder: rewrite(folder / "about.json", lambda found: found.update(fields))


def tensors(name: str, change: Callable[[dict[str, Any]], object]) -> Damage:
    return lambda folder: rewrite(folder / f"{name}.safetensors", change)


def first(found: dict[str, Any], part: str = "") -> str:
    return next(name for name in sorted(found) if name.endswith(part))


def emptied(name: str) -> Damage:
    return lambda folder: (folder / name).write_bytes(b"")


def deleted(name: str) -> Damage:
    return lambda folder: (folder / name).unlink()


def halved(name: str) -> Damage:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[: (folder / name).stat().st_size // 2])


FILES = ("about.json", "model.safetensors", "optimizer.safetensors")
DAMAGES: dict[str, Damage] = {
    **{f"{name} is empty": emptied(name) for name in FILES},
    **{f"{name} is absent": deleted(name) for name in FILES},
    **{f"{name} is cut": halved(name) for name in FILES},
    "about.json is a list": lambda folder: (folder / "about.json").write_text("[]"),
    "about.json is not text": lambda folder: (folder / "about.json").write_bytes(b"\xff\xfe"),
    "about.json is nested too deep": lambda folder: (folder / "about.json").write_text("[" * 100_000),
    "there is no step": lambda folder: rewrite(folder / "about.json", lambda found: found.pop("step")),
    "the step is a text": about(step="12"),
    "the step is negative": about(step=-1),
    "the step is another": about(step=9),
    "the rows are a text": about(rows="many"),
    "a tensor is absent": tensors("model", lambda found: found.pop(first(found))),
    "a tensor is too many": tensors("model", lambda found: found.update(more=torch.ones(2))),
    "a tensor has another shape": tensors("model", lambda found: found.update({first(found): torch.ones(3, 5)})),
    "a tensor has another type": tensors("model", lambda found: found.update({first(found): found[first(found)].int()})),
    "all moments are absent": tensors("optimizer", dict.clear),
    "all moments are absent, and so it is said": lambda folder: (
        tensors("optimizer", dict.clear)(folder),
        about(moments=0)(folder),
    ),
    "a moment is absent": tensors("optimizer", lambda found: found.pop(first(found, "exp_avg"))),
    "a moment is another's": tensors("optimizer", lambda found: found.update(other=found.pop(first(found)))),
    "a moment has another shape": tensors(
        "optimizer", lambda found: found.update({first(found, "exp_avg_sq"): torch.ones(3, 5)})
    ),
    "a moment has another type": tensors(
        "optimizer", lambda found: found.update({first(found, "exp_avg"): found[first(found, "exp_avg")].long()})
    ),
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 12 steps, with checkpoints of 8 and 12."""
    return trained(tmp_path_factory.mktemp("whole") / "run")[0].folder


@pytest.fixture
def run(whole: Path, tmp_path: Path) -> Run:
    """A copy of it, to do anything with."""
    return Run.open(Path(shutil.copytree(whole, tmp_path / "run")))


def start_of(run: Run) -> Start:
    model = make()
    optimizer = OPTIONS.build_optimizer(model.parameters())
    return find_start(
        run, lambda found: checkpoints.check_fit(found, model, optimizer), counter="step", first=OPTIONS.checkpoint_every
    )


def checkpoint(run: Run, step: int) -> Path:
    return run.folder / "checkpoint" / f"step-{step:09d}"


def steps(run: Run) -> list[int]:
    return [checkpoints.step_of(path) for path in checkpoints.checkpoint_folders(run.folder / "checkpoint")]


@pytest.mark.parametrize("damage", DAMAGES)
def test_the_checkpoint_before_a_damaged_one_is_used(damage: str, run: Run) -> None:
    DAMAGES[damage](checkpoint(run, 12))
    start = start_of(run)
    assert start.step == 8
    assert len(start.complaints) == 1
    assert "so the one before it is used" in start.complaints[0]
    assert {row["step"] for row in start.rows} == set(range(1, 9))


@pytest.mark.parametrize("damage", DAMAGES)
def test_without_a_checkpoint_a_run_is_not_started_over_by_itself(damage: str, run: Run) -> None:
    for step in (8, 12):
        DAMAGES[damage](checkpoint(run, step))
    before = run.rows_path.read_bytes()
    with pytest.raises(SubquadError, match=r"run cannot go on: none of its checkpoints .* --resume .*run --restart$"):
        start_of(run)
    assert run.rows_path.read_bytes() == before
    assert steps(run) == [8, 12]


def test_rows_that_came_after_a_checkpoint_which_is_gone(run: Run) -> None:
    shutil.rmtree(run.folder / "checkpoint")
    with pytest.raises(SubquadError, match=r"it has rows up to step 12, but no checkpoint; start over, .* --restart$"):
        start_of(run)


def test_a_run_that_was_killed_before_its_first_checkpoint_starts_again(run: Run) -> None:
    """Also between its rows and the checkpoint that they are written before."""
    shutil.rmtree(run.folder / "checkpoint")
    for last in (1, 4):
        run.keep_first_rows(sum(row["step"] <= last for row in run.rows()))
        start = start_of(run)
        assert (start.checkpoint, start.rows, start.complaints) == (None, [], [])
    checkpoint(run, 4).with_suffix(".part").mkdir(parents=True)  # what was written of it
    assert start_of(run).checkpoint is None


def test_a_run_that_is_started_over_keeps_nothing(run: Run) -> None:
    expected = losses(run)
    for step in (8, 12):
        emptied("model.safetensors")(checkpoint(run, step))
    train(TASK, model := make(), OPTIONS, run, seed=0, restart=True)
    assert losses(run) == expected
    assert steps(run) == [8, 12]
    other = make(seed=1)
    checkpoints.restore(checkpoints.read(checkpoint(run, 12)), other)
    assert same(model, other)


def test_checkpoints_whose_rows_are_gone_are_put_aside(run: Run, whole: Path) -> None:
    """A user cut the file of rows. Nothing is lost but time."""
    before = Run.open(whole).rows()
    counts = {step: json.loads((checkpoint(run, step) / "about.json").read_text())["rows"] for step in (8, 12)}
    run.keep_first_rows(counts[12] - 1)
    start = start_of(run)
    assert (start.step, len(start.rows)) == (8, counts[8])
    assert "lacks rows from before its checkpoint of step 12, which is put aside, so the one before" in start.complaints[0]
    go_back(run, start)
    assert steps(run) == [8]
    assert checkpoint(run, 12).with_suffix(".aside").exists()

    run.keep_first_rows(counts[8] - 1)
    said: list[str] = []
    train(TASK, make(), OPTIONS, run, seed=0, say=said.append)
    assert len(said) == 1
    assert "checkpoint of step 8, which is put aside; it starts over" in said[0]
    speed = "tokens_per_second"
    assert [row for row in run.rows() if row["metric"] != speed] == [row for row in before if row["metric"] != speed]


def test_a_run_of_the_version_before_goes_on(run: Run) -> None:
    """Its checkpoints do not say how many rows and moments there are."""
    expected = losses(run)
    rewrite(checkpoint(run, 12) / "about.json", lambda found: (found.pop("rows"), found.pop("moments")))
    assert start_of(run).step == 12
    shutil.rmtree(checkpoint(run, 12))
    rewrite(checkpoint(run, 8) / "about.json", lambda found: (found.pop("rows"), found.pop("moments")))
    assert {row["step"] for row in start_of(run).rows} == set(range(1, 9))
    train(TASK, make(), OPTIONS, run, seed=0)
    assert losses(run) == expected


def test_weights_are_begun_with_at_the_first_step_only(run: Run, tmp_path: Path) -> None:
    """Also at that of a run that is started over."""
    calls: list[str] = []
    train(TASK, make(), OPTIONS, run, seed=0, begin=lambda: calls.append("going on"))
    assert calls == []
    train(TASK, make(), OPTIONS, run, seed=0, begin=lambda: calls.append("starting over"), restart=True)
    assert calls == ["starting over"]


@pytest.mark.parametrize("damage", [emptied("model.safetensors"), shutil.rmtree, about(step=3)])
def test_best_weights_that_are_lost_are_said(damage: Damage, tmp_path: Path) -> None:
    run, model = watched(tmp_path / "run")
    (best,) = checkpoints.checkpoint_folders(run.folder / "best")
    damage(best)
    with pytest.raises(SubquadError, match=r"its best weights are lost: the checkpoint .*best/step-.* --restart$"):
        watched(run.folder)
    train(Watched(length=14, held_out=8), again := make(), FAST, run, seed=0, restart=True)
    assert same(model, again)


def test_best_weights_are_kept_for_the_checkpoint_before(tmp_path: Path) -> None:
    """Those that were best by the older of the two checkpoints, though better ones came later."""
    run, model = watched(tmp_path / "run")
    emptied("model.safetensors")(checkpoint(run, 12))
    assert same(model, watched(run.folder)[1])
