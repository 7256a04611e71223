"""`subquad error`, as it is typed, and `subquad advise --error` with what it measured."""

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from subquad.cli import main
from subquad.cli.streams import say
from subquad.compare import error
from subquad.results import Run
from tests.cli.test_spectrum import COPY
from tests.compare.rows import TRAITS
from tests.compare.rows import rows as compared
from tests.hub.test_looking import save
from tests.runs.made import write_pages_quickly

TINY = ["--features", "4", "16", "--kernels", "positive", "relu", "--projections", "orthogonal", "--draws", "2"]
SHORT = ["--length", "8"]


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few draws; pages without the code that draws their charts; of the figures only the names."""
    monkeypatch.setattr(error, "PAIR_DRAWS", 20)
    write_pages_quickly(monkeypatch)
    monkeypatch.setattr("subquad.report.error.save", say_names)


def say_names(drawn: Mapping[str, object], folder: Path) -> Iterator[Path]:
    for name in drawn:
        say(name)
        yield folder / name


def test_random_inputs_then_report_and_advice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    assert main(["error", *TINY, *SHORT, "--head-dim", "4", "--sizes", "0.1", "1", "--out", str(run)]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "Random queries and keys of size 1: with 16 features FAVOR+ (positive, orthogonal) has a relative" in printed
    rows = Run.open(run, "error").rows()
    assert {row["size"] for row in rows if row["metric"] == "output error"} == {0.1, 1.0}
    assert {row["draws"] for row in rows if row["metric"] == "kernel error"} == {2}
    assert main(["report", str(run), "--out", str(tmp_path / "again.html"), "--figures", str(tmp_path / "figures")]) == 0
    assert 'id="chart-kernels-0"' in (tmp_path / "again.html").read_text()
    assert "subquad: sizes" in capsys.readouterr().err.splitlines()
    assert main(["error", *TINY, "--out", str(run)]) == 2
    assert "holds a run already" in capsys.readouterr().err

    about = {"mechanisms": TRAITS, "options": {"variants": {"favor": {"features": 8}}}}
    Run.create(tmp_path / "compared", "compare", about, compared())
    given = ["advise", "--length", "4096", "--run", str(tmp_path / "compared"), "--error-run", str(run)]
    assert main([*given, "--error", "10"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "FAVOR+ reaches an error of 10 on random queries and keys of size 1 with 4 positive features" in printed
    assert "Elsewhere: random queries and keys of size 0.1: 4 features." in printed
    assert "its error is not known" in printed  # linear
    assert main([*given, "--error", "1e-6", "--approximate"]) == 2
    said = capsys.readouterr().err
    assert "no approximate attention that was measured fits 4096 tokens" in said
    assert "with 16 features" in said
    assert "allow more --memory or --error" in said
    assert main([*given[:5], "--error-run", str(run)]) == 2
    assert "--error-run is for --error" in capsys.readouterr().err


def test_a_model_of_hugging_face_layer_by_layer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = str(save(tmp_path / "bert"))
    (tmp_path / "text.txt").write_text("the cat sat on the mat . " * 30)
    given = ["error", model, *TINY, *SHORT, "--text", str(tmp_path / "text.txt"), "--no-random"]
    assert main([*given, "--out", str(tmp_path / "run"), "--figures", str(tmp_path / "figures")]) == 0
    run = Run.open(tmp_path / "run", "error")
    rows = run.rows()
    assert run.about["options"]["origin"] == {"class": "BertModel"}
    assert {row.get("inputs") for row in rows} == {None, "model"}
    outputs = [row for row in rows if row["metric"] == "output error"]
    assert {(row["layer"], row["length"], row["heads"], row["head_dim"]) for row in outputs} == {(1, 8, 4, 4), (2, 8, 4, 4)}
    layers = [(row["features"], row["what"], row["layer"]) for row in rows if row["metric"] == "layer error"]
    assert layers == [(m, what, layer) for m in (4, 16) for what in ("attention", "hidden") for layer in (1, 2)]
    assert "subquad: layers" in capsys.readouterr().err.splitlines()
    cut = Path(shutil.copytree(tmp_path / "run", tmp_path / "cut"))
    lines = (cut / "rows.jsonl").read_bytes().splitlines(keepends=True)
    (cut / "rows.jsonl").write_bytes(b"".join(lines[: len(lines) // 2]))
    assert main(["error", "--resume", str(cut)]) == 0
    assert Run.open(cut).rows() == rows
    assert main(["error", "--resume", str(cut), "--restart"]) == 0
    assert Run.open(cut).rows() == rows


def test_a_run_of_train(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "copy", *COPY, "--attention", "softmax", "--out", str(tmp_path / "copied")]) == 0
    assert main(["error", str(tmp_path / "copied"), *TINY, "--sizes", "1", "--out", str(tmp_path / "run")]) == 0
    rows = Run.open(tmp_path / "run").rows()
    assert {row["layer"] for row in rows if row.get("inputs") == "model"} == {1, 2}
    assert {row["head_dim"] for row in rows if row.get("inputs") == "random"} == {8}  # that of the model
    capsys.readouterr()
    assert main(["train", "copy", *COPY, "--attention", "linear", "--out", str(tmp_path / "linear")]) == 0
    assert main(["error", str(tmp_path / "linear"), *TINY, "--out", str(tmp_path / "none")]) == 2
    assert "is not softmax: name a model with exact attention to compare with" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()


def test_mistakes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    for arguments, said in (
        ([str(tmp_path / "nowhere")], "there is no folder"),
        ([str(tmp_path / "empty")], "is no model: it has neither a run.json"),
        (["--no-random"], "there is nothing to measure: name a model, or leave out --no-random"),
        (["--text", "x"], "--text is read by a model: name one, or leave it out"),
        (["--features", "3"], "features must be even and at least 2 for hyperbolic features, but is 3"),
        (["--draws", "1"], "--draws must be at least 2, but is 1"),
        (["--sizes", "0"], "--sizes [0] must be positive, but is 0"),
        (["--kernels", "exp"], "--kernels [0] must be positive, hyperbolic, trigonometric or relu, but is 'exp'"),
        (["--length", "1000000000000"], "give a smaller --length, --head-dim or --features"),
    ):
        assert main(["error", *arguments, "--out", str(tmp_path / "none")]) == 2
        printed = capsys.readouterr().err
        assert said in printed
        assert len([line for line in printed.splitlines() if line.startswith("subquad: ")]) == 1
        assert not (tmp_path / "none").exists()


def test_ctrl_c_keeps_what_was_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*given: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("subquad.compare.error._kernel_row", interrupt)
    assert main(["error", *TINY, *SHORT, "--out", str(tmp_path / "run")]) == 130
    assert f"go on with: subquad error --resume {tmp_path / 'run'}" in capsys.readouterr().err
    metrics = {row["metric"] for row in Run.open(tmp_path / "run").rows()}
    assert metrics == {"scores", "estimate", "largest norm", "output error"}


def test_advice_about_an_error_needs_a_measurement(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Run.create(tmp_path / "compared", "compare", {"mechanisms": TRAITS, "options": {}}, compared())
    assert main(["advise", "--length", "4096", "--run", "compared", "--error", "0.1"]) == 2
    assert "there is no measurement of errors under runs/: run `subquad error` first" in capsys.readouterr().err
