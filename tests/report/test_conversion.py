"""The page of `subquad convert`, from made-up rows."""

from pathlib import Path

import pytest

from subquad.cli import main
from subquad.report.conversion import answers, cost_table, stage_table, write_conversion_figures, write_conversion_page
from subquad.report.conversion_charts import conversion_charts
from subquad.results import Row, Run

STAGES = {"original": (0, 1.0), "swapped": (0, 0.45), "distilled": (400, 0.94), "tuned": (600, 0.955)}


def quality(metric: str = "cosine", *, controls: bool = True) -> list[Row]:
    """The conversion in its stages, watched on the way, and a control."""
    found: list[Row] = []
    own = {"metric": metric, "recipe": "conversion"}
    for stage, (step, value) in STAGES.items():
        about = {"stage": stage, "step": step, "elapsed": 0.25 * step, "split": "test"}
        found.append({**own, **about, "value": value, "low": value - 0.01, "high": min(1.0, value + 0.01)})
    for step in range(100, 700, 100):
        stage = "distilled" if step <= 400 else "tuned"
        found.append({**own, "stage": stage, "step": step, "elapsed": 0.25 * step, "split": "watched", "value": 0.9})
        found.append({"metric": "loss", "recipe": "conversion", "stage": stage, "step": step, "value": 1 / step})
    if controls:
        about = {"metric": metric, "recipe": "plain fine-tuning", "stage": "tuned", "step": 500, "elapsed": 150.0}
        found += [{**about, "split": split, "value": 0.85} for split in ("watched", "test")]
    return found


def heads() -> list[Row]:
    found: list[Row] = []
    for stage, (_, value) in STAGES.items():
        for layer in range(2):
            for head in range(3):
                about = {"recipe": "conversion", "stage": stage, "step": 0, "layer": layer, "head": head}
                found.append({"metric": "attention divergence", "value": 1.0 - value + 0.01 * head, **about})
                found.append({"metric": "effective rank", "value": 20.0 + layer, **about})
    return found


def costs() -> list[Row]:
    found: list[Row] = []
    for length in (128, 1024, 8192):
        for model, seconds in (("before", length**2 / 1e6), ("after", length / 2e3)):
            about = {"length": length, "model": model}
            found.append({"metric": "seconds", "value": seconds, "low": 0.9 * seconds, "high": 1.1 * seconds, **about})
            held = float(1000 * length)
            found.append({"metric": "bytes", "value": held, "low": held, "high": held, **about})
    return found


def run(folder: Path, rows: list[Row]) -> Run:
    mechanism = {"kind": "linear", "feature_map": {"kind": "learned"}}
    options = {"model": "some/minilm", "mechanism": mechanism}
    made = Run.create(folder, "convert", {"options": options, "command": "subquad convert some/minilm"})
    made.append(rows)
    return made


def test_the_table_has_every_stage_and_the_controls() -> None:
    table = stage_table(quality())
    assert table.columns == ["recipe", "stage", "steps", "training", "cosine"]
    assert [[cell.text for cell in row] for row in table.rows] == [
        ["the original", "original", "0", "0 s", "1.000 (0.990 to 1.000)"],
        ["conversion", "swapped", "0", "0 s", "0.450 (0.440 to 0.460)"],
        ["conversion", "distilled", "400", "100 s", "0.940 (0.930 to 0.950)"],
        ["conversion", "tuned", "600", "150 s", "0.955 (0.945 to 0.965)"],
        ["plain fine-tuning", "tuned", "500", "150 s", "0.850"],
    ]


def test_answers_in_sentences() -> None:
    said = answers([*quality(), *costs()])
    assert said == [
        "Cosine: tuned 0.955 (0.945 to 0.965), original 1.000, swapped 0.450; controls: plain fine-tuning 0.850.",
        "At 8192 tokens it is 16.4 (13.4 to 20.0) times as fast as before.",
    ]
    few = [{**row, "value": 0.93} if row["stage"] == "tuned" else row for row in quality(controls=False)]
    assert answers(few)[1:] == [
        "It was better before it was tuned (distilled: 0.940): these were too few steps; give more --minutes, or leave the "
        "second stage out with --tune-steps 0."
    ]
    falling = [{**row, "metric": "perplexity", "value": 1 / row["value"]} for row in quality() if row["metric"] == "cosine"]
    assert len(answers(falling)) == 1  # the less, the better
    failed = {"metric": "failure", "value": 1.0, "failure": "timeout", "message": "too long", "length": 9, "model": "before"}
    assert answers([failed]) == ["At 9 tokens the model before gave no figures: timeout (too long)."]


def test_costs_by_length() -> None:
    table = cost_table(costs())
    assert [cell.text for cell in table.rows[-1]] == [
        *("8192", "67.1 s", "4.10 s", "16.4 (13.4 to 20.0)"),
        *("8.19 MB", "8.19 MB", "1.00"),
    ]
    half = [row for row in costs() if not (row["length"] == 8192 and row["model"] == "before")]
    failed = {"metric": "failure", "value": 1.0, "failure": "timeout", "message": "", "length": 8192, "model": "before"}
    assert [cell.text for cell in cost_table([*half, failed]).rows[-1]][:4] == ["8192", "timeout", "4.10 s", "-"]


def test_charts_are_drawn_of_what_there_is() -> None:
    charts = conversion_charts([*quality(), *quality("neighbours"), *heads(), *costs()])
    assert list(charts) == ["quality", "loss", "attention-divergence", "effective-rank", "seconds", "bytes"]
    both = charts["quality"].to_dict()["concat"]
    assert len(both) == 2
    line = both[0]["layer"][0]["data"]["values"]
    assert [(point["recipe"], point["step"]) for point in line] == [
        ("conversion", 0),
        *(("conversion", step) for step in range(100, 700, 100)),
        ("plain fine-tuning", 500),
    ]
    maps = charts["attention-divergence"].to_dict()["hconcat"]
    assert [one["title"] for one in maps] == ["swapped", "distilled", "tuned"]
    assert len(maps[0]["data"]["values"]) == 6
    ranks = charts["effective-rank"].to_dict()["hconcat"]
    assert [one["title"] for one in ranks] == ["original", "swapped", "tuned"]
    assert list(conversion_charts(costs())) == ["seconds", "bytes"]


def test_perplexity_has_a_logarithmic_axis() -> None:
    (chart,) = conversion_charts(quality("perplexity"))["quality"].to_dict()["concat"]
    assert chart["layer"][0]["encoding"]["y"]["scale"]["type"] == "log"


def test_the_page_and_the_figures(tmp_path: Path) -> None:
    runs = [run(tmp_path / "one", [*quality(), *heads(), *costs()]), run(tmp_path / "two", quality(controls=False))]
    write_conversion_page(runs, tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    for words in ("minilm: linear (learned)", 'id="chart-quality-1"', 'id="chart-seconds-0"', "times as fast as before"):
        assert words in page
    assert 'id="chart-seconds-1"' not in page
    written = list(write_conversion_figures(runs[1:], tmp_path / "figures"))
    assert [path.name for path in written] == ["quality.png", "loss.png"]
    assert all(path.stat().st_size > 1000 and path.with_suffix(".svg").exists() for path in written)


def test_report_knows_conversions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = run(tmp_path / "one", quality())
    assert main(["report", str(made.folder)]) == 0
    assert (made.folder / "report.html").exists()
    assert "The page" in capsys.readouterr().out
