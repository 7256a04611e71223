"""A race of a user's own model."""

import sys
from multiprocessing.spawn import get_preparation_data
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import Tensor, nn

import subquad as sq
from subquad.choose import costs
from subquad.choose.own import OwnTask, divided, main_left_alone
from subquad.choose.workers import Inline
from subquad.report.choose import load_decision
from subquad.results import Run
from tests.choose.made import costs as made_costs


class Tagger(nn.Module):
    """Classes of positions, or a number of each sequence."""

    def __init__(self, attention: object, outputs: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5, 8)
        self.mix = sq.MultiheadAttention(8, heads=2, attention=attention)  # type: ignore[arg-type]
        self.head = nn.Linear(8, outputs)
        self.outputs = outputs

    def forward(self, tokens: Tensor) -> Tensor:
        mixed: Tensor = self.head(self.mix(self.embedding(tokens)))
        return mixed if self.outputs > 1 else mixed.mean(1)[:, 0]


def sequences(count: int = 60) -> Tensor:
    return torch.randint(5, (count, 6), generator=torch.Generator().manual_seed(0))


def test_the_race_ends_with_a_trained_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("subquad.choose.trials.step_seconds", lambda task, options, seed, seconds: seconds / 3.5)
    monkeypatch.setattr("subquad.choose.own._workers", lambda task, terms: Inline(lambda variant: task))
    monkeypatch.setattr(costs, "measure_costs", lambda *rest, **named: made_costs({"softmax": 1.0, "linear": 0.5}))
    inputs = sequences()
    told: list[str] = []
    choice = sq.choose(
        lambda attention: Tagger(attention, 5),
        (inputs, inputs.roll(1, 1)),
        mechanisms=["softmax", "linear"],
        budget=600,
        out=tmp_path / "race",
        say=told.append,
    )
    assert choice.model is not None
    assert choice.model(inputs).shape == (60, 6, 5)
    assert choice.attention is not None
    assert choice.attention.kind in ("softmax", "linear")
    assert str(choice)
    rows = Run.open(tmp_path / "race", "choose").rows()
    assert {row["mechanism"] for row in rows if row["metric"] == "quality"} == {"softmax", "linear", "most frequent class"}
    assert any("final" in line for line in told)


def test_usual_steps_end_the_race_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("subquad.choose.trials.step_seconds", lambda task, options, seed, seconds: seconds / 1000)
    monkeypatch.setattr("subquad.choose.own._workers", lambda task, terms: Inline(lambda variant: task))
    monkeypatch.setattr(costs, "measure_costs", lambda *rest, **named: made_costs({"softmax": 1.0}))
    inputs = sequences()
    choice = sq.choose(
        lambda attention: Tagger(attention, 5), (inputs, inputs), mechanisms=["softmax"], steps=4, out=tmp_path / "race"
    )
    rows = Run.open(tmp_path / "race", "choose").rows()
    assert {row["steps"] for row in rows if row["metric"] == "score" and row["stage"] == "final"} == {4}
    assert load_decision(Run.open(tmp_path / "race", "choose"))[1] == choice.decision
    with pytest.raises(sq.SubquadError, match="steps"):
        sq.choose(lambda attention: Tagger(attention, 5), (inputs, inputs), steps=0)


def test_numbers_have_squared_errors() -> None:
    inputs = sequences()
    targets = inputs.float().mean(1)
    task = OwnTask(lambda attention: Tagger(attention, 1), divided((inputs, targets), 0), is_causal=False, tokens=64)
    model = task.build(sq.Softmax(), sq.ModelOptions(), torch.Generator().manual_seed(0))
    judged = task.judge(model)
    assert (judged.metric, judged.good, judged.parts.shape) == ("squared_error", "low", (6, 2))
    assert task.rivals()["mean"].is_trivial
    assert set(task.evaluate(model, torch.Generator())) == {"squared_error"}


def test_positions_that_do_not_count() -> None:
    inputs = sequences()
    targets = inputs.clone()
    targets[:, 2:] = -100
    task = OwnTask(lambda attention: Tagger(attention, 5), divided((inputs, targets), 0), is_causal=False, tokens=64)
    model = task.build(sq.Softmax(), sq.ModelOptions())
    assert task.judge(model).parts[:, 1].tolist() == [2.0] * 6
    assert task.count(task.batch(3, torch.Generator())) == 6


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        ({"train": (torch.ones(2, 3), torch.ones(2))}, "must have the splits"),
        ((torch.ones(2, 3),), "pair of tensors"),
        ((torch.ones(2, 3), torch.ones(3)), "first axis"),
        ((torch.ones(0, 3), torch.ones(0)), "first axis"),
        ((torch.full((20, 3), torch.nan), torch.ones(20)), "NaN"),
    ],
)
def test_bad_data_are_refused(data: object, problem: str) -> None:
    with pytest.raises(sq.SubquadError, match=problem):
        divided(data, 0)  # type: ignore[arg-type]


def test_a_model_without_attention_is_refused() -> None:
    pair = (sequences(), sequences())
    with pytest.raises(sq.SubquadError, match="no attention of subquad"):
        sq.choose(lambda attention: nn.Linear(2, 2), pair)
    with pytest.raises(sq.SubquadError, match="there is no attention"):
        sq.choose(lambda attention: Tagger(attention, 5), pair, mechanisms=["nonsense"])


def test_new_processes_do_not_run_the_user_s_script_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = ModuleType("__main__")
    script.__file__ = str(tmp_path / "script.py")
    monkeypatch.setitem(sys.modules, "__main__", script)
    assert get_preparation_data("child")["init_main_from_path"] == script.__file__
    with main_left_alone():
        assert "init_main_from_path" not in get_preparation_data("child")
    assert get_preparation_data("child")["init_main_from_path"] == script.__file__
