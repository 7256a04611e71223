"""Every experiment's charts as files: one PNG and one SVG for each, that name the attention."""

import re
from html import unescape
from pathlib import Path

import pytest

from subquad.cli import main
from subquad.cli.reproduce import page_of
from subquad.experiments.registry import EXPERIMENTS
from subquad.report.figures import page_figures
from tests.experiments.made import made_reproduction

ATTENTIONS = re.compile(r"softmax|linear|favor|linformer|infinity|window|hybrid", re.IGNORECASE)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_chart_of_an_experiment_is_a_file(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = made_reproduction(tmp_path / "run", name)
    assert main(["report", str(run.folder), "--figures", str(tmp_path / "figures")]) == 0
    pictures = sorted((tmp_path / "figures").glob("*.png"))
    assert f"{len(pictures)} charts, each as PNG and SVG" in " ".join(capsys.readouterr().out.split())
    assert len(pictures) >= (run.folder / "report.html").read_text().count('<div class="chart"') > 0
    for path in pictures:
        assert path.read_bytes().startswith(b"\x89PNG")
        drawn = path.with_suffix(".svg").read_text()
        words = unescape(re.sub(r"<[^>]*>", " ", drawn))
        assert ATTENTIONS.search(words), f"{path.name} names no attention: {words}"
        assert 'fill="white"' in drawn
        assert "mark-" in drawn  # something is drawn


def test_views_are_figures_apart(tmp_path: Path) -> None:
    run = made_reproduction(tmp_path / "run", "copy")
    page = page_of(run)
    assert len(page.views) == 1
    names = list(page_figures(page))
    assert [f"{metric} {page.views[0]}" in names for metric in ("time", "speedup")] == [True, True]
    assert "figure_1" in names  # it has no views
