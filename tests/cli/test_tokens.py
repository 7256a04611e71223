"""Sequences of symbols, as they are typed."""

import shutil
from pathlib import Path

import pytest

import subquad
from subquad.cli import main
from subquad.results import Run
from tests.cli.resuming import check_it_goes_on
from tests.tasks.tokens.test_task import labelled

SMALL = ["--layers", "1", "--heads", "2", "--head-dim", "8", "--batch", "4", "--steps", "6", "--evaluate-every", "3"]
SMALL += ["--checkpoint-every", "3"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokens")
    data = labelled(folder / "data.csv")
    assert main(["train", "tokens", *SMALL, "--data", str(data), "--out", str(folder / "run")]) == 0
    return folder / "run"


def test_the_page_says_what_the_model_loses_to(trained: Path) -> None:
    page = (trained / "report.html").read_text()
    rows = Run.open(trained).rows()
    (gap,) = (row["value"] for row in rows if row["metric"] == "auroc_gained")
    assert ("Linear: behind the linear model of token counts" in page) == (gap < 0)
    assert "the same for all" in page


def test_it_goes_on_as_if_it_had_not_stopped(trained: Path, tmp_path: Path) -> None:
    check_it_goes_on(Path(shutil.copytree(trained, tmp_path / "run")))


def test_a_file_or_a_sequence_is_answered(trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, out = str(labelled(tmp_path / "new.csv", 12)), tmp_path / "out.csv"
    assert main(["predict", str(trained), data]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("sequence,class,P(no),P(yes)\nline 2,")
    assert main(["predict", str(trained), data, "--output", str(out)]) == 0
    assert out.read_text() == printed
    assert main(["predict", str(trained), "--data", data]) == 0
    assert capsys.readouterr().out == printed
    assert main(["predict", str(trained), "a", "p", "b"]) == 0
    assert capsys.readouterr().out.startswith("class ")
    assert main(["predict", str(trained), "p" * 5000]) == 0  # too long for the name of a file
    assert capsys.readouterr().out.startswith("class ")
    assert main(["predict", str(trained), "a", "--output", str(out)]) == 2
    assert "--output is for the scores of --data" in capsys.readouterr().err
    assert subquad.load(trained).predict(data).lines[0][0] == "line 2"


def test_bad_files_are_refused_in_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "few.txt").write_text("a\n")
    for name, said in (("empty.txt", "has no sequence"), ("few.txt", "too few to be divided"), ("none.txt", "no file or")):
        assert main(["train", "tokens", "--data", str(tmp_path / name), "--out", str(tmp_path / "run")]) == 2
        message = capsys.readouterr().err.strip()
        assert said in message
        assert "\n" not in message
    assert not (tmp_path / "run").exists()
