"""The minutes of a conversion, by a clock that only models, loading and measuring advance."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from subquad import Hybrid, Learned, Linear
from subquad.conversion import ConversionOptions, convert
from subquad.results import Row, Run
from tests.conversion.models import original
from tests.conversion.test_plan import Clock

LOADING = 12.0  # seconds before the conversion begins


class Machine:
    """A model that takes its time, and the conversion of it."""

    def __init__(self, folder: Path, token: float, kind: str = "BertModel", slower: float = 1.0) -> None:
        """`token` is the time of one token in seconds, `slower` by how much a token takes longer after a minute."""
        self.clock, self.folder, self.teacher = Clock(), folder, original(folder / "model", kind)
        self.token, self.slower = token, slower
        self.said: list[tuple[float, str]] = []
        self.read, self.teacher.outputs = self.teacher.outputs, self._outputs
        self.teacher.costs = self._costs
        self.clock.seconds = LOADING

    def convert(self, attention: Any = None, **given: Any) -> Run:
        run = Run.create(self.folder / "run", "convert", {})
        options = ConversionOptions(**{"minutes": 4.0, "batch_tokens": 64, "texts": 60, **given})

        def say(words: str) -> None:
            self.said.append((self.clock.seconds, words))

        attention = attention or Linear(Learned())
        convert(self.teacher, attention, options, run, seed=0, say=say, now=self.clock, begun=0.0)
        return run

    def _outputs(self, model: Any, batch: Any, *, logits: bool = False) -> Any:
        """A student's gradient takes twice as long as reading."""
        is_trained = torch.is_grad_enabled() and model is not self.teacher.teacher
        slower = self.slower if self.clock.seconds > 60 else 1.0
        self.clock.seconds += 0.01 + (3 if is_trained else 1) * slower * self.token * batch.tokens.numel()
        return self.read(model, batch, logits=logits)

    def _costs(self, folder: Path, length: int, seconds: float) -> Iterator[Row]:
        taken = 1e-7 * length**2
        self.clock.seconds += 2.0 + 6 * taken
        for model in ("before", "after"):
            yield {"metric": "seconds", "value": taken, "length": length, "model": model}


def spent(run: Run) -> dict[str, float]:
    return {row["what"]: row["value"] for row in run.rows() if row["metric"] == "duration"}


def steps(run: Run) -> dict[tuple[str, str], int]:
    found: dict[tuple[str, str], int] = {}
    for row in run.rows():
        if row["metric"] == "loss":
            found[row["recipe"], row["stage"]] = found.get((row["recipe"], row["stage"]), 0) + 1
    return found


def left_out(run: Run) -> list[str]:
    return [row["message"] for row in run.rows() if row["metric"] == "left out"]


@pytest.fixture(autouse=True)
def _few_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("subquad.conversion.vectors.DRAWS", 10)


@pytest.mark.parametrize("kind", ["BertModel", pytest.param("GPT2LMHeadModel", marks=pytest.mark.slow)])
@pytest.mark.parametrize("token", [0.02, pytest.param(0.04, marks=pytest.mark.slow)])
def test_minutes_count_everything(tmp_path: Path, kind: str, token: float) -> None:
    machine = Machine(tmp_path, token, kind)
    run = machine.convert(Hybrid(block=4))
    found = spent(run)
    assert found["all"] == pytest.approx(machine.clock.seconds)
    assert 0.9 * 240 <= found["all"] <= 240
    assert found["measuring"] <= 240 / 5
    assert found["training"] > 0.5 * 240
    first, words = machine.said[-0 if not left_out(run) else 1]
    assert first < 60
    assert words.startswith("conversion, original: ")
    assert next(at for at, words in machine.said if words.startswith("conversion, swapped: ")) < 60


