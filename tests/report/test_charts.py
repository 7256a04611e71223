"""Charts from rows."""

from pathlib import Path

import altair as alt
import pytest

from subquad.compare.views import Comparison, name_view
from subquad.report.charts import METRICS, chart, legend_columns, points, save, size_chart
from subquad.results import Row
from tests.compare.rows import rows


@pytest.fixture(scope="module")
def shown() -> list[Row]:
    comparison = Comparison(rows())
    return [point for view in comparison.views for point in points(comparison, view, "mine", comparison.views)]


def test_points_are_the_figures(shown: list[Row]) -> None:
    first = name_view(Comparison(rows()).views[0])
    softmax = [row for row in shown if (row["view"], row["mechanism"]) == (first, "softmax")]
    time = {row["length"]: row for row in softmax if row["metric"] == "time"}
    assert time[1024]["value"] == pytest.approx(1.05, rel=0.1)
    assert time[1024]["low"] < time[1024]["value"] < time[1024]["high"]
    throughput = {row["length"]: row["value"] for row in softmax if row["metric"] == "throughput"}
    assert throughput[1024] == pytest.approx(1024 / time[1024]["value"])
    crossings = [row for row in shown if row["metric"] == "crossover" and row["view"] == first]
    assert [row["mechanism"] for row in crossings] == ["linear"]  # favor's is not within the lengths
    assert crossings[0]["low"] < 300 < crossings[0]["high"]


@pytest.mark.parametrize("metric", METRICS)
def test_a_chart_is_drawn_as_svg_and_png(metric: str, shown: list[Row], tmp_path: Path) -> None:
    view = shown[0]["view"]
    drawn = chart(metric, [row for row in shown if row["view"] == view], interactive=False)
    (png,) = save({metric: drawn}, tmp_path / "charts")
    assert png == tmp_path / "charts" / f"{metric}.png"
    assert png.read_bytes().startswith(b"\x89PNG")
    picture = png.with_suffix(".svg").read_text()
    for words in ("linear", "favor", METRICS[metric], "length, tokens"):
        assert words in picture
    assert picture.count('aria-roledescription="line mark"') >= 1 or "mark-line" in picture


def test_sizes_are_drawn_against_the_length(tmp_path: Path) -> None:
    sizes = {"softmax": [12.6, 12.6], "linformer": [13.0, 15.0]}
    values = [
        {"run": run, "mechanism": name, "length": length, "value": size}
        for run in ("here", "there")
        for name, by_length in sizes.items()
        for length, size in zip((512, 4096), by_length, strict=True)
    ]
    (png,) = save({"size": size_chart(values, interactive=False)}, tmp_path)
    picture = png.with_suffix(".svg").read_text()
    for words in ("softmax", "linformer", "length, tokens", "parameters and buffers of a layer, MB", "there"):
        assert words in picture


def test_a_legend_of_long_names_has_fewer_columns() -> None:
    expressions = [str(legend_columns(names).to_dict()["expr"]) for names in (["linear"], ["a" * 60], [])]
    assert ["clamp(floor(width / 63), 1, 4)" in expressions[0], "width / 360" in expressions[1]] == [True, True]
    assert "width / 30)" in expressions[2]


def test_a_name_by_layer_is_whole_and_has_a_colour_of_its_own_beside_all_attentions(tmp_path: Path) -> None:
    long = "linear*3,softmax,mypackage,linear*2,materialised,softmax*4"
    names = ["softmax", "materialised", *list("abcdefghij"), "linear*3,softmax", "mypackage.attention:MyAttention", long]
    values = [
        {
            "metric": "time",
            "view": "v",
            "run": "here",
            "mechanism": name,
            "length": length,
            "value": 1.0,
            "low": 1.0,
            "high": 1.0,
        }
        for name in names
        for length in (512, 4096)
    ]
    drawn = chart("time", values, interactive=False)
    colours = drawn.to_dict()["layer"][1]["encoding"]["color"]["scale"]["range"]
    assert len(set(colours)) == len(names)
    (png,) = save({"time": drawn}, tmp_path)
    picture = png.with_suffix(".svg").read_text()
    assert all(f">{name}<" in picture for name in names)


def test_runs_are_told_apart(shown: list[Row], tmp_path: Path) -> None:
    other = [{**row, "run": "other"} for row in shown]
    (png,) = save({"both": chart("time", [*shown, *other], interactive=False)}, tmp_path)
    picture = png.with_suffix(".svg").read_text()
    assert "other" in picture
    assert "stroke-dasharray" in picture


def test_characters_that_svg_cannot_hold_are_replaced(tmp_path: Path) -> None:
    """A NUL in a name would end the process that draws."""
    rows = [{"name": f"a\0b\x1b{number}", "value": number} for number in range(2)]
    chart = alt.Chart(alt.Data(values=rows), title="c\0d").mark_bar().encode(x="name:N", y="value:Q")
    (pixels,) = save({"bars": chart}, tmp_path)
    drawn = pixels.with_suffix(".svg").read_text()
    assert "a\N{REPLACEMENT CHARACTER}b\N{REPLACEMENT CHARACTER}1" in drawn
    assert "c\N{REPLACEMENT CHARACTER}d" in drawn
