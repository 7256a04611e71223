"""The contract of a task: one that is added from outside, with one class and one line, works with every command."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import subquad
from subquad import ModelOptions, SubquadError
from subquad.attention import MECHANISMS
from subquad.checking import Count
from subquad.cli import main
from subquad.models import Decoder, Size, decoder_size
from subquad.results import Run
from subquad.tasks import TASKS
from subquad.tasks.base import Best, Counted, DataSize, Defaults, LineForm, Task, TaskOptions
from subquad.training import TrainOptions
from subquad.types import AttentionOptions


class BitBatch(NamedTuple):
    bits: Tensor
    parity: Tensor


@dataclass(frozen=True)
class Parity(TaskOptions, Task[BitBatch]):
    """Whether a sequence of bits has an odd number of ones."""

    length: Count = 6
    features: Count = 2  # a name that favor has as well
    steps: Count = 5  # a name that the training has as well
    kind: str = field(default="parity", init=False)

    best: ClassVar[Best | None] = Best("accuracy", "high")
    line_form: ClassVar[LineForm] = "words"
    default_notes: ClassVar[str] = "Batches of long sequences are smaller."

    def defaults(self, attention: str, data: DataSize | None = None) -> Defaults:
        training = {"steps": 3, "batch": 8 if data is None else data.sequences, "evaluate_every": 2, "checkpoint_every": 2}
        shape = {"layers": 1, "heads": 2, "head_dim": 4}
        return Defaults(shape, training, {"features": 6} if attention == "favor" else {})

    @property
    def data_size(self) -> DataSize:
        return DataSize(64 // self.length, 64)

    def size(self, attention: AttentionOptions, model: ModelOptions) -> Size:
        return decoder_size(2, attention, model, positions=self.length)

    def prepare(self, learned: Mapping[str, Any] | None = None) -> "Parity":
        return self

    def build(self, attention: AttentionOptions, model: ModelOptions, generator: torch.Generator | None = None) -> Decoder:
        return Decoder(2, attention, model, generator=generator)

    def batch(self, size: int, generator: torch.Generator) -> BitBatch:
        bits = torch.randint(2, (size, self.length), generator=generator)
        return BitBatch(bits, bits.sum(1) % 2)

    def loss(self, model: nn.Module, batch: BitBatch) -> Counted:
        return Counted(F.cross_entropy(model(batch.bits, last=1)[:, 0], batch.parity, reduction="sum"), self.count(batch))

    def count(self, batch: BitBatch) -> int:
        return len(batch.parity)

    @torch.no_grad()
    def evaluate(self, model: nn.Module, generator: torch.Generator) -> dict[str, float]:
        batch = self.batch(16, generator)
        return {"accuracy": float((model(batch.bits, last=1)[:, 0].argmax(1) == batch.parity).float().mean())}

    @torch.no_grad()
    def reply(self, model: nn.Module, words: Sequence[str]) -> str:
        bits = torch.tensor([[int(word) for word in words]])
        return "odd" if model(bits, last=1)[0, 0].argmax() else "even"


@pytest.fixture
def parity(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setitem(TASKS, "parity", Parity)
    return "parity"


def test_a_task_from_outside_is_taken_by_every_command(
    parity: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = str(tmp_path / "run")
    assert main(["train", parity, "--attention", "favor", "--length", "8", "--out", run]) == 0
    options = Run.open(Path(run)).about["options"]
    assert options["task"] == {"length": 8, "features": 2, "steps": 5, "kind": "parity"}
    assert (options["training"]["steps"], options["training"]["batch"]) == (3, 8)  # of 64 positions, 8 sequences
    assert (options["mechanism"]["features"], options["model"]["layers"]) == (6, 1)
    assert main(["train", "--resume", run]) == 0
    capsys.readouterr()
    assert main(["predict", run, "0", "1", "1"]) == 0
    assert capsys.readouterr().out in ("odd\n", "even\n")
    assert main(["report", run]) == 0
    assert main(["spectrum", run, "--sequences", "2", "--out", str(tmp_path / "spectrum")]) == 0
    assert subquad.load(run).reply("0, 1") in ("odd", "even")


def test_what_a_task_cannot_do_is_said_in_a_sentence(
    parity: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = str(tmp_path / "run")
    assert main(["train", parity, "--no-page", "--out", run]) == 0
    capsys.readouterr()
    for words, said in (
        (
            ["predict", run, "--data", str(tmp_path)],
            "a model of parity answers sequences and gives no scores: give a sequence",
        ),
        (["predict", run, "--follow"], "a model of parity follows no stream: --follow is for runs on events"),
        (["spectrum", run, "--text", "x"], "a model of parity is looked at with sequences of its task: leave --text and"),
    ):
        assert main(words) == 2
        assert said in capsys.readouterr().err
    task = Parity()
    with pytest.raises(SubquadError, match="a model of parity starts with fresh weights: leave --start out"):
        task.begin(nn.Identity(), nn.Identity())


def test_options_of_one_name_are_told_apart(parity: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = str(tmp_path / "run")
    given = ["--task-steps", "4", "--steps", "2", "--features", "3", "--attention-features", "10"]
    assert main(["train", parity, "--attention", "favor", *given, "--no-page", "--out", run]) == 0
    options = Run.open(Path(run)).about["options"]
    assert (options["task"]["steps"], options["training"]["steps"]) == (4, 2)
    assert (options["task"]["features"], options["mechanism"]["features"]) == (3, 10)
    capsys.readouterr()
    assert main(["train", parity, "--accumulate", "40", "--batch", "40", "--no-page", "--out", run + "2"]) == 0
    assert main(["train", parity, "--attention", "favor", "--attention-features", "0"]) == 2
    assert "--attention-features must be positive, but is 0" in capsys.readouterr().err


def test_defaults_are_shown_and_given_options_count(parity: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", parity, "--help"]) == 0
    shown = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "Batches of long sequences are smaller." in shown
    assert "--head-dim INT dimension of one head's queries, keys and values (default: 4)" in shown


@pytest.mark.parametrize(("name", "attention"), list(product(TASKS, MECHANISMS)))
def test_declared_defaults_are_options(name: str, attention: str) -> None:
    """They name options that there are, with values that these take, for data of any size."""
    options: Any = TASKS[name]
    for given, size in product((options(), *([options(data="x")] if "data" in options.__dataclass_fields__ else [])), SIZES):
        declared = given.defaults(attention, size)
        ModelOptions(**declared.model)
        TrainOptions(**declared.training)
        mechanism: Any = MECHANISMS[attention]
        mechanism(**declared.attention)


SIZES = (None, DataSize(1, 2), DataSize(1400, 52_000), DataSize(90, 300_000), DataSize(10**6, 10**9))


def test_an_attention_that_does_not_fit_is_refused_before_data_are_read(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "events", "--data", "nowhere", "--attention", "linformer"]) == 2
    assert "linformer has no causal form" in capsys.readouterr().err
    assert main(["train", "mlm", "--text", "nowhere", "--positions", "learned", "--longest", "8"]) == 2
    assert "--length is 256, but the model learns 8 positions" in capsys.readouterr().err


def test_batches_and_steps_of_events_go_by_the_data() -> None:
    def training(sequences: int, mean_length: int) -> tuple[int, int]:
        found = TASKS["events"](data="x").defaults("linear", DataSize(sequences, sequences * mean_length))  # type: ignore[call-arg]
        return found.training["batch"], found.training["steps"]

    assert training(1400, 37) == (64, 500)  # Taxi
    assert training(1401, 65) == (64, 480)  # StackOverflow
    assert training(90, 3319) == (4, 150)  # the order book
    assert training(1000, 600) == (16, 208)
    assert training(100_000, 50) == (64, 4687)  # three rounds
