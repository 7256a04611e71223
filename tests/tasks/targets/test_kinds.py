"""Targets: losses, predictions and metrics, beside what they should be."""

import json
import math
from dataclasses import asdict

import numpy as np
import pytest
import torch

from subquad.tasks.targets.kinds import Classes, Labels, Number, learn_target, target_from
from subquad.tasks.targets.metrics import average_precision_draws, concordance_draws, interval_of
from subquad.tasks.targets.survival import Event
from subquad.tasks.targets.target import Target

RNG = np.random.default_rng(0)
TRUTHS: dict[str, np.ndarray] = {
    "two": RNG.integers(0, 2, (60, 1)).astype(float),
    "three": RNG.integers(0, 3, (60, 1)).astype(float),
    "labels": np.where(RNG.random((60, 3)) < 0.1, np.nan, RNG.integers(0, 2, (60, 3)).astype(float)),
    "number": RNG.normal(50, 10, (60, 1)),
    "event": np.stack([RNG.exponential(5.0, 60), RNG.integers(0, 2, 60).astype(float)], axis=1),
}
TARGETS: dict[str, Target] = {
    "two": Classes(("no", "yes")),
    "three": Classes(("a", "b", "c")),
    "labels": Labels(("old", "rich", "far")),
    "number": learn_target("number", (), TRUTHS["number"]),
    "event": learn_target("event", (), TRUTHS["event"]),
}


@pytest.mark.parametrize("name", TARGETS)
def test_the_trivial_answer_is_the_best_constant(name: str) -> None:
    """Outputs fitted without any features reach its metrics, and no resampling is needed to know them."""
    target, truth = TARGETS[name], TRUTHS[name]
    logits = torch.zeros(1, target.outputs, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([logits], max_iter=200, line_search_fn="strong_wolfe")

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = target.loss(logits.expand(len(truth), -1), torch.from_numpy(truth)).mean()
        loss.backward()
        return loss

    optimizer.step(closure)
    fitted, trivial = target.predict(logits.detach().numpy()), target.trivial(truth)
    if name != "labels":  # where clients with fewer known labels weigh each of them more
        assert fitted[:, : trivial.shape[1]] == pytest.approx(trivial, abs=0.01)
    metric = target.best.metric
    values = [target.metrics(truth, np.repeat(each, len(truth), 0), 0)[metric] for each in (fitted, trivial)]
    assert values[0] == pytest.approx(values[1], abs=0.01)
    assert len(values[0]) == 1


@pytest.mark.parametrize("name", TARGETS)
def test_right_predictions_are_better_than_random_ones(name: str) -> None:
    target, truth = TARGETS[name], TRUTHS[name]
    if isinstance(target, Number):
        right, wrong = truth, truth[::-1]
    elif isinstance(target, Event):
        hazards = np.where(np.arange(target.outputs) >= target.reached(truth)[:, None], 4.0, -4.0)
        right, wrong = target.predict(hazards), target.predict(hazards[::-1])
    else:
        numbers = np.nan_to_num(truth)
        one_hot = numbers if not isinstance(target, Classes) or target.is_binary else np.eye(3)[numbers[:, 0].astype(int)]
        right = 0.9 * one_hot + 0.05
        wrong = right[::-1]
    ours, theirs = target.metrics(truth, right), target.metrics(truth, wrong)
    assert interval_of(ours[target.deciding] - theirs[target.deciding]).low > 0
    if "log_loss" in ours:
        assert ours["log_loss"][0] < theirs["log_loss"][0]
    assert len(target.line(right[0])) == len(target.columns())
    assert target_from(json.loads(json.dumps(asdict(target))), "here") == target


def test_the_loss_of_predictions_is_their_log_loss() -> None:
    for name in ("two", "three", "labels", "event"):
        target, truth = TARGETS[name], TRUTHS[name]
        logits = RNG.standard_normal((60, target.outputs))
        loss = target.loss(torch.from_numpy(logits), torch.from_numpy(truth)).mean()
        assert target.metrics(truth, target.predict(logits), 0)["log_loss"][0] == pytest.approx(float(loss), rel=1e-5)


def test_hazards_are_likelihoods() -> None:
    """Two intervals: an event in the first, one in the second, and clients censored in either."""
    target = Event((2.0,))
    logits = torch.tensor([[0.3, -0.2]]).double()
    first, second = torch.sigmoid(logits)[0].tolist()
    truth = torch.tensor([[1.0, 1.0], [3.0, 1.0], [1.0, 0.0], [3.0, 0.0]]).double()
    wanted = [-math.log(first), -math.log((1 - first) * second), 0.0, -math.log(1 - first)]
    assert target.loss(logits.expand(4, -1), truth).tolist() == pytest.approx(wanted)


def test_concordance_by_hand() -> None:
    times, observed = np.array([1.0, 2.0, 3.0, 2.5]), np.array([1.0, 1.0, 1.0, 0.0])
    expected = np.array([1.0, 3.0, 2.0, 2.0])
    right = wrong = 0.0
    for i in range(4):
        for j in range(4):
            if times[i] < times[j] and observed[i]:
                right += 1.0 if expected[i] < expected[j] else 0.5 if expected[i] == expected[j] else 0.0
                wrong += 1.0
    assert concordance_draws(times, observed, expected, 0)[0] == right / wrong


def test_average_precision_is_that_of_scikit_learn() -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    labels, scores = RNG.integers(0, 2, 200), RNG.integers(0, 20, 200) / 20
    found = average_precision_draws(labels, scores)
    assert found[0] == pytest.approx(metrics.average_precision_score(labels, scores))
    assert interval_of(found).low < found[0] < interval_of(found).high


def test_class_weights_balance() -> None:
    target, truth = Classes(("a", "b")), np.array([[0.0]] * 9 + [[1.0]])
    weights = target.weights(truth)
    weighed = target.weigh(torch.from_numpy(truth), torch.from_numpy(weights))
    assert float(weighed[:9].sum()) == pytest.approx(float(weighed[9:].sum()))
    assert float(weighed.sum()) == pytest.approx(10)
    assert TARGETS["number"].weights(TRUTHS["number"]) is None
