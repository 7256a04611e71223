"""`subquad choose --model`: a race of conversions of a tiny model, its rows, its page, its model, and what is refused."""

import importlib
from pathlib import Path
from typing import Any

import pytest

from subquad.choose import converting, costs
from subquad.choose.textscores import TextScores
from subquad.cli import INTERRUPTED, main
from subquad.conversion import convert
from subquad.conversion.options import ConversionOptions
from subquad.report.choose import load_decision
from subquad.results import Run
from subquad.tasks.comparing import Judged
from tests.choose.made import costs as made_costs
from tests.conversion.models import documents, save, write

hub: Any = importlib.import_module("subquad.hub.files")

FEW: dict[str, Any] = {"steps": 2, "tune_steps": 2, "texts": 6, "batch_tokens": 64}


def few_steps(**named: Any) -> ConversionOptions:
    """A conversion of a few steps, whatever the time."""
    return ConversionOptions(**{**FEW, **named})


def _quickly(patch: pytest.MonkeyPatch) -> None:
    """Conversions take a few steps, and costs are made up."""
    patch.setattr(converting, "ConversionOptions", few_steps)
    patch.setattr("subquad.choose.textscores.MOST_TEXTS", 12)
    patch.setattr("subquad.conversion.vectors.DRAWS", 10)
    made = made_costs({"softmax": 1.0, "hybrid": 0.2, "window": 0.1}, {"softmax": 5.0, "hybrid": 1.0}, length=32)
    made = [row | {"form": "bidirectional"} for row in made]
    patch.setattr(costs, "measure_costs", lambda *arguments, **named: made)
    patch.setattr(TextScores, "frequencies", lambda scores, split: _bad(scores.of(scores.original.teacher, split)))


