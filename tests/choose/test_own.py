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
from subquad.choose.own import in_python, main_left_alone
from subquad.choose.own_task import OwnTask, divided
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


def test_attentions_of_others_are_raced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    yours = "tests.attention.foreign:Weighted"
    monkeypatch.setattr("subquad.choose.trials.step_seconds", lambda task, options, seed, seconds: seconds / 1000)
    monkeypatch.setattr("subquad.choose.own._workers", lambda task, terms: Inline(lambda variant: task))
    monkeypatch.setattr(costs, "measure_costs", lambda *rest, **named: made_costs({"softmax": 1.0, yours: 0.5}))
    inputs = sequences()
    with pytest.warns(UserWarning, match="foreign:Nothing is left out: tests.attention.foreign has no 'Nothing'"):
        choice = sq.choose(
            lambda attention: Tagger(attention, 5),
            (inputs, inputs),
            mechanisms=["softmax", yours, "tests.attention.foreign:Nothing"],
            steps=2,
            out=tmp_path / "race",
        )
    assert choice.model is not None
    rows = Run.open(tmp_path / "race", "choose").rows()
    assert {row["mechanism"] for row in rows if row["metric"] == "test_score"} == {"softmax", yours}
    assert [row["mechanism"] for row in rows if row["metric"] == "left out"] == ["tests.attention.foreign:Nothing"]


def test_what_the_model_cannot_take_is_left_out_with_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("subquad.choose.trials.step_seconds", lambda task, options, seed, seconds: seconds / 1000)
    monkeypatch.setattr("subquad.choose.own._workers", lambda task, terms: Inline(lambda variant: task))
    monkeypatch.setattr(costs, "measure_costs", lambda *rest, **named: made_costs({"softmax": 1.0}))

    def fussy(attention: sq.Softmax) -> nn.Module:
        if attention.kind == "linear":
            raise sq.SubquadError("this model needs weights that are positive")
        return Tagger(attention, 5)

    race = tmp_path / "race"
    with pytest.warns(UserWarning, match="linear is left out: this model needs weights that are positive"):
        sq.choose(fussy, (sequences(), sequences()), mechanisms=["softmax", "linear"], steps=2, out=race)  # type: ignore[arg-type]
    assert [row["mechanism"] for row in Run.open(race, "choose").rows() if row["metric"] == "left out"] == ["linear"]


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


def test_numbers_on_an_axis_of_their_own_are_not_spread_over_all_targets() -> None:
    class Column(Tagger):
        def forward(self, tokens: Tensor) -> Tensor:
            return super().forward(tokens)[:, None]

    inputs = sequences()
    pairs = divided((inputs, inputs.float().mean(1)), 0)
    plain = OwnTask(lambda attention: Tagger(attention, 1), pairs, is_causal=False, tokens=64)
    column = OwnTask(lambda attention: Column(attention, 1), pairs, is_causal=False, tokens=64)
    models = [task.build(sq.Softmax(), sq.ModelOptions(), torch.Generator().manual_seed(0)) for task in (plain, column)]
    assert torch.equal(torch.tensor(plain.judge(models[0]).parts), torch.tensor(column.judge(models[1]).parts))
    batch = plain.batch(4, torch.Generator().manual_seed(0))
    assert plain.loss(models[0], batch).total == column.loss(models[1], batch).total


def test_a_model_that_does_not_fit_the_data_is_refused() -> None:
    inputs = sequences()
    with pytest.raises(sq.SubquadError, match=r"the shape \(2, 6, 2\) for targets of the shape \(2,\)"):
        sq.choose(lambda attention: Tagger(attention, 2), (inputs, inputs.float().mean(1)))
    with pytest.raises(sq.SubquadError, match="cannot be trained on these data, it raises IndexError"):
        sq.choose(lambda attention: Tagger(attention, 3), (inputs, inputs))


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
    with pytest.raises(sq.SubquadError, match="there is no attention 'nonsense'"):
        sq.choose(lambda attention: Tagger(attention, 5), pair, mechanisms="nonsense")
    with pytest.raises(sq.SubquadError, match="move it to a module"):
        sq.choose(lambda attention: Tagger(attention, 5), pair, mechanisms=["__main__:Mine"])


def test_sentences_name_arguments_instead_of_options() -> None:
    said = "Start again with --budget 8m: fewer --mechanisms take less time, or a larger budget, such as --budget 2h, does."
    assert in_python(said) == (
        "Start again with budget=480: fewer mechanisms take less time, or a larger budget, such as budget=7200, does."
    )
    assert in_python("go on with --resume and a larger --budget.") == "start again with a larger budget."
    assert in_python("No attention keeps --max-seconds: allow more.") == "No attention keeps max_seconds: allow more."


def test_new_processes_do_not_run_the_user_s_script_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = ModuleType("__main__")
    script.__file__ = str(tmp_path / "script.py")
    monkeypatch.setitem(sys.modules, "__main__", script)
    assert get_preparation_data("child")["init_main_from_path"] == script.__file__
    with main_left_alone():
        assert "init_main_from_path" not in get_preparation_data("child")
    assert get_preparation_data("child")["init_main_from_path"] == script.__file__
