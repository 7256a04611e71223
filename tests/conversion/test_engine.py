"""A conversion from its beginning to its end."""

from pathlib import Path
from typing import Any

import pytest
import torch

from subquad import Elu, Hybrid, Learned, Linear, Linformer, SubquadError
from subquad.conversion import ConversionOptions, convert, engine
from subquad.conversion.recipes import phases, recipes
from subquad.results import Run
from tests.conversion.models import hf, original

SMALL: dict[str, Any] = {"steps": 6, "tune_steps": 4, "batch_tokens": 64, "texts": 20, "controls": False}
SMALL |= {"cost_lengths": ()}


@pytest.fixture(autouse=True)
def _few_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("subquad.conversion.quality.DRAWS", 10)


def run(folder: Path) -> Run:
    return Run.create(folder, "convert", {})


def converted(teacher: Any, attention: Any, folder: Path, **given: Any) -> Run:
    made = run(folder)
    convert(teacher, attention, ConversionOptions(**{**SMALL, **given}), made, seed=0)
    return made


def values(of: Run, metric: str, **wanted: Any) -> list[float]:
    rows = [row for row in of.rows() if row["metric"] == metric]
    return [row["value"] for row in rows if all(row.get(name) == value for name, value in wanted.items())]


def timeless(of: Run) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name not in ("elapsed", "at")} for row in of.rows()]


def test_an_encoder_comes_nearer_to_itself(tmp_path: Path) -> None:
    teacher = original(tmp_path / "bert")
    kept = {name: tensor.clone() for name, tensor in teacher.teacher.state_dict().items()}
    made = converted(teacher, Linear(Learned()), tmp_path / "run", steps=40, tune_steps=40)
    cosine = {row["stage"]: row["value"] for row in made.rows() if row["metric"] == "cosine" and row["split"] == "test"}
    assert list(cosine) == ["original", "swapped", "distilled", "tuned"]
    assert cosine["swapped"] < cosine["distilled"] < cosine["tuned"] < cosine["original"] == pytest.approx(1)
    divergence = {
        stage: sum(values(made, "attention divergence", stage=stage)) for stage in ("original", "swapped", "tuned")
    }
    assert divergence["original"] < 1e-4 < divergence["tuned"] < divergence["swapped"]
    assert all(torch.equal(tensor, kept[name]) for name, tensor in teacher.teacher.state_dict().items())
    assert [row["step"] for row in made.rows() if row["metric"] == "loss"] == list(range(1, 81))
    watched = [row["step"] for row in made.rows() if row["metric"] == "cosine" and row["split"] == "watched"]
    assert watched == [*range(6, 37, 6), 40, *range(46, 77, 6), 80]


def test_the_model_in_the_folder_is_the_one_that_was_measured(tmp_path: Path) -> None:
    from subquad.conversion.quality import Quality
    from subquad.hub import load

    teacher = original(tmp_path / "bert")
    made = converted(teacher, Hybrid(block=4), tmp_path / "run", keep_layers=(-1,))
    model = load(tmp_path / "run" / "model")
    assert model.config.subquad["layers"] == [0, 0, None]
    found = Quality(teacher, 20, 0).judge(model, whole=True)
    assert found[0].value == pytest.approx(values(made, "cosine", stage="tuned", split="test")[0], abs=1e-6)
    assert hf.AutoTokenizer.from_pretrained(tmp_path / "run" / "model")("w1")["input_ids"] == [2, 7, 3]


