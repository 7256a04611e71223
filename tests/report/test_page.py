"""The page of a comparison."""

import json
import re
from pathlib import Path

import pytest

from subquad.compare.views import Comparison
from subquad.report import tables
from subquad.report.compare import comparison_page, load, telling_views, write_comparison, write_figures
from subquad.report.page import Chapter, Command, Fold, Page, bullets, paragraph, render, table
from subquad.report.tables import Cell, Table, crossovers
from subquad.results import Run
from tests.compare.rows import BYTES, SECONDS, rows
from tests.report.runs import make_run


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("runs") / "mine"
    make_run(folder)
    write_comparison(load([folder]), folder / "report.html")
    return (folder / "report.html").read_text()


def test_the_answers_are_there(written: str) -> None:
    for words in (
        "linear pays from",
        "favor does not pay within the measured range",
        "at 8192 it ran out of memory",
        "Pays from, tokens",
        "Size of one transformer layer",
        "L^2 d",
        "3149 on",
        "subquad compare --lengths 128..4096",
        "subquad 0.1.0",
    ):
        assert words in written


def test_the_first_view_is_that_of_the_answer(tmp_path: Path) -> None:
    Run.create(tmp_path / "mine", "compare", {}, rows(views=[("bidirectional", "forward"), ("bidirectional", "training")]))
    page = comparison_page(load([tmp_path / "mine"]))
    assert f"({page.views[0]}, " in page.answer


def test_memory_has_crossovers_of_its_own() -> None:
    """40 L^2 bytes against 312 L: at every length; against a million: from 256 on. Against itself plus one: never."""
    peaks = BYTES | {"softmax": lambda length: 40.0 * length**2}
    _, memory = crossovers(Comparison(rows(peaks=peaks, views=[("causal", "training")])))
    assert [[cell.text for cell in row] for row in memory.rows] == [["linear, causal", "128"], ["favor, causal", "256"]]
    more = BYTES | {"linear": lambda length: 40.0 * length**2 + 1}
    _, memory = crossovers(Comparison(rows(peaks=more, views=[("causal", "training")])))
    assert memory.rows[0][1].text == "not up to 4096"


def test_nothing_is_loaded_from_elsewhere(written: str) -> None:
    markup = re.sub(r"<script[^>]*>.*?</script>", "", written, flags=re.DOTALL)
    assert not re.findall(r"(?:src|href)=\"(?!data:)", markup)
    assert written.count("<script") == 3


def test_the_charts_are_valid_specifications(written: str) -> None:
    found = re.search(r'<script type="application/json" id="charts">(.*?)</script>', written, flags=re.DOTALL)
    assert found is not None
    specs = json.loads(found[1])
    assert list(specs) == ["speedup", "time", "memory", "throughput", "size"]
    assert "params" not in specs.pop("size")  # the size of a layer is the same in every view
    for spec in specs.values():
        assert {"name": "view", "value": "attention, forward and backward, bidirectional"} in spec["params"]


def test_two_runs_side_by_side(tmp_path: Path) -> None:
    for seed, name in enumerate(("here", "there")):
        make_run(tmp_path / name, seed=seed)
    write_comparison(load([tmp_path / "here", tmp_path / "there"]), tmp_path / "both.html")
    both = (tmp_path / "both.html").read_text()
    assert "Where each attention pays (here)" in both
    assert "Where each attention pays (there)" in both
    assert both.count("subquad compare --lengths 128..4096") == 2


def test_figures_are_written_for_each_view(tmp_path: Path) -> None:
    make_run(tmp_path / "run")
    paths = list(write_figures(load([tmp_path / "run"]), tmp_path / "figures"))
    assert len(paths) == 3 * 4 + 1  # views and metrics, and the size of a layer
    assert (tmp_path / "figures" / "speedup-attention-forward-and-backward-causal.svg").exists()


def test_words_cannot_become_markup() -> None:
    hostile = "</script><b>&"
    parts = [paragraph(hostile), table(Table(hostile, [hostile], [[Cell(hostile)]])), bullets([hostile])]
    content = Page(
        hostile,
        answer=hostile,
        about=hostile,
        views=(hostile, "other"),
        chapters=[Chapter(hostile, [], hostile)],
        folds=[Fold(hostile, parts)],
        commands=[Command(hostile, hostile)],
    )
    written = render(content)
    assert "<b>" not in written
    assert written.count("&lt;/script&gt;&lt;b&gt;&amp;") == 2 + 3 + 2 + 1 + 5 + 2  # the title is there twice


def test_tables_say_what_they_show() -> None:
    comparison = Comparison(rows(views=(("bidirectional", "training"), ("causal", "forward"))))
    heads = [row[0].text for row in tables.summary(comparison, telling_views(comparison)).rows]
    assert "causal, forward:" in heads
    costs = {"softmax": SECONDS["softmax"], "linear*3,softmax": SECONDS["linear"]}
    steps = Comparison(rows(costs, dict.fromkeys(costs, BYTES["linear"]), views=(("causal", "step"),)))
    traits = {"linear*3,softmax": {"exact": False, "constant_state": False, "time": "L m d or L^2 d"}}
    assert "constant" not in {row[2].text for row in tables.growths(steps, traits).rows if row[1].text != "softmax"}
    short = Comparison([row for row in rows() if row["mechanism"] != "softmax" or row["length"] <= 128])
    memory = list(tables.crossovers(short))[1]
    favor = next(row for row in memory.rows if row[0].text == "favor, bidirectional")
    assert favor[1].text == "not up to 128"
