"""A conversion from its beginning to its end."""

from pathlib import Path
from typing import Any

import pytest
import torch

from subquad import Elu, Favor, Hybrid, Learned, Linear, Linformer, SubquadError
from subquad.conversion import ConversionOptions, convert, engine, journal
from subquad.conversion.quality import Quality
from subquad.conversion.recipes import phases, recipes
from subquad.conversion.sight import sight_of
from subquad.conversion.stand import Choice
from subquad.conversion.vectors import Judged
from subquad.results import Run
from tests.conversion.models import hf, original, quality

SMALL: dict[str, Any] = {"steps": 6, "tune_steps": 4, "batch_tokens": 64, "texts": 20, "controls": False}
SMALL |= {"cost_lengths": ()}


@pytest.fixture(autouse=True)
def _few_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("subquad.conversion.vectors.DRAWS", 10)


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
    rows = [row for row in of.rows() if row["metric"] != "duration"]
    return [{name: value for name, value in row.items() if name not in ("elapsed", "at")} for row in rows]


def weights(folder: Path) -> bytes:
    return (folder / "model" / "model.safetensors").read_bytes()


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
    watched = [row["step"] for row in made.rows() if row["metric"] == "cosine" and row["split"] == "development"]
    assert watched == [0, 0, *range(10, 81, 10)]


def test_the_model_in_the_folder_is_the_one_that_was_measured(tmp_path: Path) -> None:
    from subquad.hub import load

    teacher = original(tmp_path / "bert")
    made = converted(teacher, Hybrid(block=4), tmp_path / "run", keep_layers=(-1,))
    model = load(tmp_path / "run" / "model")
    assert model.config.subquad["layers"] == [0, 0, None]
    sight = sight_of(Hybrid(block=4))
    found = quality(teacher, 20, sight).test(model, sight)
    assert found[0].value == pytest.approx(values(made, "cosine", stage=kept(made)["conversion"], split="test")[0], abs=1e-6)
    assert hf.AutoTokenizer.from_pretrained(tmp_path / "run" / "model")("w1")["input_ids"] == [2, 7, 3]


class Killed:
    """Goes on with a conversion, and kills it when it has told so many times what it does."""

    def __init__(self, teacher: Any, attention: Any, **given: Any) -> None:
        self.teacher, self.attention = teacher, attention
        self.options = ConversionOptions(**{**SMALL, "steps": 3, "tune_steps": 5, "controls": True, **given})

    def go_on(self, made: Run, stop: int | None = None) -> None:
        tells = iter(range(1, 1000))

        def watch(progress: engine.Progress) -> None:
            if next(tells) == stop:
                raise KeyboardInterrupt

        convert(self.teacher, self.attention, self.options, made, seed=0, watch=watch)


