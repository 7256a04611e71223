"""Training, predicting and reporting, as they are typed."""

import dataclasses
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from itertools import product
from pathlib import Path

import pytest

from subquad import Favor, Hybrid, Layers, Softmax, load
from subquad.attention import MECHANISMS
from subquad.cli import main
from subquad.cli.options import clashing
from subquad.cli.show import Output
from subquad.cli.train import LINE_SECONDS, Lines
from subquad.cli.training_options import command_parts, default_options
from subquad.results import Run
from subquad.tasks import TASKS
from subquad.training.loop import Progress
from tests.cli.test_cli import subquad

SMALL = ["--layers", "1", "--heads", "2", "--head-dim", "16", "--length", "4", "--batch", "16", "--held-out", "16"]


def losses(folder: Path) -> list[tuple[int, float]]:
    return [(row["step"], row["value"]) for row in Run.open(folder).rows() if row["metric"] == "loss"]


def test_from_training_to_an_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A model that learned to copy four symbols copies the user's, from the command line, a file and standard input."""
    options = ["--attention", "softmax", "--steps", "400", "--learning-rate", "5e-3", "--symbols", "5"]
    monkeypatch.chdir(tmp_path)
    assert main(["train", "copy", *SMALL, *options, "--out", "run"]) == 0
    found = re.search(r"token accuracy: ([\d.]+)", capsys.readouterr().out)
    assert found is not None
    assert float(found[1]) > 0.9
    assert (tmp_path / "run" / "report.html").exists()

    assert main(["predict", "run", "3", "1", "4", "1"]) == 0
    assert capsys.readouterr().out == "3 1 4 1\n"
    piped = subprocess.run(
        [sys.executable, "-m", "subquad", "predict", "run"],
        cwd=tmp_path,
        input="4 3 2\n",
        capture_output=True,
        text=True,
        check=False,
    )
    assert piped.stdout == "4 3 2\n"

    Path("lines").write_text("0 1\n\n2, 3, 4\n")
    assert main(["predict", "run", "--file", "lines"]) == 0
    assert capsys.readouterr().out == "0 1\n2 3 4\n"
    for words, said in (
        (["run", "7"], "the symbol 7 is outside the vocabulary, which goes from 0 to 4"),
        (["run", *"12341"], "the model copies 1 to 4 symbols, but was given 5"),
        (["run", "--file", "none"], "cannot read none: No such file or directory"),
        (["lines", "1"], "lines is not a run"),
    ):
        assert main(["predict", *words]) == 2
        refused = capsys.readouterr().err
        assert said in refused
        assert refused.count("\n") == 1


