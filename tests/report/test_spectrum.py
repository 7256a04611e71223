"""The page of `subquad spectrum`."""

from pathlib import Path

import pytest

from subquad.report.spectrum import layer_table, rank_table, spectrum_charts, write_spectrum_figures, write_spectrum_page
from subquad.results import Row, Run


def rows(*, random: bool = True) -> list[Row]:
    """Two layers of three heads; the share of a head grows with its number, and with the layer."""
    found: list[Row] = []
    for model in ("trained", "random")[: 1 + random]:
        for layer in (1, 2):
            for head in (1, 2, 3):
                own = {"model": model, "layer": layer, "head": head, "length": 64.0, "sequences": 2}
                value = 0.5 + 0.1 * head + 0.05 * layer
                ends = {"value": value, "low": value, "high": value}
                found.append({"metric": "share_at_index", "unit": "share", "index": 16.0, **ends, **own})
                found.append({"metric": "effective_rank", "unit": "dimensions", **ends, **own, "value": 10.0 * head})
                found.append({"metric": "rank", "unit": "dimensions", **ends, **own, "value": 60.0})
                for name, most in (("linear, 8 features", 8), ("favor, 256 features", 256)):
                    found.append({"metric": "share_within_rank", "mechanism": name, "rank": most, **ends, **own})
                for index in (0, 16, 64):
                    found.append({"metric": "cumulative", "value": index / 64, "index": index, **own})
    return found


def run(folder: Path, *, random: bool = True) -> Run:
    options = {"model": "some/model", "class": "BertModel", "attention": "eager", "sequences": 2}
    made = Run.create(folder, "spectrum", {"options": options, "command": "subquad spectrum some/model"})
    made.append(rows(random=random))
    return made


def test_tables_have_means_and_ranges_over_heads() -> None:
    table = layer_table(rows())
    assert table.columns == [
        "layer",
        "share of the first 16",
        "fresh weights",
        "effective rank",
        "fresh weights",
        "rank",
        "fresh weights",
    ]
    assert [cell.text for cell in table.rows[1]][:4] == [
        "2",
        "0.800 (0.700 to 0.900)",
        "0.800 (0.700 to 0.900)",
        "20.0 (10.0 to 30.0)",
    ]
    assert "of 64 positions" in table.caption
    ranks = rank_table(rows(random=False))
    assert [row[0].text for row in ranks.rows] == ["linear, 8 features", "favor, 256 features"]
    assert ranks.rows[0][2].value == pytest.approx(0.775)
    assert len(layer_table(rows(random=False)).columns) == 4


def test_charts_hold_every_head_and_the_ranks_below_the_length() -> None:
    charts = spectrum_charts(rows())
    assert list(charts) == ["cumulative", "share-trained", "share-random"]
    curves = str(charts["cumulative"].to_dict())
    assert "linear, 8 features" in curves
    assert "favor" not in curves  # 256 is beyond the 64 there are
    cells = charts["share-trained"].to_dict()["data"]["values"]
    assert len(cells) == 6
    assert charts["share-trained"].to_dict()["encoding"]["color"]["scale"]["domain"] == [0.6, 1]
    assert list(spectrum_charts(rows(random=False))) == ["cumulative", "share-trained"]


def test_the_page_and_the_figures(tmp_path: Path) -> None:
    runs = [run(tmp_path / "one"), run(tmp_path / "two", random=False)]
    write_spectrum_page(runs, tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    for words in (
        "model (BertModel, eager attention)",
        'id="chart-cumulative-1"',
        'id="chart-share-random-0"',
        "Roy and Vetterli",
    ):
        assert words in page
    assert 'id="chart-share-random-1"' not in page
    written = list(write_spectrum_figures(runs[1:], tmp_path / "figures"))
    assert [path.name for path in written] == ["cumulative.png", "share-trained.png"]
    assert all(path.stat().st_size > 1000 and path.with_suffix(".svg").exists() for path in written)
