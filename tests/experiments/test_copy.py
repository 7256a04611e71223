"""The copy task's replication: verdicts on rows that are known, and a tiny one for real."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from subquad.attention import Linear, Softmax
from subquad.cli import main
from subquad.compare.cells import Setting
from subquad.compare.plan import Plan
from subquad.compare.views import Comparison
from subquad.experiments.base import Timing, is_finished
from subquad.experiments.copy.grid import SCALES
from subquad.experiments.copy.verdicts import converges, is_faster, is_linear
from subquad.measure.workers import Limits
from subquad.models import ModelOptions
from subquad.results import Row
from subquad.tasks import Copy
from subquad.training import TrainOptions
from subquad.types import AttentionOptions
from tests.compare.rows import SECONDS, rows
from tests.experiments.runs import trial

TRIALS = [trial(f"copy-{name}-32-{seed}", name, 32, seed) for seed in range(2) for name in ("softmax", "linear")]


def trained(loss: float, accuracy: float) -> list[Row]:
    found: list[Row] = [{"metric": "loss", "value": 2.0 if step < 95 else loss, "step": step} for step in range(100)]
    return [*found, {"metric": "token_accuracy", "value": accuracy, "step": 99}]


@pytest.mark.parametrize(
    ("linear", "held"),
    [
        ([trained(0.001, 1.0), trained(0.001, 0.9995)], True),
        ([trained(0.001, 1.0), trained(0.001, 0.99)], False),  # one seed did not learn it
        ([trained(0.002, 1.0), trained(0.002, 1.0)], False),  # twice softmax's loss
        ([trained(0.001, 1.0)], None),  # one seed is missing
    ],
)
def test_convergence_is_judged(linear: Sequence[list[Row]], held: bool | None) -> None:
    known = {f"copy-softmax-32-{seed}": trained(0.001, 1.0) for seed in range(2)}
    known |= {f"copy-linear-32-{seed}": found for seed, found in enumerate(linear)}
    verdicts = {found.claim.split()[0]: found for found in converges(known, TRIALS)}
    assert verdicts["softmax"].held is True
    assert verdicts["linear"].held is held


def test_time_is_judged() -> None:
    timing = Comparison(rows({name: SECONDS[name] for name in ("softmax", "linear")}, views=[("causal", "update")]))
    (grows,), (faster,) = is_linear(timing), is_faster(timing)
    assert grows.held is True
    assert grows.figures.startswith("exponent 1.0")
    assert faster.held is True
    assert "linear pays from" in faster.figures
    slow = Comparison(rows({"softmax": SECONDS["linear"], "linear": SECONDS["softmax"]}, views=[("causal", "update")]))
    (grows,), (faster,) = is_linear(slow), is_faster(slow)
    assert grows.held is False
    assert faster.held is False


def test_scales_hold_what_they_promise() -> None:
    for grid in SCALES.values():
        trials = list(grid.trials())
        assert len({trial.name for trial in trials}) == len(trials)
        assert {trial.variant for trial in trials} == {"softmax", "linear", "favor"}
        assert len({trial.seed for trial in trials}) >= 5


@pytest.mark.slow
def test_a_tiny_replication_runs_goes_on_and_is_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    attentions: dict[str, AttentionOptions] = {"softmax": Softmax(), "linear": Linear()}
    plan = Plan(attentions, lengths=(8, 16, 32), whats=("update",), settings=(Setting(heads=1, head_dim=8),))
    tiny = replace(
        SCALES["quick"],
        attentions=attentions,
        seeds=(0,),
        task=Copy(held_out=4),
        model=ModelOptions(layers=1, heads=1, head_dim=8),
        training=TrainOptions(batch=4, steps=5),
        timing=Timing(plan, Limits(), budget_seconds=300),
    )
    monkeypatch.setitem(SCALES, "quick", tiny)
    monkeypatch.chdir(tmp_path)
    assert main(["reproduce", "copy", "--jobs", "2", "--out", "run"]) == 0
    page = (tmp_path / "run" / "report.html").read_text()
    for words in ("linear learns to copy at length 32", "did not hold", "Seconds of 3000 steps", "10071", "3149"):
        assert words in page
    before = (tmp_path / "run" / "copy-linear-32-0" / "rows.jsonl").read_bytes()
    assert is_finished(tmp_path / "run" / "copy-linear-32-0")
    assert main(["reproduce", "copy", "--out", "run"]) == 0  # nothing is trained again
    assert (tmp_path / "run" / "copy-linear-32-0" / "rows.jsonl").read_bytes() == before