@pytest.mark.slow
def test_killed_at_any_moment_and_resumed_it_ends_with_the_same_curve(tmp_path: Path) -> None:
    options = ["copy", *SMALL, "--steps", "60", "--checkpoint-every", "7", "--evaluate-every", "20", "--dropout", "0.1"]
    assert subquad("train", *options, "--out", "whole", cwd=tmp_path).returncode == 0
    command = [sys.executable, "-m", "subquad", "train", *options, "--out", "broken"]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 300  # it may share its cores
    while not list((tmp_path / "broken").glob("checkpoint/step-*[0-9]")):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    done = subquad("train", "--resume", "broken", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert losses(tmp_path / "broken") == losses(tmp_path / "whole")


def torchrun(processes: int) -> list[str]:
    """The words before those of `subquad` that start so many processes; `accelerate launch --cpu` starts one without MPI."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port = listening.getsockname()[1]
    where = ["--master-addr", "127.0.0.1", "--master-port", str(port)]
    return [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(processes), *where, "-m", "subquad"]


@pytest.mark.slow
def test_two_processes_train_as_one(tmp_path: Path) -> None:
    """By torchrun, on the CPU: the same losses as one process with the same batch."""
    options = ["copy", *SMALL, "--steps", "12"]
    assert subquad("train", *options, "--out", "one", cwd=tmp_path).returncode == 0
    environment = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run(
        [*torchrun(2), "train", *options, "--out", "two"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    one, two = losses(tmp_path / "one"), losses(tmp_path / "two")
    assert [step for step, _ in two] == [step for step, _ in one]
    assert [loss for _, loss in two] == pytest.approx([loss for _, loss in one], rel=1e-4)


@pytest.mark.slow
def test_processes_do_not_wait_for_weights_that_are_not_used(tmp_path: Path) -> None:
    """A memory that is longer than the sequences is not read, and its weights have no gradient."""
    options = ["copy", *SMALL, "--attention", "infinity", "--steps", "4", "--out", "two"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run(
        [*torchrun(2), "train", *options], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_patience_without_a_metric_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "copy", *SMALL, "--steps", "2", "--patience", "1", "--out", str(tmp_path / "run")]) == 2
    assert "--patience goes by the metric" in capsys.readouterr().err


def test_a_contrastive_batch_is_not_divided(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--clients", "80", "--objective", "contrastive", "--batch", "4", "--accumulate", "4", "--steps", "1"]
    assert main(["train", "transactions", *words, "--out", str(tmp_path / "run")]) == 2
    assert "compares the clients of a batch" in capsys.readouterr().err


@pytest.mark.slow
def test_runs_are_overlaid(tmp_path: Path) -> None:
    for seed in ("0", "1"):
        for attention in ("linear", "softmax"):
            options = ["--attention", attention, "--seed", seed, "--steps", "20", "--evaluate-every", "10"]
            done = subquad("train", "copy", *SMALL, *options, "--no-page", "--out", f"{attention}{seed}", cwd=tmp_path)
            assert done.returncode == 0, done.stderr
            assert not (tmp_path / f"{attention}{seed}" / "report.html").exists()
    runs = [f"{attention}{seed}" for attention in ("linear", "softmax") for seed in "01"]
    done = subquad("report", *runs, "--figures", "figures", "--out", "all.html", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "all.html").read_text()
    assert "mean and range over seeds" in page
    assert (tmp_path / "figures" / "loss.png").exists()
    assert (tmp_path / "figures" / "token-accuracy.svg").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["train", "coppy"], "there is no task 'coppy': did you mean 'copy'?"),
        (["train", "copy", "--attention", "lineer"], "there is no attention 'lineer': did you mean 'linear'?"),
        (["train", "copy", "--attention", "linformer"], "linformer has no causal form: it mixes positions"),
        (["train", "copy", "--steps", "0"], "--steps must be positive"),
        (["train", "copy", "--length", "0"], "--length must be positive, but is 0"),
        (["train", "copy", "--layers", "0"], "--layers must be positive, but is 0"),
        (["train", "--resume", "nowhere"], "nowhere is not a run"),
        (["train", "--resume", "compared"], "compared is a run of `subquad compare`, not of `subquad train`"),
        (["predict", "compared", "1"], "compared is a run of `subquad compare`"),
        (["reproduce", "coppy"], "there is no experiment 'coppy': did you mean 'copy'?"),
    ],
)
def test_mistakes_get_one_sentence_and_code_2(
    arguments: list[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Run.create(Path("compared"), "compare", {})
    assert main(arguments) == 2
    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 1
    assert not Path("runs").exists()


def test_training_without_accelerate_is_refused_before_there_is_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "accelerate", None)
    assert main(["train", "copy", "--out", str(tmp_path / "run")]) == 2
    assert (
        "training needs the package accelerate, which is not installed: pip install 'subquad[hub]'"
        in capsys.readouterr().err
    )
    assert not (tmp_path / "run").exists()


def test_experiments_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce"]) == 0
    printed = capsys.readouterr().out
    assert "copy: linear attention converges like softmax" in " ".join(printed.split())
    assert "--scale paper" in printed


@pytest.mark.parametrize(
    ("task", "attention"), [*((task, "linear") for task in TASKS), *(("copy", name) for name in MECHANISMS)]
)
def test_options_of_tasks_and_mechanisms_have_help(task: str, attention: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", task, "--attention", attention, "--help"]) == 0
    assert "--learning-rate" in capsys.readouterr().out


@pytest.mark.parametrize(("task", "attention"), list(product(TASKS, MECHANISMS)))
def test_options_of_tasks_and_mechanisms_do_not_clash(task: str, attention: str) -> None:
    parts = command_parts(default_options(TASKS[task](), [attention], None))
    flags, names = clashing(parts), []
    for part in parts.values():
        for field in (field for field in dataclasses.fields(part) if field.init):
            name = flags.get((type(part), field.name), field.name.replace("_", "-"))
            names += [name, f"no-{name}"] if isinstance(getattr(part, field.name), bool) else [name]
    assert len(names) > 20
    assert [name for name, count in Counter(names).items() if count > 1] == []


def test_mechanisms_by_layer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    size = ["--length", "6", "--heads", "1", "--head-dim", "4", "--batch", "2", "--steps", "1", "--no-page"]
    words = ["train", "copy", "--attention", "favor*2,hybrid,softmax", "--features", "6", "--block", "5", *size]
    run = tmp_path / "run"
    assert main([*words, "--layers", "4", "--out", str(run)]) == 0
    wanted = Layers((Favor(features=6), Favor(features=6), Hybrid(block=5), Softmax()))
    assert load(run).options.attention == wanted
    assert main(["train", "copy", "--attention", "favor*2,hybrid,softmax", "--help"]) == 0
    assert "--log-gain" in capsys.readouterr().out
    for attention, layers, said in (
        ("linear*3,softmax", "6", "linear*3,softmax are the attentions of 4 layers, but the model has 6: name 6, or make"),
        ("linear,,softmax", "2", "takes a name, or names by layer such as linear*3,softmax, but was given"),
        ("linear*0,softmax", "2", "must name 1 to 1000 layers"),
        ("linear*1001", "2", "must name 1 to 1000 layers"),
        ("softmax,favour", "2", "there is no attention 'favour': did you mean 'favor'?"),
        ("softmax,linformer", "2", "linformer has no causal form"),
    ):
        assert main(["train", "copy", "--attention", attention, "--layers", layers, *size]) == 2
        assert said in capsys.readouterr().err


def test_the_last_step_is_printed_once(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Final measurements may take longer than the time after which a line is due."""
    lines = Lines(Output(), 5)
    done = Progress(5, 0.5, {"accuracy": 0.75}, 100.0)
    lines.watch(done)
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 2 * LINE_SECONDS)
    lines.watch(done._replace(is_judging=True))
    assert capsys.readouterr().out == (
        "step 5 of 5: loss 0.5, accuracy 0.7500, 100 tokens/s\ntrained; final measurements follow\n"
    )
