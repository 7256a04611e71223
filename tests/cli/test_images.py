"""Images, as they are typed: training, resuming, finishing and drawing pictures."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from subquad.cli import main
from subquad.data.png import SIGNATURE
from subquad.results import Run
from tests.cli.resuming import check_it_goes_on

SMALL = ["--layers", "1", "--heads", "2", "--head-dim", "4", "--batch", "4", "--steps", "6", "--evaluate-every", "3"]
SMALL += ["--checkpoint-every", "3", "--held-out", "4", "--tested", "5"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("images")
    images = np.random.default_rng(0).integers(0, 256, (30, 4, 4), dtype=np.uint8)
    np.savez(folder / "mine.npz", train_images=images, test_images=images[:8])
    command = ["train", "images", "--data", str(folder / "mine.npz"), *SMALL, "--out", str(folder / "run")]
    assert main(command) == 0
    return folder / "run"


def test_training_says_what_was_learned_and_shows_pictures(trained: Path) -> None:
    tested = [row["metric"] for row in Run.open(trained).rows() if row.get("split") == "test"]
    assert tested == ["bits_per_dimension", "bits_per_dimension_of_frequencies", "evaluated_images"]
    page = (trained / "report.html").read_text()
    assert "ended with a bits per dimension of" in page
    assert page.count('<img class="pixels" alt="" src="data:image/png;base64,') == 3 * 3 + 1  # 3 development images


def test_it_goes_on_as_if_it_had_not_stopped(trained: Path, tmp_path: Path) -> None:
    check_it_goes_on(Path(shutil.copytree(trained, tmp_path / "run")))


def test_pictures_are_finished_and_drawn(trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words, name in ((["--complete", "0.5"], "completed-0.5.png"), (["--samples", "5"], "samples.png")):
        assert main(["predict", str(trained), *words]) == 0
        assert capsys.readouterr().out == f"{trained / name}\n"
        assert (trained / name).read_bytes().startswith(SIGNATURE)
    out = tmp_path / "mine.png"
    words = ["--complete", "0.25", "--samples", "2", "--data", str(trained.parent / "mine.npz"), "--seed", "3"]
    assert main(["predict", str(trained), *words, "--temperature", "0", "--output", str(out)]) == 0
    assert out.read_bytes().startswith(SIGNATURE)


def test_what_does_not_fit_together_is_refused(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words, said in (
        (["--samples", "3", "--data", str(trained)], "--samples draws new pictures: leave out --data"),
        (["--complete", "0.5", "1", "2"], "give them without a sequence"),
        (["--complete", "1.5"], "--complete must be below 1"),
        (["--samples", "0"], "--samples must be positive"),
        (["--complete", "0.5", "--data", str(trained / "run.json")], "holds no images in a format that is read"),
        (["1", "2"], "a model of images finishes and draws pictures: give --complete 0.5 or --samples 16"),
    ):
        assert main(["predict", str(trained), *words]) == 2
        assert said in capsys.readouterr().err


def test_other_models_draw_no_pictures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    size = ["--layers", "1", "--heads", "1", "--head-dim", "4", "--batch", "2", "--steps", "1", "--no-page"]
    assert main(["train", "copy", "--length", "2", "--held-out", "2", *size, "--out", str(tmp_path / "run")]) == 0
    assert main(["predict", str(tmp_path / "run"), "--samples", "2"]) == 2
    assert "a model of copy draws no pictures: leave out --complete and --samples" in capsys.readouterr().err
