"""Speech, as it is typed: training, resuming, and writing down what was said."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import scipy

from subquad.cli import main
from subquad.results import Run
from tests.cli.resuming import check_it_goes_on
from tests.tasks.speech.test_task import write_wavs

SMALL = ["--layers", "1", "--heads", "2", "--head-dim", "8", "--batch", "4", "--steps", "6", "--evaluate-every", "3"]
SMALL += ["--checkpoint-every", "3", "--bands", "10"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("speech")
    (folder / "sounds").mkdir()
    write_wavs(folder / "sounds", ["AB", "BA", "A"] * 5)
    assert main(["train", "speech", "--data", str(folder / "sounds"), *SMALL, "--out", str(folder / "run")]) == 0
    return folder / "run"


def test_training_says_what_was_learned(trained: Path) -> None:
    tested = [row for row in Run.open(trained).rows() if row.get("split") == "test"]
    metrics = ["error_rate", "beam_error_rate", "word_error_rate", "evaluated_recordings", "recording_edits"]
    assert list(dict.fromkeys(row["metric"] for row in tested)) == metrics
    by_recording = [row for row in tested if row["metric"] == "recording_edits"]
    rate = sum(row["value"] for row in by_recording) / sum(row["units"] for row in by_recording)
    assert tested[0]["value"] == pytest.approx(rate)
    page = (trained / "report.html").read_text()
    assert "ended with an error rate of" in page
    assert "beam error rate" in page


def test_it_goes_on_as_if_it_had_not_stopped(trained: Path, tmp_path: Path) -> None:
    check_it_goes_on(Path(shutil.copytree(trained, tmp_path / "run")))


def test_sounds_are_written_down(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    sounds = trained.parent / "sounds"
    assert main(["predict", str(trained), str(sounds / "0.wav"), str(sounds / "1.wav")]) == 0
    both = capsys.readouterr().out
    assert len(both.split("\n")) == 3
    listed = tmp_path / "files.txt"
    listed.write_text(f"{sounds / '0.wav'}\n{sounds / '1.wav'}\n")
    assert main(["predict", str(trained), "--file", str(listed)]) == 0
    assert capsys.readouterr().out == both
    table = tmp_path / "said.csv"
    assert main(["predict", str(trained), "--data", str(sounds), "--output", str(table)]) == 0
    assert table.read_text().splitlines()[0] == "file,text"
    assert len(table.read_text().splitlines()) == 16


def test_sounds_that_cannot_be_used_are_refused_in_one_sentence(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scipy.io.wavfile.write(tmp_path / "silent.wav", 16_000, np.zeros(8000, np.int16))
    (tmp_path / "text.wav").write_text("not a sound")
    for name, said in (("silent.wav", "is silent"), ("text.wav", "is no WAV file"), ("none.wav", "check the path")):
        assert main(["predict", str(trained), str(tmp_path / name)]) == 2
        message = capsys.readouterr().err.strip()
        assert said in message
        assert "\n" not in message
