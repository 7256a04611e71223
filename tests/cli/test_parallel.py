"""Trainings over several processes, as they are typed: sequences that are cut, weights that are divided, lost processes."""

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from subquad import load
from subquad.cli import main
from tests.cli.test_train import losses, torchrun

SMALL = ["--layers", "1", "--heads", "2", "--head-dim", "8", "--batch", "6", "--held-out", "4", "--no-page"]
LAUNCH = [sys.executable, "-m", "accelerate.commands.launch", "--num_machines", "1", "--mixed_precision", "no"]
LAUNCH += ["--dynamo_backend", "no", "--main_process_port", "0", "--use_fsdp"]


def run(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["copy", "--attention", "lsh"], "lsh cannot be cut over processes"),
        (["copy", "--attention", "infinity", "--sticky"], "infinity cannot be cut over processes with a sticky memory"),
        (["copy", "--length", "1"], "a sequence of 3 positions cannot be cut over 4 processes"),
        (["copy", "--attention", "hybrid", "--length", "50"], "hybrid is cut at multiples of 64"),
        (["copy", "--attention", "window", "--length", "50"], "stretches of 25, but window reaches 128 back"),
        (["copy", "--form", "encoder-decoder"], "the sequences of copy cannot be cut over processes"),
        (["sorting"], "the sequences of sorting cannot be cut over processes"),
    ],
)
def test_what_cannot_be_cut_is_refused_before_there_is_a_run(
    options: list[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["train", *options, "--layers", "1", "--sequence-parallel", "4"]) == 2
    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 1
    assert not Path("runs").exists()


def test_a_missing_backend_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("torch.accelerator.current_accelerator", lambda: None)
    monkeypatch.setattr("torch.distributed.is_backend_available", lambda name: name != "gloo")
    assert main(["train", "copy", *SMALL, "--sequence-parallel", "2"]) == 2
    assert (
        "--sequence-parallel needs gloo of torch.distributed, which this build of PyTorch lacks" in capsys.readouterr().err
    )
    assert not Path("runs").exists()


def test_a_number_of_processes_that_does_not_fit_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WORLD_SIZE", "3")
    assert main(["train", "copy", *SMALL, "--sequence-parallel", "2"]) == 2
    assert "--sequence-parallel must divide the number of processes, 3, but is 2" in capsys.readouterr().err
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    assert main(["train", "copy", *SMALL]) == 2
    assert "name the folder of the run with --out" in capsys.readouterr().err
    assert main(["train", "sorting", "--layers", "1", "--out", "run"]) == 2
    assert "the weights of a model of sorting cannot be divided among processes" in capsys.readouterr().err


@pytest.mark.slow
def test_sequences_over_processes_train_as_one(tmp_path: Path) -> None:
    """Three processes, of which one is killed in the middle; resumed, the losses are those of one process."""
    options = ["copy", "--attention", "favor", *SMALL, "--length", "20", "--steps", "60", "--checkpoint-every", "10"]
    assert main(["train", *options, "--out", str(tmp_path / "one")]) == 0
    command = [sys.executable, "-m", "subquad", "train", *options, "--sequence-parallel", "3", "--out", "three"]
    started = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 500
    while not list((tmp_path / "three").glob("checkpoint/step-*[0-9]")):
        assert time.monotonic() < deadline
        assert started.poll() is None
        time.sleep(0.02)
    children = psutil.Process(started.pid).children()
    assert len(children) == 3
    children[1].kill()
    said = started.communicate()[1]
    assert started.returncode == 2, said
    assert said.count("\n") == 1
    assert "process 2 of 3 was killed (SIGKILL)" in said
    assert "subquad train --resume three" in said
    assert not any(child.is_running() and child.status() != psutil.STATUS_ZOMBIE for child in children)
    done = run([sys.executable, "-m", "subquad", "train", "--resume", "three"], tmp_path)
    assert done.returncode == 0, done.stderr
    one, three = losses(tmp_path / "one"), losses(tmp_path / "three")
    assert [step for step, _ in three] == [step for step, _ in one]
    assert [loss for _, loss in three] == pytest.approx([loss for _, loss in one], rel=1e-3)


@pytest.mark.slow
def test_sequences_are_cut_beside_a_divided_batch(tmp_path: Path) -> None:
    """Four processes of torchrun: two halves of the batch, each sequence over two processes."""
    options = ["copy", *SMALL, "--length", "9", "--steps", "8"]
    assert main(["train", *options, "--out", str(tmp_path / "one")]) == 0
    done = run([*torchrun(4), "train", *options, "--sequence-parallel", "2", "--out", "four"], tmp_path)
    assert done.returncode == 0, done.stderr
    one, four = losses(tmp_path / "one"), losses(tmp_path / "four")
    assert [loss for _, loss in four] == pytest.approx([loss for _, loss in one], rel=1e-4)


@pytest.mark.slow
def test_divided_weights_train_as_one_and_go_on_with_other_processes(tmp_path: Path) -> None:
    """FSDP with two processes, of which one is killed, then with three: the losses and answers of one process."""
    options = ["copy", "--attention", "favor", *SMALL, "--length", "9", "--steps", "40", "--checkpoint-every", "5"]
    assert main(["train", *options, "--out", str(tmp_path / "one")]) == 0
    two = [*LAUNCH, "--num_processes", "2", "-m", "subquad", "train", *options, "--out", "many"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    started = subprocess.Popen(
        two, cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 500
    while not list((tmp_path / "many").glob("checkpoint/step-*[0-9]")):
        assert time.monotonic() < deadline
        assert started.poll() is None
        time.sleep(0.02)
    victim = next(child for child in psutil.Process(started.pid).children() if child.environ().get("RANK") == "1")
    victim.kill()
    said = started.communicate()[1]
    assert started.returncode != 0
    assert "subquad: " in said  # the other process ends with a sentence
    files = sorted(file.name for file in next((tmp_path / "many").glob("checkpoint/step-*[0-9]")).iterdir())
    assert files == ["about.json", "shard-0-of-2.safetensors", "shard-1-of-2.safetensors"]
    three = [*LAUNCH, "--num_processes", "3", "-m", "subquad", "train", "--resume", "many"]
    done = run(three, tmp_path)
    assert done.returncode == 0, done.stderr
    one, many = losses(tmp_path / "one"), losses(tmp_path / "many")
    assert [step for step, _ in many] == [step for step, _ in one]
    assert [loss for _, loss in many] == pytest.approx([loss for _, loss in one], rel=1e-3)
    assert load(tmp_path / "many").reply("1 2 3")
