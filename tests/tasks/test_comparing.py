"""Every task scores single test sequences, and its rivals on the same ones."""

from typing import Any

import numpy as np
import pytest
import torch

from subquad import ModelOptions, Softmax
from subquad.tasks import TASKS
from subquad.tasks.comparing import judged_means, share_rows
from subquad.tasks.counting import class_rivals

SMALL: dict[str, dict[str, Any]] = {
    "copy": {"length": 3, "held_out": 4},
    "sorting": {"length": 9, "symbols": 3, "held_out": 4},
    "recall": {"length": 8, "pairs": 2, "keys": 3, "values": 2, "held_out": 4, "tested": 4},
    "induction": {"length": 8, "symbols": 3, "held_out": 4, "tested": 4},
    "transactions": {"clients": 60, "shortest_history": 2, "longest_history": 5},
    "events": {"sequences": 12, "inner": 4, "components": 2},
    "mlm": {"vocabulary": "bytes", "length": 16, "held_out": 4, "tested": 8},
    "lm": {"vocabulary": "bytes", "length": 16, "held_out": 64, "tested": 600},
    "images": {"side": 4, "held_out": 4, "tested": 4},
    "speech": {"bands": 8, "examples": 20, "held_out": 4, "tested": 4},
}
CAUSAL = {"copy", "sorting", "recall", "induction", "events", "lm", "images"}
MODEL = ModelOptions(layers=1, heads=1, head_dim=4)


@pytest.mark.parametrize("name", SMALL)
def test_models_and_rivals_are_scored_on_the_same_sequences(name: str) -> None:
    task = TASKS[name](**SMALL[name]).prepare()
    model = task.build(Softmax(), MODEL, torch.Generator().manual_seed(0)).eval()
    judged = task.judge(model)
    assert np.isfinite(judged.parts).all()
    assert len(judged.parts) > 1
    assert task.is_causal == (name in CAUSAL)
    rivals = task.rivals()
    assert sum(rival.is_trivial for rival in rivals.values()) == 1
    for rival in rivals.values():
        assert rival.judged._replace(parts=judged.parts) == judged._replace(parts=judged.parts)
        assert rival.judged.parts.shape == judged.parts.shape
        if judged.statistic == "ratio":
            np.testing.assert_allclose(rival.judged.parts[:, 1], judged.parts[:, 1])
    assert task.ranked_by is not None
    assert task.ranked_by.metric in task.evaluate(model, torch.Generator().manual_seed(0))
    assert all(len(lengths) and lengths.min() > 0 for lengths in task.lengths().values())


def test_judging_twice_gives_the_same_scores() -> None:
    task = TASKS["recall"](**SMALL["recall"]).prepare()
    model = task.build(Softmax(), MODEL, torch.Generator().manual_seed(0))
    np.testing.assert_array_equal(task.judge(model).parts, task.judge(model).parts)


def test_counts_of_tokens_tell_classes() -> None:
    pytest.importorskip("sklearn")
    rng = np.random.default_rng(0)
    labels = rng.integers(2, size=80)
    tokens = [rng.choice(4, size=9, p=[0.7, 0.1, 0.1, 0.1] if label else [0.1, 0.7, 0.1, 0.1]) for label in labels]
    rivals = class_rivals(tokens[:60], labels[:60], tokens[60:], labels[60:])
    shares = {name: rival.judged.parts[:, 0].mean() for name, rival in rivals.items()}
    assert shares["linear model of counts"] > 0.9 > shares["most frequent class"]
    assert [rival.is_trivial for rival in rivals.values()] == [True, False]


def test_one_class_needs_no_fit() -> None:
    pytest.importorskip("sklearn")
    tokens = [np.array([1, 2])] * 4
    rivals = class_rivals(tokens, np.zeros(4, int), tokens, np.zeros(4, int))
    assert rivals["linear model of counts"].judged.parts[:, 0].tolist() == [1.0] * 4


def test_rare_classes_are_joined_in_rows() -> None:
    rows = share_rows("train", "class", {f"c{at}": at / 10 for at in range(5)}, most=2)
    assert [(row["type"], round(row["value"], 3)) for row in rows] == [("c4", 0.4), ("c3", 0.3), ("all others", 0.3)]


def test_scores_are_ratios_of_sums() -> None:
    judged = judged_means("nll", "low", "nats", np.array([1.0, 2.0]), np.array([2, 4]))
    assert judged.parts.tolist() == [[1.0, 2.0], [2.0, 4.0]]
