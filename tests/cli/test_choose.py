"""`subquad choose`: a race from the command line, its page, its model, and what is refused."""

import json
import shutil
from pathlib import Path

import pytest

from subquad.choose import costs
from subquad.choose.stages import Numbers
from subquad.choose.workers import Inline
from subquad.cli import INTERRUPTED, main
from subquad.cli.training_options import CommandLine
from subquad.report.choose import load_decision
from subquad.results import Run
from subquad.runs import read_options
from tests.choose.made import costs as made_costs
from tests.choose.made import race
from tests.compare.rows import rows as compare_rows

SMALL = ("--length", "12", "--pairs", "2", "--keys", "4", "--values", "3", "--held-out", "16", "--tested", "32")
MODEL = ("--layers", "2", "--heads", "1", "--head-dim", "8", "--batch", "4", "--budget", "10m", "--jobs", "1")


def _quickly(patch: pytest.MonkeyPatch) -> None:
    """Runs take three steps in this process, and costs are made up."""
    patch.setattr("subquad.choose.trials.step_seconds", lambda task, options, seed, seconds: seconds / 3.5)
    patch.setattr("subquad.choose.race.plan_numbers", lambda *arguments: Numbers(settings=2, semifinalists=1, seeds=2))
    patch.setattr("subquad.cli.choose.Pool", lambda source, jobs, memory_bytes: Inline(source))
    made = made_costs({"softmax": 1.0, "linear,softmax": 0.2}, {"softmax": 5.0}, length=12)
    patch.setattr(costs, "measure_costs", lambda *arguments, **named: made)