def test_a_killed_conversion_goes_on_as_if_it_had_not_been(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed in the first stage, between stages, in the second, and in a control."""
    teacher = original(tmp_path / "bert")
    options = ConversionOptions(**{**SMALL, "steps": 3, "tune_steps": 2, "controls": True})

    def go_on(made: Run, stop: int | None) -> None:
        steps = iter(range(1, 1000))

        def watch(progress: engine.Progress) -> None:
            if progress.step and next(steps) == stop:
                raise KeyboardInterrupt

        convert(teacher, Linear(Learned()), options, made, seed=0, watch=watch)

    whole, cut = run(tmp_path / "whole"), run(tmp_path / "cut")
    go_on(whole, None)
    monkeypatch.setattr(engine, "CHECKPOINT_SECONDS", 0.0)
    for stop in (2, 2, 2, 3):  # a step that was told is done, but the checkpoint comes after it
        with pytest.raises(KeyboardInterrupt):
            go_on(cut, stop)
    go_on(cut, None)
    assert timeless(cut) == timeless(whole)
    first, second = ((tmp_path / name / "model" / "model.safetensors").read_bytes() for name in ("whole", "cut"))
    assert first == second
    rows = cut.rows_path.read_bytes()
    go_on(cut, None)  # there is nothing left to do
    assert cut.rows_path.read_bytes() == rows


def test_steps_fit_into_the_minutes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock of our own, on which a step takes a second."""
    teacher = original(tmp_path / "bert")
    ticks = iter(range(100_000))
    monkeypatch.setattr("time.perf_counter", lambda: float(next(ticks)))
    made = converted(teacher, Linear(Learned()), tmp_path / "run", minutes=1.0, steps=None, tune_steps=None)
    losses = [row["stage"] for row in made.rows() if row["metric"] == "loss"]
    assert (losses.count("distilled"), losses.count("tuned")) == (18, 42)
    shared = converted(
        teacher, Linear(Learned()), tmp_path / "shared", minutes=1.0, steps=None, tune_steps=None, controls=True
    )
    losses = [row["recipe"] for row in shared.rows() if row["metric"] == "loss"]
    assert (losses.count("conversion"), losses.count("plain fine-tuning")) == (30, 30)


def test_minutes_are_kept_by_a_machine_that_becomes_slower(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of one second, then of three."""
    seconds = iter([*range(2 * 30), *range(60, 100_000, 3)])
    monkeypatch.setattr("time.perf_counter", lambda: float(next(seconds)))
    made = converted(original(tmp_path / "bert"), Linear(Learned()), tmp_path / "run", minutes=2.0, steps=0, tune_steps=None)
    took = [row["elapsed"] for row in made.rows() if row["metric"] == "loss"]
    assert 30 + 3 * (len(took) - 30) == took[-1]
    assert 105 <= took[-1] <= 120


def test_the_worst_layers_stay_exact(tmp_path: Path) -> None:
    teacher = original(tmp_path / "bert")
    said: list[str] = []
    made = run(tmp_path / "run")
    options = ConversionOptions(**{**SMALL, "keep_worst": 1})
    convert(teacher, Linear(Learned()), options, made, seed=0, say=said.append)
    from subquad.hub import load

    layers = load(tmp_path / "run" / "model").config.subquad["layers"]
    assert sorted(layers, key=str) == [0, 0, None]
    assert said[0].startswith(f"stays exact: layer {layers.index(None)} (divergence ")
    divergence = values(made, "attention divergence", stage="distilled")
    assert divergence  # of all layers, before one was given back


@pytest.mark.parametrize("kind", ["BertForMaskedLM", "GPT2LMHeadModel"])
@pytest.mark.parametrize("goal", ["hidden", "logits", "task"])
def test_language_models(tmp_path: Path, kind: str, goal: Any) -> None:
    teacher = original(tmp_path / "lm", kind)
    given: dict[str, Any] = {"goal": goal, "steps": 4, "tune_steps": 18, "tune_rate": 1e-2}
    made = converted(teacher, Linear(Learned()), tmp_path / "run", **given)
    losses = values(made, "loss", stage="tuned")
    assert sum(losses[-6:]) < sum(losses[:6])
    assert {row["stage"] for row in made.rows() if row["metric"] == "perplexity"} == {
        "original",
        "swapped",
        "distilled",
        "tuned",
    }


def test_controls() -> None:
    def names(attention: Any, goal: Any) -> list[str]:
        return [recipe.name for recipe in recipes(attention, goal, controls=True)]

    assert names(Linear(Learned()), "hidden") == ["conversion", "plain fine-tuning"]
    assert names(Hybrid(), "hidden") == ["conversion", "plain fine-tuning", "window alone"]
    assert names(Linear(Learned()), "task") == ["conversion", "plain fine-tuning", "softmax fine-tuned"]
    assert len(recipes(Hybrid(), "task", controls=False)) == 1
    found = phases(recipes(Linear(), "hidden", controls=True), calibrates=False, matches=False, chooses=False)
    assert [(phase.recipe.name, phase.does) for phase in found[-3:]] == [
        ("plain fine-tuning", "start"),
        ("plain fine-tuning", "tune"),
        ("plain fine-tuning", "measure"),
    ]


def test_softmax_tuned_as_long_is_a_control_of_a_language_model(tmp_path: Path) -> None:
    teacher = original(tmp_path / "lm", "BertForMaskedLM")
    made = converted(teacher, Linear(Learned()), tmp_path / "run", controls=True, steps=3, tune_steps=12)
    swapped = values(made, "perplexity", stage="swapped", recipe="conversion")[0]
    softmax = values(made, "perplexity", stage="tuned", recipe="softmax fine-tuned", split="test")[0]
    assert softmax < values(made, "perplexity", stage="original")[0]
    assert softmax < swapped
    assert len(values(made, "loss", recipe="softmax fine-tuned")) == 15


@pytest.mark.parametrize("attention", [Linear(Elu()), Linformer(k=4, max_length=32)])
def test_mechanisms_without_weights_or_parameters(tmp_path: Path, attention: Any) -> None:
    made = converted(original(tmp_path / "bert"), attention, tmp_path / "run")
    losses = [row["stage"] for row in made.rows() if row["metric"] == "loss"]
    assert ("distilled" in losses) == isinstance(attention, Linformer)
    assert losses.count("tuned") == 4


def test_numbers_that_are_not_finite_are_said(tmp_path: Path) -> None:
    with pytest.raises(SubquadError, match=r"^conversion came to numbers that are .* a lower --tune-rate$"):
        converted(original(tmp_path / "bert"), Linear(Learned()), tmp_path / "run", tune_rate=1e30)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"minutes": 0}, "minutes must be positive, but is 0"),
        ({"steps": -1}, "steps must be 0 or more, but is -1"),
        ({"keep_layers": (1,), "keep_worst": 1}, "give one of the two"),
        ({"keep_layers": (3,)}, "there is no layer 3: the model has 3, 0 to 2"),
        ({"keep_layers": (0, 1, -1)}, "all 3 layers would stay exact"),
        ({"keep_worst": 3}, "all 3 layers would stay exact"),
        ({"goal": "task"}, "--goal task needs a language model"),
    ],
)
def test_what_is_refused(tmp_path: Path, given: dict[str, Any], says: str) -> None:
    with pytest.raises(SubquadError, match=says):
        engine.check(original(tmp_path), Linear(Learned()), ConversionOptions(**given))


def test_a_decoder_needs_a_causal_form(tmp_path: Path) -> None:
    with pytest.raises(SubquadError, match="linformer has no causal form"):
        engine.check(original(tmp_path, "GPT2LMHeadModel"), Linformer(k=4, max_length=32), ConversionOptions())