@pytest.mark.slow
def test_recipes_share_the_time_equally(tmp_path: Path) -> None:
    run = Machine(tmp_path, 0.005, "BertForMaskedLM").convert()
    elapsed = {row["recipe"]: row["elapsed"] for row in run.rows() if row["metric"] == "loss"}
    assert list(elapsed) == ["conversion", "plain fine-tuning", "softmax fine-tuned"]
    assert max(elapsed.values()) < 1.15 * min(elapsed.values())
    matched = max(row["elapsed"] for row in run.rows() if row["metric"] == "loss" and row["stage"] == "distilled")
    assert matched == pytest.approx(0.3 * elapsed["conversion"], rel=0.1)


@pytest.mark.parametrize("slower", [pytest.param(0.3, marks=pytest.mark.slow), 3.0])
def test_minutes_are_kept_by_a_machine_whose_pace_changes(tmp_path: Path, slower: float) -> None:
    run = Machine(tmp_path, 0.02, slower=slower).convert()
    assert 0.9 * 240 <= spent(run)["all"] <= 1.05 * 240


def test_a_slow_model_does_with_less_and_says_so(tmp_path: Path) -> None:
    run = Machine(tmp_path, 0.05).convert(controls=False)
    found = spent(run)
    assert found["all"] <= 1.05 * 240
    assert found["measuring"] <= 240 / 5
    assert sum(steps(run).values()) > 10
    words = left_out(run)[0]
    assert words.startswith("to fit into 4 minutes: ")
    assert "test texts in place of 60" in words
    assert "batches of 32 tokens in place of 64" in words
    texts = {row["length"] for row in run.rows() if row["metric"] == "cosine by length"}
    assert max(texts) <= 32


def test_a_model_of_which_no_step_fits_is_left_as_it_is(tmp_path: Path) -> None:
    run = Machine(tmp_path, 1.5).convert(controls=False)
    assert spent(run)["all"] <= 1.1 * 240
    assert not steps(run)
    assert any("conversion has no time for tuning: a step takes about" in words for words in left_out(run))
    assert (run.folder / "model" / "config.json").exists()


def test_time_and_memory_are_measured_at_as_many_lengths_as_fit(tmp_path: Path) -> None:
    run = Machine(tmp_path, 0.01).convert(controls=False, cost_lengths=(512, 128, 8192, 16384, 65536))
    measured = sorted({row["length"] for row in run.rows() if row["metric"] == "seconds"})
    assert measured == [128, 512, 8192]
    assert "time and memory are measured up to 8192 tokens only: the rest does not fit into the time" in left_out(run)


def test_steps_that_are_given_are_limited_by_nothing(tmp_path: Path) -> None:
    machine = Machine(tmp_path, 1.0)
    run = machine.convert(controls=False, steps=2, tune_steps=3, cost_lengths=(128, 512))
    assert steps(run) == {("conversion", "distilled"): 2, ("conversion", "tuned"): 3}
    assert spent(run)["all"] > 10 * 240
    assert not left_out(run)
    assert {row["length"] for row in run.rows() if row["metric"] == "cosine by length"} == {32, 16, 8}


def test_a_run_that_goes_on_keeps_to_its_plan_and_counts_what_it_took_before(tmp_path: Path) -> None:
    machine = Machine(tmp_path, 0.02)
    options = ConversionOptions(minutes=4.0, batch_tokens=64, texts=60, controls=False, cost_lengths=())
    run = Run.create(tmp_path / "run", "convert", {})

    def go_on(stop: float) -> None:
        def watch(progress: Any) -> None:
            if machine.clock.seconds > stop:
                raise KeyboardInterrupt

        begun = machine.clock.seconds
        convert(machine.teacher, Linear(Learned()), options, run, seed=0, watch=watch, now=machine.clock, begun=begun)

    for stop in (100.0, 200.0):
        with pytest.raises(KeyboardInterrupt):
            go_on(stop)
    go_on(1e9)
    assert 0.9 * 240 <= spent(run)["all"] <= 1.05 * 240
    assert machine.clock.seconds - LOADING <= 1.3 * 240  # a minute at most is lost with each kill
    assert len(left_out(run)) <= 1
