"""Masked language models, as they are typed."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from subquad.cli import main
from subquad.results import Run
from subquad.runs import load
from tests.cli.resuming import check_it_goes_on

SMALL = ["--layers", "1", "--heads", "2", "--head-dim", "8", "--batch", "8", "--steps", "6", "--evaluate-every", "3"]
SMALL += ["--checkpoint-every", "3", "--length", "24", "--held-out", "8", "--tested", "8"]


def write(folder: Path) -> Path:
    folder.mkdir()
    for number in range(20):
        (folder / f"{number:02d}.txt").write_text(f"the cat sat on the mat, and the dog {number} lay on the floor. " * 10)
    (folder / "picture.txt").write_bytes(b"\x89PNG\x00")
    return folder


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mlm")
    texts = write(folder / "texts")
    options = ["--text", str(texts), "--vocabulary-size", "120", "--whole-words"]
    assert main(["train", "mlm", *SMALL, *options, "--out", str(folder / "run")]) == 0
    return folder / "run"


def test_training_keeps_the_vocabulary_the_test_and_samples(trained: Path) -> None:
    run = Run.open(trained)
    assert run.about["learned"]["vocabulary"]["pieces"][:3] == ["[PAD]", "[MASK]", "[UNK]"]
    assert run.about["learned"]["documents"] == 20
    tested = [row["metric"] for row in run.rows() if row.get("split") == "test"]
    assert tested == ["perplexity", "perplexity_of_unigram", "accuracy", "masked_tokens"]
    watched = [row for row in run.rows() if row["metric"] == "perplexity" and row["split"] == "held out"]
    assert [(row["step"], row["unit"]) for row in watched] == [(3, "tokens"), (6, "tokens")]
    page = (trained / "report.html").read_text()
    assert "[MASK]" in page
    assert "perplexity of unigram" in page


def test_blanks_are_filled_without_the_texts(trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = Path(shutil.copytree(trained, tmp_path / "run"))
    about = json.loads((run / "run.json").read_text())
    about["options"]["task"]["text"] = "gone"
    (run / "run.json").write_text(json.dumps(about))
    assert main(["predict", str(run), "the cat [MASK] on the mat, and"]) == 0
    typed = capsys.readouterr().out
    assert typed.startswith("the cat ")
    assert " on the mat, and  (" in typed
    (tmp_path / "lines").write_text("the cat [MASK] on the mat, and\n")
    assert main(["predict", str(run), "--file", str(tmp_path / "lines")]) == 0
    assert capsys.readouterr().out == typed  # with the comma that other tasks take for a space
    assert main(["predict", str(run), "the cat sat"]) == 2
    assert "write [MASK] where the model is to find a word" in capsys.readouterr().err


def test_a_run_goes_on_as_if_it_had_not_stopped(trained: Path, tmp_path: Path) -> None:
    check_it_goes_on(Path(shutil.copytree(trained, tmp_path / "run")))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--text", "nowhere"], "there is no file or folder nowhere"),
        (["--attention", "linformer", "--max-length", "16"], "--length is 24, which linformer does not take"),
        (["--mask-share", "0"], "--mask-share must be positive, but is 0.0"),
    ],
)
def test_mistakes_leave_no_run(options: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = [*SMALL, "--vocabulary", "bytes", "--out", str(tmp_path / "run")]
    assert main(["train", "mlm", *base, *options]) == 2
    printed = capsys.readouterr().err
    assert said in printed
    assert printed.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_what_is_no_text_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = write(tmp_path / "texts")
    options = ["--text", str(texts), "--vocabulary", "characters", "--steps", "1"]
    assert main(["train", "mlm", *SMALL, *options, "--out", str(tmp_path / "run")]) == 0
    assert "subquad: texts: 1 file is left out, not text in UTF-8: picture.txt" in capsys.readouterr().err


def test_from_a_masked_model_to_a_classifier(trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [{"text": f"the {('cat', 'dog')[at % 2]} {at} sat on the mat", "label": at % 2} for at in range(40)]
    (tmp_path / "labelled.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    training = ["--steps", "2", "--batch", "4", "--checkpoint-every", "1", "--learning-rate", "1e-9"]
    base = ["train", "classify", "--text", str(tmp_path / "labelled.jsonl"), "--start", str(trained), "--length", "16"]
    assert main([*base, *training, "--out", str(tmp_path / "run")]) == 0
    run = Run.open(tmp_path / "run")
    first = Run.open(trained).about
    assert [run.about["options"][part] for part in ("mechanism", "model")] == [
        first["options"][part] for part in ("mechanism", "model")
    ]
    assert run.about["learned"]["vocabulary"] == first["learned"]["vocabulary"]
    before, after = load(trained).model.state_dict(), load(tmp_path / "run").model.state_dict()
    name = "encoder.blocks.0.attention.to_q.weight"
    assert torch.allclose(before[name], after[name], atol=1e-6)  # such small steps change nothing: they are taken over
    capsys.readouterr()
    assert main(["predict", str(tmp_path / "run"), "the cat sat, too"]) == 0
    assert capsys.readouterr().out[0] in "01"
    for options, said in (
        (["--attention", "favor"], "--start takes the attention and the shape of the model in"),
        (["--layers", "5"], "--start takes the attention and the shape of the model in"),
        (["--start", str(tmp_path / "run")], "is a run of the task classify: --start takes one of the task mlm"),
    ):
        assert main([*base, *options, "--out", str(tmp_path / "none")]) == 2
        assert said in capsys.readouterr().err
        assert not (tmp_path / "none").exists()
