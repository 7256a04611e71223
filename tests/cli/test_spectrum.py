"""`subquad spectrum`, as it is typed."""

import sys
from pathlib import Path

import pytest

from subquad.cli import main
from subquad.results import Run
from tests.cli.test_mlm import SMALL, write
from tests.hub.test_looking import save

COPY = [
    "--layers",
    "2",
    "--heads",
    "2",
    "--head-dim",
    "8",
    "--length",
    "10",
    "--steps",
    "1",
    "--held-out",
    "2",
    "--batch",
    "2",
]


def shapes(run: Run, model: str) -> set[tuple[int, int]]:
    return {(row["layer"], row["head"]) for row in run.rows() if row["metric"] == "rank" and row["model"] == model}


def test_a_model_of_hugging_face(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(tmp_path / "bert")
    (tmp_path / "text.txt").write_text("the cat sat on the mat . " * 30)
    arguments = [
        "spectrum",
        str(tmp_path / "bert"),
        "--text",
        str(tmp_path / "text.txt"),
        "--sequences",
        "2",
        "--length",
        "16",
    ]
    out = ["--out", str(tmp_path / "run")]
    assert main([*arguments, *out]) == 0
    printed = capsys.readouterr().out
    assert "By layer, of 16 positions" in printed
    run = Run.open(tmp_path / "run", "spectrum")
    assert run.about["options"]["class"] == "BertModel"
    assert shapes(run, "trained") == shapes(run, "random") == {(layer, head) for layer in (1, 2) for head in (1, 2, 3, 4)}
    assert {row["index"] for row in run.rows() if row["metric"] == "share_at_index"} == {4}
    ranks = {row["rank"] for row in run.rows() if row["metric"] == "share_within_rank"}
    assert ranks == {4, 8, 64, 256}  # of elu, cosformer, landmarks, and of favor and slots
    assert "BertModel" in (tmp_path / "run" / "report.html").read_text()
    assert main(["report", str(tmp_path / "run"), "--out", str(tmp_path / "again.html")]) == 0
    assert "share of the first 4" in (tmp_path / "again.html").read_text()
    assert main([*arguments, *out]) == 2
    assert "holds a run already" in capsys.readouterr().err


def test_a_masked_language_model_and_its_own_rank(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = write(tmp_path / "texts")
    slots = ["--attention", "linformer", "--k", "3", "--max-length", "24"]
    given = ["--text", str(texts), "--vocabulary", "bytes", "--steps", "1"]
    assert main(["train", "mlm", *SMALL, *given, *slots, "--out", str(tmp_path / "run")]) == 0
    assert main(["spectrum", str(tmp_path / "run"), "--sequences", "3", "--out", str(tmp_path / "spectrum")]) == 0
    rows = Run.open(tmp_path / "spectrum").rows()
    assert "linformer, its own: 3 slots" in {row.get("mechanism") for row in rows}
    assert {row["value"] for row in rows if row["metric"] == "rank"} == {3}
    assert {row["length"] for row in rows} == {24}
    assert main(["spectrum", str(tmp_path / "run"), "--length", "30", "--out", str(tmp_path / "none")]) == 2
    assert "linformer was built for max_length=24" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()
    assert main(["spectrum", str(tmp_path / "run"), "--text", str(texts / "picture.txt")]) == 2
    assert "is not text in UTF-8 but something binary" in capsys.readouterr().err


def test_a_decoder_is_looked_at_with_its_own_sequences(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "copy", *COPY, "--out", str(tmp_path / "run")]) == 0
    assert main(["spectrum", str(tmp_path / "run"), "--sequences", "2", "--no-random", "--out", str(tmp_path / "s")]) == 0
    run = Run.open(tmp_path / "s")
    assert shapes(run, "trained") == {(1, 1), (1, 2), (2, 1), (2, 2)}
    assert shapes(run, "random") == set()
    capsys.readouterr()
    assert main(["spectrum", str(tmp_path / "run"), "--text", "x"]) == 2
    assert "a model of copy is looked at with sequences of its task" in capsys.readouterr().err


def test_mistakes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = save(tmp_path / "bert")
    (tmp_path / "empty").mkdir()
    (tmp_path / "short.txt").write_text("the cat")
    for arguments, said in (
        ([str(tmp_path / "nowhere")], "there is no folder"),
        ([str(tmp_path / "empty")], "is no model: it has neither a run.json"),
        ([str(model), "--text", str(tmp_path / "empty")], "has no text in it"),
        (
            [str(model), "--text", str(tmp_path / "short.txt")],
            "has no stretch of 64 tokens: give more text or a smaller --length",
        ),
        ([str(model), "--length", "65"], "--length is 65, but the model has 64 positions"),
        ([str(model), "--sequences", "0"], "--sequences must be positive, but is 0"),
    ):
        assert main(["spectrum", *arguments, "--out", str(tmp_path / "none")]) == 2
        printed = capsys.readouterr().err
        assert said in printed
        assert len([line for line in printed.splitlines() if line.startswith("subquad: ")]) == 1
        assert not (tmp_path / "none").exists()


def test_a_name_of_the_hub_without_a_network(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    assert main(["spectrum", "nobody/no-such-model"]) == 2
    assert "is no folder here and cannot be had from the Hugging Face hub" in capsys.readouterr().err


def test_without_transformers(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for name in [name for name in sys.modules if name.split(".")[:2] == ["subquad", "hub"]]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert main(["spectrum", "bert-base-uncased"]) == 2
    assert "needs transformers, which is not installed" in capsys.readouterr().err
