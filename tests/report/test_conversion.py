"""The page of `subquad convert`, from made-up rows."""

from pathlib import Path

import pytest

from subquad.cli import main
from subquad.report.conversion import (
    answers,
    attention_name,
    cost_table,
    length_tables,
    stage_table,
    write_conversion_figures,
    write_conversion_page,
)
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
        found.append({**own, "stage": stage, "step": step, "elapsed": 0.25 * step, "split": "development", "value": 0.9})
        found.append({"metric": "loss", "recipe": "conversion", "stage": stage, "step": step, "value": 1 / step})
    found += [{**row, "split": "development", "value": row["value"] - 0.01} for row in found if row.get("split") == "test"]
    if controls:
        about = {"metric": metric, "recipe": "plain fine-tuning", "stage": "tuned", "step": 500, "elapsed": 150.0}
        found += [{**about, "split": split, "value": 0.85} for split in ("development", "test")]
    return found


def decided(*, undone: str = "") -> list[Row]:
    """Which stages were kept."""
    about = {"metric": "kept", "recipe": "conversion"}
    stages = ("swapped", "distilled", "tuned")
    found: list[Row] = [{**about, "value": float(stage != undone), "stage": stage} for stage in stages]
    return [found[0], *({**row, "message": f"{row['stage']}: it was judged"} for row in found[1:])]


def by_length() -> list[Row]:
    """Texts of three lengths, the longest of which lie outside of a window."""
    found: list[Row] = []
    models = [("conversion", "swapped", 0.2), ("conversion", "tuned", 0.05), ("window alone", "tuned", 0.1)]
    for recipe, stage, loss in models:
        for length, outside in ((32, 0.0), (128, 0.5), (512, 0.8)):
            about = {"recipe": recipe, "stage": stage, "split": "test", "length": length, "outside": outside}
            found.append({"metric": "cosine by length", "value": 1 - loss * outside, **about})
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


@pytest.mark.parametrize("mechanism", [True, "linear", [], None, {}])
def test_an_attention_that_is_not_told_has_no_name(mechanism: object) -> None:
    assert attention_name({"options": {"mechanism": mechanism}}) == "another attention"


def test_the_table_has_every_stage_and_the_controls() -> None:
    table = stage_table([*quality(), *decided()])
    assert table.columns == ["recipe", "stage", "steps", "training", "kept", "development", "cosine"]
    assert [[cell.text for cell in row] for row in table.rows] == [
        ["the original", "original", "0", "0 s", "", "0.990", "1.000 (0.990 to 1.000)"],
        ["conversion", "swapped", "0", "0 s", "built on", "0.440", "0.450 (0.440 to 0.460)"],
        ["conversion", "distilled", "400", "100 s", "built on", "0.930", "0.940 (0.930 to 0.950)"],
        ["conversion", "tuned", "600", "150 s", "kept", "0.945", "0.955 (0.945 to 0.965)"],
        ["plain fine-tuning", "tuned", "500", "150 s", "kept", "0.850", "0.850"],
    ]


def test_the_table_says_what_was_undone() -> None:
    table = stage_table([*quality(), *decided(undone="tuned")])
    assert {row[1].text: row[4].text for row in table.rows if row[0].text == "conversion"} == {
        "swapped": "built on",
        "distilled": "kept",
        "tuned": "undone",
    }


def test_answers_in_sentences() -> None:
    said = answers([*quality(), *decided(), *costs()])
    assert said == [
        "Cosine: tuned 0.955 (0.945 to 0.965), original 1.000, swapped 0.450; controls: plain fine-tuning 0.850.",
        "Conversion, by development texts: distilled: it was judged.",
        "Conversion, by development texts: tuned: it was judged.",
        "At 8192 tokens it is 16.4 (13.4 to 20.0) times as fast as before.",
    ]
    assert answers([*quality(), *decided(undone="tuned")])[0].startswith("Cosine: distilled 0.940 (0.930 to 0.950), ")
    assert answers(quality())[0].startswith("Cosine: tuned 0.955 ")  # a run that does not say what it kept
    failed = {"metric": "failure", "value": 1.0, "failure": "timeout", "message": "too long", "length": 9, "model": "before"}
    assert answers([failed]) == ["At 9 tokens the model before gave no figures: timeout (too long)."]


