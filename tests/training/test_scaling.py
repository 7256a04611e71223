"""Training in float16 with a scale of the loss.

It is for GPUs. Here it runs on the CPU, with the same scaler and autocast, past the check that refuses it there.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from subquad.cli import main
from subquad.errors import SubquadError
from subquad.results import Run
from subquad.training import TrainOptions, checkpoints
from subquad.training.loop import train
from subquad.training.scaling import Scaling
from tests.training.test_loop import OPTIONS, SIZE, TASK, KilledError, losses, make, run_of, trained

HALF = replace(OPTIONS, precision="float16")


@pytest.fixture
def _as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TrainOptions, "check_device", lambda options, device: None)


def test_a_cpu_is_refused_in_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["train", "copy", "--precision", "float16", "--out", str(tmp_path / "run")]
    if torch.accelerator.is_available():
        pytest.skip("this machine has a GPU")
    assert main(command) == 2
    assert "--precision float16 needs a GPU" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
    with pytest.raises(SubquadError, match="--precision float16 needs a GPU"):
        trained(tmp_path / "other", HALF)


@pytest.mark.usefixtures("_as_on_a_gpu")
def test_float16_trains(tmp_path: Path) -> None:
    still = replace(SIZE, dropout=0.0)
    run, _ = trained(tmp_path / "half", HALF, size=still)
    plain = losses(trained(tmp_path / "plain", size=still)[0])
    assert losses(run) != plain
    assert [loss for _, loss in losses(run)] == pytest.approx([loss for _, loss in plain], rel=0.05)
    scales = [row["value"] for row in run.rows() if row["metric"] == "loss_scale"]
    assert scales == [2.0**16] * 3


@pytest.mark.usefixtures("_as_on_a_gpu")
def test_a_run_goes_on_with_its_scale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The scale has changed by then: it grows after every third step."""
    build = torch.amp.GradScaler

    def growing(device: str, enabled: bool) -> Any:
        return build(device, init_scale=8.0, growth_interval=3, enabled=enabled)

    monkeypatch.setattr(torch.amp, "GradScaler", growing)
    whole, model = trained(tmp_path / "whole", HALF)
    assert [row["value"] for row in whole.rows() if row["metric"] == "loss_scale"] == [16.0, 64.0, 128.0]
    broken = run_of(tmp_path / "broken")

    def watch(progress: Any) -> None:
        if progress.step == 10:
            raise KilledError

    with pytest.raises(KilledError):
        train(TASK, make(), HALF, broken, seed=0, watch=watch)
    about = checkpoints.read(checkpoints.checkpoint_folders(broken.folder / "checkpoint")[-1]).about
    assert about["scaler"]["scale"] == 32.0
    resumed, again = trained(tmp_path / "broken", HALF)
    assert [row for row in resumed.rows() if row["metric"] != "tokens_per_second"] == [
        row for row in whole.rows() if row["metric"] != "tokens_per_second"
    ]
    for one, other in zip(model.state_dict().values(), again.state_dict().values(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.usefixtures("_as_on_a_gpu")
def test_a_checkpoint_without_a_scale_is_not_used(tmp_path: Path) -> None:
    run, _ = trained(tmp_path / "run")  # of float32
    with pytest.raises(SubquadError, match="lacks the scale of the loss, which float16 needs"):
        train(TASK, make(), HALF, Run.open(run.folder), seed=0)


def step_with(scaling: Scaling, gradient: float, clip: bool) -> torch.Tensor:
    """One step of plain gradient descent at rate 1 from a weight of zero."""
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    scaling.scaled((weight * gradient).sum()).backward()
    if clip:
        scaling.unscale(optimizer)
        torch.nn.utils.clip_grad_norm_([weight], 1.0)
    scaling.step(optimizer)
    return weight.detach()


@pytest.mark.parametrize("clip", [True, False])
def test_gradients_are_clipped_without_the_scale(clip: bool) -> None:
    scaling = Scaling("float16", "cpu")
    assert step_with(scaling, 0.25, clip).item() == pytest.approx(-0.25)
    assert step_with(scaling, 4.0, clip).item() == pytest.approx(-1.0 if clip else -4.0, rel=1e-4)
    assert step_with(Scaling("float32", "cpu"), 0.25, clip).item() == -0.25


def test_a_step_with_infinite_gradients_is_skipped_and_the_scale_halved() -> None:
    scaling = Scaling("float16", "cpu")
    assert step_with(scaling, float("inf"), clip=True).item() == 0
    assert scaling.scale == 2.0**15
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    steps = 0
    while True:  # gradients that stay infinite end the training
        optimizer.zero_grad()
        scaling.scaled((weight * float("inf")).sum()).backward()
        steps += 1
        if not scaling.step(optimizer):
            break
    assert steps == 30
    assert weight.item() == 0


def test_states_come_back_and_damage_is_said(tmp_path: Path) -> None:
    scaling = Scaling("float16", "cpu")
    step_with(scaling, float("inf"), clip=True)
    other = Scaling("float16", "cpu")
    other.restore(scaling.state())
    assert step_with(other, 0.5, clip=False).item() == pytest.approx(-0.5)
    assert other.scale == 2.0**15
    assert Scaling("bfloat16", "cpu").state() == {}
    damaged = {"scaler": {**scaling.state()["scaler"], "scale": -1.0}}
    checkpoints.save(tmp_path, 1, make(), None, damaged)
    with pytest.raises(SubquadError, match=r"about.json: \['scaler'\]\['scale'\] must be positive"):
        checkpoints.read(tmp_path / "step-000000001")
