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
    assert main(["compare", "--mechanisms", "linear*3,softmax", *sizes, "--out", str(tmp_path / "none")]) == 2
    assert "compare measures one attention at a time, but was given 'linear*3,softmax'" in capsys.readouterr().err