@pytest.mark.parametrize("tune_rate", [1e-3, pytest.param(1e2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("every_step", [pytest.param(True, marks=pytest.mark.slow), False])
def test_a_conversion_that_is_killed_again_and_again_goes_on_as_if_it_had_not_been(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, every_step: bool, tune_rate: float
) -> None:
    """Killed in every phase, with a checkpoint after every step or with those between phases only.

    With a high rate tuning makes the model worse, and is undone.
    """
    conversion = Killed(original(tmp_path / "bert"), Favor(features=8, projections="learned"), tune_rate=tune_rate)
    whole, cut = run(tmp_path / "whole"), run(tmp_path / "cut")
    conversion.go_on(whole)
    monkeypatch.setattr(journal, "CHECKPOINT_SECONDS", 0.0 if every_step else 1e9)
    # what was told of is done, but kept after the telling only: each time one thing more is
    stops = 0
    for stop in (2, 3) if every_step else (3, 8, 9, 9):
        while True:
            before = cut.rows_path.read_bytes()
            try:
                conversion.go_on(cut, stop)
            except KeyboardInterrupt:
                stops += 1
                if cut.rows_path.read_bytes() == before and stops > 3:
                    break  # no further with this stop
                continue
            break
    conversion.go_on(cut)
    assert stops > 3
    assert timeless(cut) == timeless(whole)
    assert weights(tmp_path / "cut") == weights(tmp_path / "whole")
    assert (kept(whole)["conversion"] == "tuned") == (tune_rate < 1)
    rows = cut.rows_path.read_bytes()
    conversion.go_on(cut)  # there is nothing left to do
    assert cut.rows_path.read_bytes() == rows


def kept(of: Run) -> dict[str, str]:
    """The stage whose model each recipe ended with."""
    return {row["recipe"]: row["stage"] for row in of.rows() if row["metric"] == "kept" and row["value"]}


def told(of: Run, metric: str = "kept") -> list[str]:
    return [row["message"] for row in of.rows() if row["metric"] == metric and "message" in row]


class Script:
    """Development figures that are given, and the models that they were given for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, figures: list[float], metric: str = "cosine") -> None:
        self.models: list[dict[str, torch.Tensor]] = []
        left = iter(figures)

        def develop(quality: Any, model: Any) -> list[Judged]:
            self.models.append({name: tensor.clone() for name, tensor in model.state_dict().items()})
            return [Judged(metric, next(left))]

        monkeypatch.setattr(Quality, "develop", develop)

    def is_model(self, number: int, folder: Path) -> bool:
        from subquad.hub import load

        saved = load(folder / "model").state_dict()
        return all(torch.equal(tensor, saved[name]) for name, tensor in self.models[number].items())


def test_a_stage_that_makes_it_worse_is_undone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The figures are of the original, swapped, then four of matching and four of tuning."""
    script = Script(monkeypatch, [1.0, 0.4, 0.9, 0.95, 0.97, 0.979, 0.85, 0.86, 0.87, 0.874])
    said: list[str] = []
    made = run(tmp_path / "run")
    options = ConversionOptions(**{**SMALL, "steps": 8, "tune_steps": 8})
    convert(original(tmp_path / "bert"), Linear(Learned()), options, made, seed=0, say=said.append)
    assert kept(made) == {"conversion": "distilled"}
    assert said[-1] == "conversion: tuning made it worse, 0.979 to 0.874, and was undone"
    assert told(made) == ["matching made it better, 0.400 to 0.979", said[-1].removeprefix("conversion: ")]
    assert script.is_model(5, tmp_path / "run")
    assert not script.is_model(9, tmp_path / "run")
    assert len(values(made, "cosine", stage="tuned", split="test")) == 1  # it is told what it would have come to


def test_the_best_model_of_a_stage_is_kept_not_its_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = Script(monkeypatch, [1.0, 0.4, 0.5, 0.6, 0.7, 0.8, 0.81, 0.93, 0.92, 0.9])
    made = converted(original(tmp_path / "bert"), Linear(Learned()), tmp_path / "run", steps=8, tune_steps=8)
    assert kept(made) == {"conversion": "tuned"}
    assert told(made)[-1] == "tuning made it better, 0.800 to 0.930; the model of step 4 of 8 was the best and is kept"
    assert script.is_model(7, tmp_path / "run")


def test_a_small_difference_is_said_with_the_digits_that_show_it() -> None:
    choice = Choice(value=0.93421)
    choice.begin_stage()
    choice.offer(Judged("cosine", 0.93447), 4)
    assert choice.words("matching", "cosine", 4) == "matching made it better, 0.9342 to 0.9345"
    choice.begin_stage()
    choice.offer(Judged("cosine", 0.2), 4)
    assert choice.words("tuning", "cosine", 4) == "tuning made it worse, 0.934 to 0.200, and was undone"


def test_a_low_perplexity_is_a_good_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    teacher = original(tmp_path / "lm", "BertForMaskedLM")
    script = Script(monkeypatch, [5.0, 50.0, 40.0, 30.0, 20.0, 10.0, 9.0, 8.0, 11.0, 12.0], "perplexity")
    made = converted(teacher, Linear(Learned()), tmp_path / "run", steps=8, tune_steps=8)
    assert kept(made) == {"conversion": "tuned"}
    assert script.is_model(7, tmp_path / "run")


def test_calibration_that_makes_it_worse_is_undone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    attention = Favor(features=8, projections="calibrated")
    script = Script(monkeypatch, [1.0, 0.943, 0.924])
    made = converted(original(tmp_path / "bert"), attention, tmp_path / "run", tune_steps=0)
    assert kept(made) == {"conversion": "swapped"}
    assert told(made) == ["calibrating made it worse, 0.943 to 0.924, and was undone"]
    assert script.is_model(1, tmp_path / "run")


def test_controls_are_judged_in_the_same_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {"controls": True, "steps": 0, "tune_steps": 4}
    tuned = [0.5, 0.6, 0.55, 0.5]
    Script(monkeypatch, [1.0, 0.4, *tuned, 0.4, *[0.3] * 4])
    made = converted(original(tmp_path / "bert"), Linear(Learned()), tmp_path / "run", **given)
    assert kept(made) == {"conversion": "tuned", "plain fine-tuning": "swapped"}


def test_test_texts_decide_nothing(tmp_path: Path) -> None:
    """With other test texts the same model comes out, and other figures."""
    given: dict[str, Any] = {"tune_rate": 1e-2, "tune_steps": 12}
    one, other = original(tmp_path / "bert"), original(tmp_path / "bert")
    other.splits["test"] = ["w1 w1 w1 w2 . " * 80]
    first = converted(one, Linear(Learned()), tmp_path / "one", **given)
    second = converted(other, Linear(Learned()), tmp_path / "other", **given)
    assert weights(tmp_path / "one") == weights(tmp_path / "other")
    assert values(first, "cosine", split="development") == values(second, "cosine", split="development")
    assert values(first, "cosine", split="test") != values(second, "cosine", split="test")


def test_the_worst_layers_stay_exact(tmp_path: Path) -> None:
    teacher = original(tmp_path / "bert")
    said: list[str] = []
    made = run(tmp_path / "run")
    options = ConversionOptions(**{**SMALL, "keep_worst": 1})
    convert(teacher, Linear(Learned()), options, made, seed=0, say=said.append)
    from subquad.hub import load

    layers = load(tmp_path / "run" / "model").config.subquad["layers"]
    assert sorted(layers, key=str) == [0, 0, None]
    assert [words for words in said if words.startswith(f"stays exact: layer {layers.index(None)} (divergence ")]
    before, after = (values(made, "cosine", stage=stage, split="test")[0] for stage in ("distilled", "chosen"))
    assert before < after


@pytest.mark.parametrize("kind", ["BertForMaskedLM", "GPT2LMHeadModel"])
@pytest.mark.parametrize("goal", ["logits", *(pytest.param(goal, marks=pytest.mark.slow) for goal in ("hidden", "task"))])
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
        ("plain fine-tuning", "swap"),
        ("plain fine-tuning", "tune"),
        ("conversion", "cost"),
    ]


def test_softmax_tuned_as_long_is_a_control_of_a_language_model(tmp_path: Path) -> None:
    teacher = original(tmp_path / "lm", "BertForMaskedLM")
    made = converted(teacher, Linear(Learned()), tmp_path / "run", controls=True, steps=3, tune_steps=12)
    swapped = values(made, "perplexity", stage="swapped", recipe="conversion", split="test")[0]
    softmax = values(made, "perplexity", stage="tuned", recipe="softmax fine-tuned", split="test")[0]
    assert softmax < values(made, "perplexity", stage="original", split="test")[0]
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