def _bad(judged: Judged) -> Judged:
    """Scores that the tiny models, which have learned nothing, are better than."""
    return judged._replace(parts=judged.parts * [3.0, 1.0])


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with models and texts."""
    folder = tmp_path_factory.mktemp("models")
    save(folder / "masked", "BertForMaskedLM")
    write(folder / "texts")
    return folder


@pytest.fixture(scope="module")
def raced(given: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("choose") / "race"
    with pytest.MonkeyPatch.context() as patch:
        _quickly(patch)
        words = ["--model", str(given / "masked"), "--text", str(given / "texts"), "--mechanisms", "hybrid", "window"]
        assert main(["choose", *words, "--quality-loss", "100", "--out", str(folder)]) == 0
    return folder


def test_the_fastest_level_conversion_is_left_as_a_model(raced: Path) -> None:
    run = Run.open(raced, "choose")
    standings, decision = load_decision(run)
    assert decision.chosen == "window in 3 of 3 layers"  # everything is level with a loss of 100 nats
    assert set(decision.levels) == {"softmax", "hybrid in 3 of 3 layers", "window in 3 of 3 layers"}
    assert standings.metric == "nats_per_token"
    assert [each.name for each in standings.of("trivial")] == ["frequencies of tokens"]
    model = hub.load(raced / "best")
    assert [each.kind for each in _options(model)] == ["window"] * 3
    trial = Run.open(raced / "trials" / "window-in-3-of-3-layers", "convert")
    assert trial.about["command"].startswith("subquad convert ")
    assert "--attention window" in trial.about["command"]


def _options(model: Any) -> list[Any]:
    from subquad.hub.attach import attention_modules, options_of

    return [options_of(module) for module in attention_modules(model).values()]


def test_rows_and_the_page_tell_what_was_done(raced: Path, tmp_path: Path) -> None:
    rows = Run.open(raced, "choose").rows()
    metrics = {row["metric"] for row in rows}
    assert metrics >= {"seen", "rank", "candidate", "cost", "score", "curve", "quality", "advantage", "perplexity"}
    ranks = [row["value"] for row in rows if row["metric"] == "rank"]
    assert len(ranks) == 3
    assert all(1 <= rank <= 32 for rank in ranks)
    before = next(row for row in rows if row["metric"] == "perplexity" and row["mechanism"] == "softmax")
    assert before["low"] <= before["value"] <= before["high"]
    page = (raced / "report.html").read_text()
    assert "Perplexity before and after" in page
    assert "Ranks of the layers" in page
    assert main(["report", str(raced), "--out", str(tmp_path / "page.html")]) == 0
    assert (tmp_path / "page.html").read_text() == page


def test_what_is_not_level_is_tried_with_fewer_layers_also_after_an_interrupt(
    given: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _quickly(monkeypatch)
    monkeypatch.setattr("subquad.choose.converting.level_of", lambda *rest: "worse")
    folder = tmp_path / "race"
    words = ["choose", "--model", str(given / "masked"), "--text", str(given / "texts"), "--mechanisms", "hybrid"]
    with monkeypatch.context() as patch:
        calls = []

        def interrupt(*rest: Any, **named: Any) -> None:
            calls.append(1)
            if len(calls) == 2:
                raise KeyboardInterrupt
            convert(*rest, **named)

        patch.setattr(converting, "convert", interrupt)
        assert main([*words, "--out", str(folder)]) == INTERRUPTED
    capsys.readouterr()
    assert main(["choose", "--resume", str(folder)]) == 0
    assert "hybrid in 1 of 3 layers: worse on the development texts" in capsys.readouterr().out
    scores = [row["mechanism"] for row in Run.open(folder).rows() if row["metric"] == "score"]
    assert scores == ["softmax", *(f"hybrid in {count} of 3 layers" for count in (3, 2, 1))]


def test_a_model_that_knows_less_than_frequencies_tells_nothing(given: Path) -> None:
    from subquad.conversion.pretrained import Pretrained

    original = Pretrained(given / "masked", documents())
    scores = TextScores(original, 32, 12, 0)
    ours, trivial = (judged.parts.sum(0) for judged in (scores.of(original.teacher, "test"), scores.frequencies("test")))
    assert trivial[1] == ours[1]
    assert 1.0 < trivial[0] / trivial[1] < 4.0 < ours[0] / ours[1]  # 40 words of about equal frequency have 3.7 nats


def test_a_conversion_that_fails_is_a_row(
    given: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _quickly(monkeypatch)

    def fail(*rest: Any, **named: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(converting, "convert", fail)
    words = ["--model", str(given / "masked"), "--text", str(given / "texts"), "--mechanisms", "window"]
    assert main(["choose", *words, "--out", str(tmp_path / "race")]) == 0
    failed = [row for row in Run.open(tmp_path / "race").rows() if row["metric"] == "score" and row["value"] is None]
    assert {row["failure"] for row in failed} == {"out of memory"}
    assert "out of memory" in (tmp_path / "race" / "report.html").read_text()


@pytest.mark.parametrize(
    ("kind", "metric"),
    [("BertModel", "cosine"), pytest.param("GPT2LMHeadModel", "nats_per_token", marks=pytest.mark.slow)],
)
def test_encoders_and_causal_models(
    kind: str, metric: str, given: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _quickly(monkeypatch)
    model, race = save(tmp_path / kind, kind), tmp_path / "race"
    words = ["--model", str(model), "--text", str(given / "texts"), "--mechanisms", "hybrid", "--quality-loss", "100"]
    assert main(["choose", *words, "--out", str(race)]) == 0
    standings, decision = load_decision(Run.open(race, "choose"))
    assert standings.metric == metric
    assert "hybrid in 3 of 3 layers" in decision.levels


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--model", "MODEL", "--mechanisms", "sofmax"], "there is no attention 'sofmax'"),
        (["--model", "MODEL", "--budget", "soon"], "--budget takes a time"),
        (["--model", "MODEL", "--text", "no-such-folder"], "no-such-folder"),
        (["--model", "MODEL", "--length", "4000"], "must be from 8 to the 32 tokens"),
        (["--model", "MODEL", "--jobs", "2"], "there is no option"),
        (["--model", "."], "is no model"),
    ],
)
def test_mistakes_are_refused_in_a_sentence(
    words: list[str], sentence: str, given: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["choose", *(str(given / "masked") if word == "MODEL" else word for word in words)]) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert len(error.strip().splitlines()) == 1
    assert not (tmp_path / "runs").exists()