def test_undone_stages_of_controls_are_said() -> None:
    control = {"metric": "kept", "value": 0.0, "recipe": "plain fine-tuning", "stage": "tuned", "message": "worse"}
    assert answers([control]) == ["Plain fine-tuning, by development texts: worse."]
    assert answers([{**control, "value": 1.0}]) == []


def test_what_is_far_is_said() -> None:
    rows: list[Row] = [*quality(), *decided(), *by_length()]
    assert answers(rows)[3] == (
        "Cosine at 512 tokens, 80% of a text outside of what a layer weighs exactly: 0.960; nothing trained 0.840, "
        "window alone 0.920."
    )
    short = [row for row in rows if (row.get("recipe"), row.get("length")) != ("window alone", 512)]
    assert answers(short)[3].endswith("0.960; nothing trained 0.840.")
    about = {"metric": "far recall", "split": "test", "recipe": "conversion"}
    rows += [{**about, "stage": stage, "value": value} for stage, value in (("original", 0.5), ("tuned", 0.4))]
    rows += [{**about, "stage": "tuned", "recipe": "window alone", "value": 0.3}]
    assert "Far recall: 0.400, original 0.500; controls: window alone 0.300." in answers(rows)
    within = [{**row, "outside": 0.0} if "outside" in row else row for row in rows]
    assert "No text was longer than the exact window: nothing is known of what lies beyond it." in answers(within)


@pytest.mark.parametrize(("outside", "is_short"), [(0.01, True), (0.3, False)])
def test_pairs_within_the_window_are_said_to_be(outside: float, is_short: bool) -> None:
    pairs = {"metric": "spearman", "value": 0.868, "split": "test", "recipe": "conversion", "stage": "tuned"}
    said = answers([*quality(), *decided(), {**pairs, "outside": outside}])
    assert any("within the exact window (1% outside)" in sentence for sentence in said) == is_short


def test_where_the_time_went_and_what_there_was_none_for() -> None:
    spent = {"all": 230.0, "measuring": 23.0, "training": 180.0}
    rows: list[Row] = [{"metric": "duration", "value": value, "what": what, "unit": "s"} for what, value in spent.items()]
    rows += [
        {"metric": "left out", "value": None, "message": "to fit into 4 minutes: no spectra of heads"},
        {"metric": "left out", "value": None, "message": "time and memory are measured up to 128 tokens only"},
    ]
    assert answers(rows) == [
        "Left out to fit into 4 minutes: no spectra of heads.",
        "Time and memory are measured up to 128 tokens only.",
        "It took 230 s in all: 180 s of training, 23.0 s (10%) of measuring.",
    ]
    assert answers(rows[:2]) == []  # a run that was killed before all of it was told


def test_the_table_by_length_says_how_much_is_outside() -> None:
    (table,) = length_tables([*quality(), *decided(), *by_length()])
    assert table.columns == ["tokens", "outside", "nothing trained", "conversion", "window alone"]
    assert [[cell.text for cell in row] for row in table.rows] == [
        ["32", "0%", "1.000", "1.000", "1.000"],
        ["128", "50%", "0.900", "0.975", "0.950"],
        ["512", "80%", "0.840", "0.960", "0.920"],
    ]
    assert length_tables(quality()) == []


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
    charts = conversion_charts([*quality(), *quality("neighbours"), *by_length(), *heads(), *costs()])
    assert list(charts) == ["quality", "length", "loss", "attention-divergence", "effective-rank", "seconds", "bytes"]
    both = charts["quality"].to_dict()["concat"]
    assert len(both) == 2
    line = both[0]["layer"][0]["data"]["values"]
    assert [(point["recipe"], point["step"]) for point in line] == [
        *(("conversion", step) for step in range(100, 700, 100)),
        *(("conversion", step) for step in (0, 400, 600)),
        ("plain fine-tuning", 500),
    ]
    points = charts["length"].to_dict()["data"]["values"]
    assert [(point["model"], point["length"]) for point in points] == [
        (name, length) for name in ("nothing trained", "conversion", "window alone") for length in (32, 128, 512)
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
    runs = [
        run(tmp_path / "one", [*quality(), *by_length(), *heads(), *costs()]),
        run(tmp_path / "two", quality(controls=False)),
    ]
    write_conversion_page(runs, tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    for words in (
        "minilm: linear (learned)",
        'id="chart-quality-1"',
        'id="chart-length-0"',
        'id="chart-seconds-0"',
        "times as fast as before",
    ):
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
