"""The experiment on transactions: verdicts on scores that are known, and a tiny run for real."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from subquad.attention import Linear, Softmax
from subquad.cli import main
from subquad.experiments.transactions import costs as transaction_costs
from subquad.experiments.transactions import verdicts
from subquad.experiments.transactions.grid import SCALES
from subquad.experiments.transactions.verdicts import Scores, cheaper, compared, difference, gather, quality
from subquad.models import ModelOptions
from subquad.results import Run
from subquad.tasks import Transactions
from subquad.training import TrainOptions


def scores(strength: float, folds: int = 2, clients: int = 400) -> dict[int, Scores]:
    """Normal scores whose classes lie `strength` apart. The noise is the same for every strength."""
    found = {}
    for fold in range(folds):
        rng = np.random.default_rng(fold)
        labels = rng.integers(0, 2, clients)
        found[fold] = Scores(labels, rng.standard_normal(clients) + strength * labels)
    return found


def test_quality_is_the_mean_auroc() -> None:
    found = quality(scores(1.0))
    assert found.value == pytest.approx(0.76, abs=0.03)  # Phi(1 / sqrt 2)
    assert found.low < found.value < found.high
    assert found.high - found.low < 0.1


def test_differences_are_paired() -> None:
    """On the same clients with the same noise a small difference is certain, though the intervals overlap widely."""
    better, worse = scores(1.2), scores(1.0)
    assert quality(better).low < quality(worse).high
    assert difference(better, worse).low > 0
    same = difference(better, better)
    assert (same.low, same.value, same.high) == (0, 0, 0)


def test_verdicts_say_what_is_real() -> None:
    by_name = {"softmax": scores(1.0), "linear": scores(1.3), "boosting": scores(3.0)}
    found = {verdict.claim: verdict.held for verdict in compared("", by_name, best=quality(scores(1.0)).value + 0.01)}
    assert found["softmax comes within 0.02 of the best possible AUROC"] is True
    assert found["linear has a higher AUROC than softmax"] is True
    assert found["linear has a higher AUROC than boosting"] is False


def test_cost_is_judged_at_the_long_length() -> None:
    row = {"metric": "times_softmax", "work": "training", "length": 8192, "mechanism": "linear"}
    ranges = [(0.1, 0.2, 0.22), (0.28, 0.3, 0.4), (0.1, 0.2, 0.3)]
    measured = [row | {"low": low, "value": value, "high": high} for low, value, high in ranges]
    assert [verdict.held for verdict in cheaper(measured)] == [True, False, None]  # the last range holds the quarter


def test_real_data_are_for_experiments_that_take_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "copy", "--data", str(tmp_path)]) == 2
    assert "leave out --data" in capsys.readouterr().err
    assert main(["reproduce", "transactions", "--data", str(tmp_path / "absent")]) == 2
    assert "there is nothing at" in capsys.readouterr().err


@pytest.mark.slow
def test_a_tiny_run_is_scored_timed_and_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("sklearn", reason="the boosting baseline is scikit-learn's")
    tiny = replace(
        SCALES["quick"],
        folds=2,
        attentions={"softmax": Softmax(), "linear": Linear()},
        task=Transactions(clients=60, longest_history=70),
        model=ModelOptions(layers=1, heads=1, head_dim=8),
        training=TrainOptions(batch=4, steps=3),
    )
    monkeypatch.setitem(SCALES, "quick", tiny)
    monkeypatch.setattr(transaction_costs, "TYPICAL", 20)
    monkeypatch.setattr(transaction_costs, "LONG", 40)
    monkeypatch.setattr(verdicts, "LONG", 40)
    monkeypatch.setattr(transaction_costs, "SECONDS", 0.0)
    monkeypatch.chdir(tmp_path)
    assert main(["reproduce", "transactions", "--jobs", "2", "--out", "run"]) == 0
    rows = Run.open(Path("run/scores"), "scores").rows()
    by_name = gather(rows)[""]
    assert set(by_name) == {"softmax", "linear", "counts", "boosting"}
    assert all(set(folds) == {0, 1} for folds in by_name.values())
    tested = [len(found.labels) for found in by_name["linear"].values()]
    assert sum(tested) == 60  # every client once
    page = Path("run/report.html").read_text()
    for words in ("linear has a higher AUROC than boosting", "best possible", "peak of a step"):
        assert words in page
    before = len(rows)
    assert main(["reproduce", "transactions", "--out", "run"]) == 0  # nothing is done again
    assert len(Run.open(Path("run/scores"), "scores").rows()) == before
