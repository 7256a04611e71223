"""The answer of `subquad compare` on a terminal."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from subquad.attention import COMMON, MECHANISMS
from subquad.cli import main
from subquad.cli.compare import _answer
from subquad.report.compare import load
from subquad.results import Run
from tests.report.runs import make_run


def printed(folder: Path, width: int, *, verbose: bool = False) -> str:
    """What is printed of a comparison of softmax, linear and favor on a terminal of so many columns."""
    console = Console(file=io.StringIO(), width=width, markup=False, emoji=False, highlight=False)
    _answer(load([folder])[0], console, verbose=verbose)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize("width", [60, 80, 120])
def test_the_answer_is_one_table_and_one_sentence(width: int, tmp_path: Path) -> None:
    text = printed(make_run(tmp_path / "run").folder, width)
    lines = text.splitlines()
    assert len(lines) <= 22  # the page and what the budget had no time for follow, in a line each
    assert max(map(len, lines)) <= width
    words = text.split()
    for whole in ("attention", "memory", "bidirectional:", "causal:", "decoding", "linear", "favor", "4096", "1/524"):
        assert whole in words
    assert "not up to 4096" in text
    assert "Linear is 13." in " ".join(words)


def test_verbose_prints_all_tables_and_sentences(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run").folder
    text = " ".join(printed(folder, 120, verbose=True).split())
    for words in (
        "Pays from, tokens",
        "Needs less memory from",
        "favor does not pay within the measured range",
        "The rows:",
    ):
        assert words in text
        assert words not in " ".join(printed(folder, 120).split())


def test_a_run_is_resumed_with_a_budget_and_verbosely(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Other options stay as they were when the run was made."""
    words = ["--mechanisms", "linear", "--what", "forward", "--causal", "--heads", "1", "--head-dim", "4", "--lengths", "8"]
    run = tmp_path / "run"
    assert main(["compare", *words, "--budget", "0.001", "--out", str(run)]) == 0
    assert "The budget had no time for 1 group of measurements" in capsys.readouterr().out
    assert main(["compare", "--resume", str(run), "--budget", "0.001", "--verbose"]) == 0
    assert "(forward, causal, 8)" in capsys.readouterr().out
    assert main(["compare", "--resume", str(run), "--seed", "3"]) == 2
    assert "leave --seed out" in capsys.readouterr().err


def test_the_common_attentions_are_compared_and_all_on_request(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ["--what", "forward", "--causal", "--heads", "1", "--head-dim", "4", "--lengths", "8", "--budget", "0.001"]
    for words, wanted in (([], {"softmax", "materialised", *COMMON}), (["all"], {"materialised", *MECHANISMS})):
        run = tmp_path / "".join(["run", *words])
        assert main(["compare", *(["--mechanisms", *words] if words else []), *sizes, "--out", str(run)]) == 0
        assert set(Run.open(run, "compare").about["options"]["variants"]) == wanted
        assert ("--mechanisms all also measures infinity, hybrid, " in capsys.readouterr().out) == (not words)
    assert main(["compare", "--mechanisms", "all", "favour", *sizes, "--out", str(tmp_path / "none")]) == 2
    assert "there is no attention 'favour': did you mean 'favor'?" in capsys.readouterr().err


TINY = ["--heads", "1", "--head-dim", "4", "--threads", "1", "--lengths", "8"]


def test_mechanisms_by_layer_are_measured_in_every_form(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("subquad.compare.plan.VISITS", 1)
    run = tmp_path / "run"
    works = ["forward", "training", "layer", "step", "update"]
    words = ["--mechanisms", "linear,linear*2,softmax", "linear*2", "--what", *works, *TINY, "--budget", "0.001"]
    assert main(["compare", *words, "--out", str(run)]) == 0
    assert main(["compare", "--resume", str(run), "--budget", "600"]) == 0  # its options are read again
    assert "linear*3,softmax: times are the mean of its layers" in capsys.readouterr().out
    opened = Run.open(run, "compare")
    assert list(opened.about["options"]["variants"]) == ["softmax", "linear*3,softmax", "linear"]
    rows = [row for row in opened.rows() if row["mechanism"] == "linear*3,softmax"]
    measured = {(row["form"], row["what"]) for row in rows if row["metric"] == "seconds" and row["value"] is not None}
    attention = {(form, what) for form in ("bidirectional", "causal") for what in ("forward", "training", "layer")}
    assert measured == attention | {("causal", "step"), ("causal", "update")}
    assert {"peak_memory", "parameters", "parameter_bytes"} <= {row["metric"] for row in rows}
    page = (run / "report.html").read_text()
    assert "What to know" in page
    assert main(["advise", "--length", "8", "--causal", "--approximate", "--run", str(run)]) == 0
    assert "linear*3,softmax" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["linear*3,favour"], "there is no attention 'favour': did you mean 'favor'?"),
        (["linear,,softmax"], "--mechanisms takes a name, or names by layer such as linear*3,softmax, but was given"),
        (["linear*0"], "--mechanisms 'linear*0' must name 1 to 1000 layers"),
        (["linear,pkg.mod:Mine"], "'linear,pkg.mod:Mine' names an attention of another package for some layers"),
        (["all,linear"], "there is no attention 'all'"),
        (
            ["linear*2,softmax", "--what", "update"],
            "--what update trains a model of 4 + 4 layers, but linear*2,softmax names 3",
        ),
        (["linformer,softmax", "--causal"], "none of the named attentions can be measured"),
        (["linformer", "--causal"], "linformer is left out: it has no causal form"),
        (["no_such_module:f"], "no_such_module:f is left out: there is no module no_such_module"),
    ],
)
def test_names_that_do_not_fit_are_refused(
    words: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", "--mechanisms", *words, *TINY, "--out", str(tmp_path / "none")]) == 2
    assert says in capsys.readouterr().err
    assert not (tmp_path / "none").exists()


def test_a_mechanism_without_the_form_is_left_out_and_the_others_are_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    words = ["--mechanisms", "linear", "linformer*3,softmax", "--causal", "--what", "forward", *TINY, "--budget", "0.001"]
    assert main(["compare", *words, "--out", str(run)]) == 0
    says = "linformer*3,softmax is left out: linformer among its layers has no causal form"
    assert says in capsys.readouterr().err
    about = Run.open(run, "compare").about
    assert list(about["options"]["variants"]) == ["softmax", "linear"]
    assert about["left_out"] == {"linformer*3,softmax": "linformer among its layers has no causal form"}


def test_nothing_but_softmax_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "--mechanisms", "linformer", "--what", "step", "--out", str(tmp_path / "run")]) == 2
    assert "none of the named attentions does this work" in capsys.readouterr().err