@pytest.fixture(scope="module")
def raced(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("choose") / "race"
    with pytest.MonkeyPatch.context() as patch:
        _quickly(patch)
        words = ["choose", "recall", *SMALL, *MODEL, "--mechanisms", "softmax", "linear,softmax", "linformer"]
        assert main([*words, "--out", str(folder)]) == 0
    return folder


def test_a_race_leaves_rows_a_page_and_a_model(raced: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = Run.open(raced, "choose")
    metrics = {row["metric"] for row in run.rows()}
    assert metrics >= {"seen", "length_bin", "left out", "allotment", "score", "test_score", "curve", "quality", "advantage"}
    assert "Which attention do these sequences need?" in (raced / "report.html").read_text()
    assert main(["predict", str(raced / "best"), "3:1", "2:2", "3"]) == 0
    assert main(["predict", str(raced), "3:1", "2:2", "3"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first == second


def test_the_page_is_rebuilt_from_rows(raced: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert main(["report", str(raced), "--out", str(page)]) == 0
    assert page.read_text() == (raced / "report.html").read_text()


def test_the_command_trains_the_same_model(raced: Path) -> None:
    best = Run.open(raced / "best", "train")
    kept = read_options(best.about["options"])
    words = best.about["command"].split()
    assert words[:3] == ["subquad", "train", "recall"]
    command = CommandLine(words[2:]).parse()
    assert command.options == kept
    assert command.shared.seed == best.about["seed"]
    assert "--weight-decay" not in words  # it has its default


def test_resume_and_interrupt(
    raced: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _quickly(monkeypatch)
    folder = tmp_path / "race"
    shutil.copytree(raced, folder)
    lines = (folder / "rows.jsonl").read_text().splitlines()
    last = max(at for at, line in enumerate(lines) if json.loads(line)["metric"] == "score")
    (folder / "rows.jsonl").write_text("\n".join(lines[:last]) + "\n")  # without the last final run
    with monkeypatch.context() as patch:

        def interrupt(*rest: object, **named: object) -> None:
            raise KeyboardInterrupt

        patch.setattr("subquad.choose.race.run_trial", interrupt)
        assert main(["choose", "--resume", str(folder)]) == INTERRUPTED
    assert "go on with: subquad choose --resume" in capsys.readouterr().err
    assert main(["choose", "--resume", str(folder), "--budget", "20m"]) == 0
    best = read_options(Run.open(folder / "best", "train").about["options"])
    printed = capsys.readouterr().out
    assert load_decision(Run.open(folder))[1].sentences[-1] in printed  # the page decides with the new budget, too
    assert "after 3 of the usual 600 steps" in printed
    words = next(line for line in printed.splitlines() if line.startswith("subquad train ")).split()
    usual = CommandLine(words[2:]).parse().options
    assert (usual.training.steps, usual.training.learning_rate) == (600, best.training.learning_rate)
    assert usual._replace(training=best.training) == best
    scores = [row for row in Run.open(folder).rows() if row["metric"] == "score"]
    assert len(scores) == len([row for row in Run.open(raced).rows() if row["metric"] == "score"])


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["nonsense"], "there is no task 'nonsense'"),
        (["recall", "--budget", "soon"], "--budget takes a time"),
        (["recall", "--budget", "0s"], "--budget takes a time"),
        (["recall", "--jobs", "0"], "--jobs"),
        (["recall", "--jobs", "5000"], "--jobs must be at most"),
        (["recall", "--mechanisms", "sofmax"], "did you mean 'softmax'"),
        (["recall", "--mechanisms", "linformer"], "none of the attentions"),
        (["recall", "--max-memory", "much"], "--max-memory takes an amount"),
        (["recall", "--quality-loss", "-1"], "--quality-loss"),
        (["recall", "--pairs", "0"], "--pairs"),
        (["events", "--data", "no-such-folder"], "no-such-folder"),
        (["classify", "--start", "some-run"], "leave --start out"),
        (["--resume", "no-such-race"], "is not a run"),
        (["recall", "--no-such-option"], "there is no option"),
    ],
)
def test_mistakes_are_refused_in_a_sentence(
    words: list[str], sentence: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["choose", *words]) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert len(error.strip().splitlines()) == 1 or "left out" in error
    assert not (tmp_path / "runs").exists()


def test_a_budget_of_a_second_says_that_nothing_was_scored(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["choose", "recall", *SMALL, "--budget", "1s", "--out", str(tmp_path / "race")]) == 0
    assert "No attention was scored on the test yet" in capsys.readouterr().out
    assert main(["predict", str(tmp_path / "race"), "1"]) == 2
    assert "has no model yet" in capsys.readouterr().err


def test_advise_leaves_out_what_was_not_level(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    compared = Run.create(tmp_path / "compared", "compare", {"mechanisms": {"softmax": {"exact": True}}})
    compared.append(compare_rows(views=[("bidirectional", "training")]))
    scores = {"softmax": 0.9, "linear": 0.5, "favor": 0.9}
    Run.create(tmp_path / "race", "choose", {"options": {}}, race(scores, seconds={}))
    words = ["advise", "--length", "4096", "--run", str(tmp_path / "compared"), "--race", str(tmp_path / "race")]
    assert main(words) == 0
    assert "worse than softmax in the race" in " ".join(capsys.readouterr().out.split())
    assert main([*words[:-1], str(tmp_path / "compared")]) == 2
    assert "not of `subquad choose`" in capsys.readouterr().err


def test_advise_does_not_use_a_race_that_was_too_short(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    compared = Run.create(tmp_path / "compared", "compare", {"mechanisms": {"softmax": {"exact": True}}})
    compared.append(compare_rows(views=[("bidirectional", "training")]))
    rows = race({"softmax": 0.9, "linear": 0.5}, seconds={"softmax": 1.0, "linear": 0.1})
    short = [{**row, "steps": 10} if row["metric"] == "quality" else row for row in rows]
    Run.create(tmp_path / "race", "choose", {"options": {"training": {"steps": 1000}}}, short)
    assert main(["advise", "--length", "4096", "--run", str(compared.folder), "--race", str(tmp_path / "race")]) == 0
    said = capsys.readouterr()
    assert "is not used, as the race could not tell qualities: Nothing is recommended" in said.err
    assert "in the race" not in said.out


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["choose"]) == 0
    assert "subquad choose TASK" in capsys.readouterr().out
    assert main(["choose", "recall", "--help"]) == 0
    assert "--quality-loss" in capsys.readouterr().out


def test_advise_leaves_out_what_was_not_raced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    compared = Run.create(tmp_path / "compared", "compare", {"mechanisms": {"softmax": {"exact": True}}})
    compared.append(compare_rows(views=[("bidirectional", "training")]))
    Run.create(tmp_path / "race", "choose", {"options": {}}, race({"softmax": 0.9, "favor": 0.9}, seconds={}))
    words = ["advise", "--length", "4096", "--run", str(tmp_path / "compared"), "--race", str(tmp_path / "race")]
    assert main(words) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "Use linear" not in out
    assert "not scored in the race" in out
