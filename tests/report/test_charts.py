"""Charts from rows."""

from pathlib import Path

from subquad.report.charts import save, speedups
from subquad.results import Row


def test_a_chart_is_drawn_as_svg_and_png(tmp_path: Path) -> None:
    rows: list[Row] = [
        {"metric": "speedup", "value": value, "low": value * 0.9, "high": value * 1.1, "mechanism": "linear"}
        | {"length": length, "form": form, "what": "forward", "threads": 1, "rounds": 3}
        for length, value in ((128, 0.5), (1024, 4.0))
        for form in ("bidirectional", "causal")
    ]
    png = save(speedups(rows), tmp_path / "charts" / "speed")
    assert png.read_bytes().startswith(b"\x89PNG")
    drawn = png.with_suffix(".svg").read_text()
    for words in ("linear", "bidirectional", "causal", "times as fast as fused softmax"):
        assert words in drawn
