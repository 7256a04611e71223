"""Attentions that are named as MODULE:NAME: trained, raced, predicted with and loaded, and what is refused."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import subquad as sq
from subquad.attention.outside.trust import VARIABLE
from subquad.choose import costs
from subquad.choose.stages import Numbers
from subquad.choose.workers import Inline
from subquad.cli import main
from subquad.cli.outside import Calling, calling_of, read_arguments, spell_arguments
from subquad.cli.spelling import training_words
from subquad.cli.training_options import CommandLine
from subquad.errors import SubquadError
from subquad.results import Run
from tests.choose.made import costs as made_costs

HERE = "tests.attention.foreign"
WEIGHTED = f"{HERE}:Weighted"
DATA = ("--length", "12", "--pairs", "2", "--keys", "4", "--values", "3", "--held-out", "16", "--tested", "32")
MODEL = ("--layers", "2", "--heads", "1", "--head-dim", "8", "--batch", "4")
TRAIN = ("train", "recall", *DATA, *MODEL, "--steps", "4", "--no-page")
QUESTION = ("3:1", "2:2", "3")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("outside") / "run"
    words = ["--attention", WEIGHTED, "--outside.arguments", "spread=0.5", "--out", str(folder)]
    assert main([*TRAIN, *words]) == 0
    return folder


def _renamed(folder: Path, to: Path, target: str) -> Path:
    """A copy of a run whose attention has another name."""
    shutil.copytree(folder, to)
    about = json.loads((to / "run.json").read_text())
    about["options"]["mechanism"]["target"] = target
    (to / "run.json").write_text(json.dumps(about))
    return to


def test_a_run_is_opened_by_those_who_trust_it(
    trained: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["predict", str(trained), *QUESTION]) == 2
    assert f"uses {WEIGHTED}, which is code outside of subquad: set {VARIABLE}=tests" in capsys.readouterr().err
    assert main(["train", "--resume", str(trained)]) == 2
    monkeypatch.setenv(VARIABLE, "tests")
    assert main(["predict", str(trained), *QUESTION]) == 0
    assert main(["train", "--resume", str(trained)]) == 0


def test_the_page_of_a_run_needs_no_trust(trained: Path, tmp_path: Path) -> None:
    assert main(["report", str(trained), "--out", str(tmp_path / "page.html")]) == 0


def test_a_matrix_is_not_drawn_of_what_may_have_none(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(VARIABLE, "tests")
    assert main(["spectrum", str(trained), "--out", str(tmp_path / "spectrum")]) == 2
    assert f"whether {WEIGHTED} weighs values by a matrix is not known" in capsys.readouterr().err


def test_trained_weights_of_the_attention_are_loaded(trained: Path) -> None:
    with pytest.raises(SubquadError, match="outside of subquad"):
        sq.load(trained)
    loaded = sq.load(trained, trust=("tests",))
    first = sq.load(trained, trust="tests")
    assert loaded.reply(QUESTION) == first.reply(QUESTION)
    start = loaded.task.build(loaded.options.attention, loaded.options.model, torch.Generator().manual_seed(0))
    own = [name for name, _ in loaded.model.named_parameters() if name.endswith("bidirectional.values")]
    assert len(own) == 2
    for name in own:
        held = loaded.model.get_parameter(name)
        assert not torch.equal(held, start.get_parameter(name))
        assert torch.equal(held, loaded.model.get_parameter(name.replace("bidirectional", "causal")))


def test_the_same_seed_gives_the_same_run(trained: Path, tmp_path: Path) -> None:
    words = ["--attention", WEIGHTED, "--outside.arguments", "spread=0.5", "--out", str(tmp_path / "again")]
    assert main([*TRAIN, *words]) == 0
    rows = [[row for row in Run.open(each).rows() if row["unit"] != "1/s"] for each in (trained, tmp_path / "again")]
    assert rows[0] == rows[1]


def test_a_run_of_somebody_else_runs_no_code(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "snare.py").write_text("import pathlib\npathlib.Path('sprung').touch()\n")
    monkeypatch.chdir(tmp_path)
    folder = _renamed(trained, tmp_path / "run", "snare:attend")
    for words in (["predict", str(folder), *QUESTION], ["train", "--resume", str(folder)]):
        assert main(words) == 2
    with pytest.raises(SubquadError, match="snare:attend, which is code outside of subquad"):
        sq.load(folder, trust=("tests",))
    assert not (tmp_path / "sprung").exists()
    with pytest.raises(SubquadError, match="snare has no 'attend'"):
        sq.load(folder, trust=("snare",))
    assert (tmp_path / "sprung").exists()


@pytest.mark.parametrize(
    ("attention", "says"),
    [
        (f"{HERE}:mixes_all", f"{HERE}:mixes_all has no causal form"),
        (f"{HERE}:Nothing", "has no 'Nothing': its public names are"),
        ("nowhere.at_all:Any", "there is no module nowhere"),
        ("tests.attention.foreign", "is no attention: write MODULE:NAME"),
        (f"linear,{HERE}:Nothing", "has no 'Nothing'"),
        ("tests.check.faults:Layer", "it takes x, not q, k and v"),
        (f"{HERE}:Weary", "the model with tests.attention.foreign:Weary raises RuntimeError: that is enough"),
    ],
)
def test_what_cannot_be_trained_is_refused(
    attention: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*TRAIN, "--steps", "9", "--attention", attention, "--out", str(tmp_path / "run")]) == 2
    said = capsys.readouterr().err.strip()
    assert says in said
    assert len(said.splitlines()) == 1


def test_a_wrong_option_is_called_by_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["train", "recall", "--attention", WEIGHTED], ["choose", "recall"], ["compare"]):
        assert main([*words, "--outside.layout", "dnhb"]) == 2
        assert "--outside.layout must be guess, bhnd" in capsys.readouterr().err


def test_commands_say_how_an_attention_is_called(trained: Path) -> None:
    options = read_options_of(trained)
    words = training_words(options, seed=0, size=None)
    assert words[words.index("--attention") + 1] == WEIGHTED
    assert words[-6:] == ["--outside.layout", "bhnd", "--outside.arguments", "spread=0.5", "--seed", "0"]
    again = CommandLine(words[1:]).parse().options
    assert again.attention == options.attention
    assert again == options


def read_options_of(folder: Path) -> Any:
    return sq.load(folder, trust=("tests",)).options


def test_arguments_are_spelled_as_they_are_read() -> None:
    values: dict[str, Any] = {"a": 1, "b": "elu", "c": "3", "d": None, "e": [1, [2.5]], "f": "true", "g": "", "h": True}
    assert read_arguments("--arguments", spell_arguments(values)) == values
    assert read_arguments("--arguments", ["a=(1, (2, 3))"]) == {"a": [1, [2, 3]]}


def test_what_differs_among_layers_is_left_to_guessing(trained: Path) -> None:
    attention = read_options_of(trained).attention
    assert calling_of([attention]) == Calling("bhnd", arguments=("spread=0.5",))
    other = sq.attention.Outside("pkg:Other", layout="bnm")
    assert calling_of([attention, other]) == Calling()


# Races


@pytest.fixture(scope="module")
def raced(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("choose") / "race"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("subquad.choose.trials.step_seconds", lambda task, options, seed, seconds: seconds / 3.5)
        patch.setattr("subquad.choose.race.plan_numbers", lambda *arguments: Numbers(settings=2, semifinalists=1, seeds=2))
        patch.setattr("subquad.cli.choose.Pool", lambda source, jobs, memory_bytes: Inline(source))
        made = made_costs({"softmax": 1.0, WEIGHTED: 0.2, f"softmax,{HERE}:Placed": 0.3}, {"softmax": 5.0}, length=12)
        patch.setattr(costs, "measure_costs", lambda *arguments, **named: made)
        names = [WEIGHTED, "softmax", f"softmax,{HERE}:Placed", f"{HERE}:mixes_all", f"{HERE}:Nothing", f"{HERE}:Weary"]
        names += [f"{HERE}:Untrained", f"{HERE}:Deadly"]
        words = ["--mechanisms", *names, "--budget", "10m", "--jobs", "1", "--out", str(folder)]
        assert main(["choose", "recall", *DATA, *MODEL, *words]) == 0
    return folder


def test_attentions_of_others_are_raced(raced: Path) -> None:
    rows = Run.open(raced, "choose").rows()
    scored = {row["mechanism"] for row in rows if row["metric"] == "test_score"}
    assert scored == {"softmax", WEIGHTED, f"softmax,{HERE}:Placed"}
    settings = [row["said"] for row in rows if row["metric"] == "score" and row["mechanism"] == WEIGHTED]
    assert all(said.startswith("rate ") for said in settings)


def test_what_cannot_be_raced_is_left_out_with_a_sentence(raced: Path) -> None:
    left_out = {row["mechanism"]: row["message"] for row in Run.open(raced, "choose").rows() if row["metric"] == "left out"}
    expected = {
        "mixes_all": "the task is causal, but tests.attention.foreign:mixes_all has no causal form",
        "Nothing": "tests.attention.foreign has no 'Nothing'",
        "Untrained": "a training step fails: NotImplementedError: for inference only",
        "Deadly": "a training step fails: the process ended, with code 3",
    }
    assert left_out.keys() == {f"{HERE}:{name}" for name in expected}
    for name, says in expected.items():
        assert left_out[f"{HERE}:{name}"].startswith(says)


def test_a_run_in_which_it_raises_is_a_row(raced: Path) -> None:
    failed = [row for row in Run.open(raced, "choose").rows() if row["metric"] == "score" and row["value"] is None]
    assert {row["mechanism"] for row in failed} == {f"{HERE}:Weary"}
    assert all("that is enough" in row["message"] for row in failed)


def test_lengths_of_the_task_are_given_to_constructors(raced: Path) -> None:
    trial = next((raced / "trials").glob(f"softmax-{HERE}.Placed-final-0"))
    trained = sq.load(trial, trust=("tests",))
    places = [part for name, part in trained.model.named_parameters() if name.endswith("places")]
    assert [part.shape for part in places] == [(13, 1)]


def test_a_race_goes_on_and_is_loaded_by_those_who_trust_it(
    raced: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    race = tmp_path / "race"
    shutil.copytree(raced, race)
    assert main(["choose", "--resume", str(race)]) == 2
    assert f"uses {WEIGHTED}, which is code outside of subquad" in capsys.readouterr().err
    monkeypatch.setenv(VARIABLE, HERE)
    assert main(["choose", "--resume", str(race)]) == 0
    assert f"`subquad check {WEIGHTED}` says which properties it has" in json.dumps(Run.open(race, "choose").about)


def test_a_comparison_is_resumed_by_those_who_trust_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "compared"
    words = ["--mechanisms", WEIGHTED, "--lengths", "16", "--causal", "--what", "forward", "--heads", "1", "--head-dim", "8"]
    assert main(["compare", *words, "--budget", "0.01", "--out", str(folder)]) == 0
    assert f"Go on with: {VARIABLE}=tests subquad compare --resume" in capsys.readouterr().out
    assert main(["compare", "--resume", str(folder), "--budget", "0.01"]) == 2
    assert "which is code outside of subquad" in capsys.readouterr().err
