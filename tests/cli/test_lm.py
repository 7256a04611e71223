"""Causal language models, as they are typed."""

import io
import shutil
import sys
from pathlib import Path

import pytest

import subquad
from subquad.cli import main
from subquad.results import Run
from subquad.tasks.base import Completion
from tests.cli.resuming import check_it_goes_on
from tests.cli.test_convert import FEW

SMALL = ["--layers", "2", "--heads", "2", "--head-dim", "8", "--batch", "4", "--steps", "6", "--evaluate-every", "3"]
SMALL += ["--checkpoint-every", "3", "--length", "16", "--held-out", "64", "--vocabulary", "bytes"]


def write(folder: Path) -> Path:
    folder.mkdir()
    for split, number in (("train", 60), ("valid", 6), ("test", 6)):
        lines = (f" the cat number {at} sat on the mat , and the dog lay on the floor . \n" for at in range(number))
        (folder / f"wiki.{split}.tokens").write_text("".join(lines))
    return folder


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lm")
    texts = write(folder / "texts")
    command = ["train", "lm", "--attention", "softmax", *SMALL, "--text", str(texts), "--out", str(folder / "run")]
    assert main(command) == 0
    return folder / "run"


def test_training_says_what_was_learned(trained: Path) -> None:
    run = Run.open(trained)
    tested = [row["metric"] for row in run.rows() if row.get("split") == "test"]
    assert tested == [
        "bits_per_byte",
        "nats_per_token",
        "perplexity",
        "word_perplexity",
        "bits_per_byte_of_byte_frequencies",
        "bits_per_byte_of_5_grams",
        "evaluated_tokens",
        "context",
    ]
    watched = [row for row in run.rows() if row["metric"] == "bits_per_byte" and row["split"] == "held out"]
    assert [(row["step"], row["unit"]) for row in watched] == [(3, "bits"), (6, "bits")]
    page = (trained / "report.html").read_text()
    assert "bits per byte of 5 grams" in page
    assert "ended with a bits per byte of" in page


def test_it_goes_on_as_if_it_had_not_stopped(trained: Path, tmp_path: Path) -> None:
    check_it_goes_on(Path(shutil.copytree(trained, tmp_path / "run")))


def test_a_text_is_continued(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    how = ["--tokens", "12", "--temperature", "0.5", "--seed", "3"]

    def written(*words: str) -> str:
        assert main(["predict", str(trained), *words, *how]) == 0
        return capsys.readouterr().out

    first = written("--text", " the cat\nsat")
    assert first.startswith(" the cat\nsat")
    assert len(first) > len(" the cat\nsat\n")
    (tmp_path / "prompt.txt").write_text(" the cat\nsat\n")
    assert written("--file", str(tmp_path / "prompt.txt")) == first
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b" the cat\nsat\n")))
    assert written() == first
    assert written("the", "cat").startswith("the cat")
    assert len(written("--text", "")) > 1
    model = subquad.load(trained)
    assert first == " the cat\nsat" + model.complete(" the cat\nsat", Completion(12, 0.5, 3)) + "\n"
    assert model.reply("the cat").startswith("the cat")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--text", "a", "b"], "--text is the text to continue: give it without a sequence"),
        (["--text", "a", "--data", "b"], "--text is the text to continue: give it without a sequence"),
        (["--temperature", "-1"], "--temperature must be 0 or more, but is -1"),
        (["--tokens", "0"], "--tokens must be positive, but is 0"),
        (["--data", "."], "a model of lm answers sequences and gives no scores"),
        (["--follow"], "a model of lm follows no stream"),
    ],
)
def test_mistakes_of_predict(words: list[str], said: str, trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", str(trained), *words]) == 2
    assert said in capsys.readouterr().err


def test_other_models_continue_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copied = ["--length", "6", "--held-out", "2", "--layers", "1", "--heads", "1", "--head-dim", "4", "--steps", "1"]
    assert main(["train", "copy", *copied, "--no-page", "--out", str(tmp_path / "run")]) == 0
    for words in (["--text", "1 2"], ["1", "2", "--tokens", "3"]):
        assert main(["predict", str(tmp_path / "run"), *words]) == 2
        assert "a model of copy continues no text: leave out --text" in capsys.readouterr().err


def test_it_is_converted_and_looked_at(trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "converted"
    assert main(["convert", str(trained), "--attention", "learned", "--features", "8", *FEW, "--out", str(out)]) == 0
    rows = [row for row in Run.open(out).rows() if row["metric"] == "perplexity" and row["split"] == "test"]
    assert rows[0]["stage"] == "original"
    assert {row["recipe"] for row in rows} == {"conversion", "plain fine-tuning", "softmax fine-tuned"}
    capsys.readouterr()
    assert main(["predict", str(out), "--text", "the cat", "--tokens", "5"]) == 0
    assert capsys.readouterr().out.startswith("the cat")
    assert main(["spectrum", str(out / "model"), "--sequences", "1", "--out", str(tmp_path / "looked")]) == 0
    capsys.readouterr()
    smaller = [str(trained), "--attention", "elu", "--layers", "1", *FEW, "--no-controls"]
    assert main(["convert", *smaller, "--out", str(tmp_path / "smaller")]) == 0
    assert Run.open(tmp_path / "smaller" / "model").about["options"]["model"]["layers"] == 1
    assert main(["predict", str(tmp_path / "smaller"), "--text", "the cat", "--tokens", "5"]) == 0
    capsys.readouterr()
    assert main(["convert", str(trained), "--attention", "linformer", *FEW, "--out", str(tmp_path / "none")]) == 2
    assert "linformer has no causal form" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--text", "nowhere"], "there is no file or folder nowhere"),
        (["--attention", "linformer"], "linformer has no causal form"),
        (["--context", "16"], "--context must be below --length, which is 16, but is 16"),
        (["--vocabulary", "bpe", "--vocabulary-size", "9"], "--vocabulary-size must be at least 257"),
    ],
)
def test_mistakes_leave_no_run(options: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "lm", *SMALL, *options, "--out", str(tmp_path / "run")]) == 2
    printed = capsys.readouterr().err
    assert said in printed
    assert printed.count("\n") == 1
    assert not (tmp_path / "run").exists()
