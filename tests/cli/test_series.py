"""Series of numbers, as they are typed."""

import shutil
from pathlib import Path

import pytest

from subquad.cli import main
from subquad.results import Run
from tests.cli.resuming import check_it_goes_on
from tests.cli.test_tokens import SMALL
from tests.tasks.series.test_task import waves


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("series")
    data = waves(folder / "data.csv")
    command = ["train", "series", *SMALL, "--data", str(data), "--horizon", "4", "--out", str(folder / "run")]
    assert main(command) == 0
    return folder / "run"


def test_the_page_begins_with_what_the_model_loses_to(trained: Path) -> None:
    page = (trained / "report.html").read_text()
    gaps = {row["baseline"]: row["value"] for row in Run.open(trained).rows() if row["metric"] == "crps_gained"}
    worst = min(gaps, key=gaps.__getitem__)
    assert gaps[worst] < 0  # six steps do not beat a linear autoregression
    assert f"Linear: behind the {worst}: CRPS" in page
    assert "Forecast of the test part: series, load, from step" in page
    assert "CRPS by step ahead" in page


def test_it_goes_on_as_if_it_had_not_stopped(trained: Path, tmp_path: Path) -> None:
    check_it_goes_on(Path(shutil.copytree(trained, tmp_path / "run")))


def test_a_file_is_forecast(trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = str(waves(tmp_path / "new.csv", 30))
    assert main(["predict", str(trained), data]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == "series,channel,step,time,low_10,median,high_90"
    assert printed[1].startswith("series,load,1,30,")
    assert len(printed) == 5
    assert main(["predict", str(trained), "1", "2", "3"]) == 2
    assert "a model of series forecasts series: give a file of them" in capsys.readouterr().err


def test_bad_files_are_refused_in_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    contents = {"empty.csv": "", "one.csv": "time,v\n1,2\n", "nan.csv": "time,v\n" + "1,nan\n" * 9}
    for name, content in contents.items():
        (tmp_path / name).write_text(content)
        assert main(["train", "series", "--data", str(tmp_path / name), "--out", str(tmp_path / "run")]) == 2
        message = capsys.readouterr().err.strip()
        assert name in message
        assert "\n" not in message
    assert not (tmp_path / "run").exists()
