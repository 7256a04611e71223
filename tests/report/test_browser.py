"""The page in a real browser."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from subquad.report.compare import load, write_comparison
from subquad.report.training import write_training_page
from subquad.results import Run
from tests.compare.rows import TRAITS, rows
from tests.report.runs import make_run
from tests.report.test_hostile import HOSTILE, trained

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync"]

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on this machine")


@pytest.fixture(scope="module")
def training_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of four trainings, two of each attention."""
    folder = tmp_path_factory.mktemp("trained")
    runs = []
    for name, seed in product(("softmax", "linear"), range(2)):
        run = Run.create(folder / f"{name}{seed}", "train", {"options": {"mechanism": {"kind": name}}, "seed": seed})
        run.append(
            {"metric": "loss", "value": (seed + 1) / (step + 1), "step": step, "split": "train"} for step in range(50)
        )
        run.append([{"metric": "token_accuracy", "value": 0.5, "step": step, "split": "held out"} for step in (25, 50)])
        runs.append(run)
    write_training_page(runs, folder / "report.html")
    return folder / "report.html"


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "mine"
    make_run(folder)
    write_comparison(load([folder]), folder / "report.html")
    return folder / "report.html"


Opened = tuple[Page, list[str], list[str]]
"""A page with its charts drawn, and lists of what it complained about and what it asked for."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One browser for all tests. Each page that it opens has its own context, so that pages share nothing."""
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield launched
        launched.close()


@contextmanager
def opening(browser: Browser, path: Path) -> Iterator[Opened]:
    """Opens a page and waits until its charts are drawn."""
    page = browser.new_page(viewport={"width": 1000, "height": 800})
    complaints: list[str] = []
    requests: list[str] = []
    page.on("console", lambda message: complaints.append(message.text) if message.type != "log" else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: requests.append(request.url))
    page.goto(path.as_uri())
    page.wait_for_selector("html[data-drawn=yes]", state="attached")
    yield page, complaints, requests
    page.close()


@pytest.fixture
def opened(browser: Browser, path: Path) -> Iterator[Opened]:
    with opening(browser, path) as found:
        yield found


def lines(page: Page, chart: str = "time") -> int:
    return page.locator(f"#chart-{chart} .mark-line path").count()


def test_charts_are_drawn_without_complaint_or_network(opened: Opened, path: Path) -> None:
    page, complaints, requests = opened
    assert {chart: lines(page, chart) for chart in ("time", "speedup", "memory", "throughput")} == {
        "time": 3,
        "speedup": 2,
        "memory": 3,
        "throughput": 3,
    }
    assert complaints == []
    assert [request for request in requests if not request.startswith("data:")] == [path.as_uri()]


def test_a_click_on_the_legend_hides_and_shows(opened: Opened) -> None:
    page, complaints, _ = opened
    entry = page.locator("#chart-time .role-legend-symbol path").nth(1)
    entry.click()
    page.wait_for_function("document.querySelectorAll('#chart-time .mark-line path').length === 2")
    page.locator("#chart-time .role-legend-symbol path").nth(1).click()
    page.wait_for_function("document.querySelectorAll('#chart-time .mark-line path').length === 3")
    assert complaints == []


def test_another_view_is_chosen(opened: Opened) -> None:
    page, complaints, _ = opened
    before = page.locator("#chart-time .mark-line path").first.get_attribute("d")
    page.select_option("#view", index=2)
    page.wait_for_function(f"document.querySelector('#chart-time .mark-line path').getAttribute('d') !== {before!r}")
    assert complaints == []


def test_charts_show_the_view_that_the_menu_names(browser: Browser, tmp_path: Path) -> None:
    """The menu begins with the view of the page's answer, which need not be the one that was measured first."""
    run = Run.create(tmp_path / "run", "compare", {"mechanisms": TRAITS})
    run.append(rows(views=[("bidirectional", "forward"), ("bidirectional", "training")]))
    write_comparison(load([run.folder]), tmp_path / "report.html")
    with opening(browser, tmp_path / "report.html") as (page, _, _):
        assert "forward and backward" in page.locator("#view option").first.inner_text()
        drawn = "document.querySelector('#chart-time .mark-line path').getAttribute('d')"
        at_start = page.evaluate(drawn)
        page.select_option("#view", index=1)
        page.wait_for_function(f"{drawn} !== {at_start!r}")
        page.select_option("#view", index=0)
        page.wait_for_function(f"{drawn} === {at_start!r}")


def test_hovering_shows_values(opened: Opened) -> None:
    page, _, _ = opened
    page.locator("#chart-time .mark-symbol path").nth(3).hover(force=True)
    page.wait_for_selector("#vg-tooltip-element.visible")
    assert "tokens" in page.locator("#vg-tooltip-element").inner_text()


def test_tables_sort(opened: Opened) -> None:
    page, _, _ = opened
    page.locator("summary", has_text="At the longest length measured").click()
    table = page.locator("table", has_text="At the longest length measured")
    column = table.locator("th button", has_text="times as fast")
    for order in (sorted, lambda values: sorted(values, reverse=True)):
        column.click()
        values = [
            float(cell)
            for cell in table.locator("tbody tr td:nth-child(4)").evaluate_all("cells => cells.map(c => c.dataset.value)")
        ]
        assert values == order(values)
        assert len(set(values)) > 2


@pytest.mark.parametrize(("width", "scheme"), [(360, "light"), (1000, "dark")])
def test_readable_on_a_phone_and_in_the_dark(opened: Opened, width: int, scheme: str) -> None:
    """Nothing but tables, which scroll by themselves, is wider than the screen; words stand out from the ground."""
    page, _, _ = opened
    page.set_viewport_size({"width": width, "height": 700})
    page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
    page.reload()
    page.wait_for_selector("html[data-drawn=yes]", state="attached")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    ground, words, axis = page.evaluate(
        """() => [getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color,
        getComputedStyle(document.querySelector('#chart-time svg text')).fill]"""
    )
    assert words == axis
    light = [sum(map(int, colour.removeprefix("rgb(").removesuffix(")").split(","))) for colour in (ground, words)]
    assert (light[0] > light[1] + 400) if scheme == "light" else (light[1] > light[0] + 400)


def test_training_is_drawn_without_complaint_or_network(browser: Browser, training_path: Path) -> None:
    """Each run, and the mean over seeds of each attention."""
    with opening(browser, training_path) as (page, complaints, requests):
        assert page.locator("#chart-loss .mark-line path").count() == 4 + 2
        assert page.locator("#chart-token_accuracy .mark-line path").count() == 4 + 2
        page.locator("#chart-loss .role-legend-symbol path").first.click()
        page.wait_for_function("document.querySelectorAll('#chart-loss .mark-line path').length === 3")
        assert complaints == []
        assert len(requests) == 1


def test_names_that_would_do_harm_are_shown_as_text(browser: Browser, tmp_path: Path) -> None:
    """A metric, an attention, a command and a sample that are markup, also in what hovering shows."""
    write_training_page([trained(tmp_path / "run")], tmp_path / "report.html")
    with opening(browser, tmp_path / "report.html") as (page, complaints, requests):
        assert page.locator("figure svg").count() == 2
        assert page.locator("td", has_text=HOSTILE).count() >= 3
        page.locator("#chart-loss .mark-symbol path").nth(1).hover(force=True)
        page.wait_for_selector("#vg-tooltip-element.visible")
        assert HOSTILE in page.locator("#vg-tooltip-element").inner_text()
        assert page.locator("img").count() == 0
        assert page.locator("script").count() == 3
        assert page.evaluate("window.harmed === undefined")
        assert complaints == []
        assert len(requests) == 1


def test_prints_dark_on_light(opened: Opened) -> None:
    page, _, _ = opened
    page.emulate_media(media="print", color_scheme="dark")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.evaluate("getComputedStyle(document.querySelector('#chart-time svg text')).fill") == "rgb(0, 0, 0)"


def test_legends_fit_on_a_phone(browser: Browser, tmp_path: Path) -> None:
    """Long names stand below each other, where they would be cut off beside each other."""
    runs = []
    for name in ("softmax", "infinity with a sticky memory", "linformer with shared projections"):
        run = Run.create(tmp_path / name, "train", {"options": {"mechanism": {"kind": name}}, "seed": 0})
        run.append({"metric": "loss", "value": 1.0 / step, "step": step, "split": "train"} for step in range(1, 9))
        runs.append(run)
    write_training_page(runs, tmp_path / "report.html")
    with opening(browser, tmp_path / "report.html") as (page, complaints, _):
        page.set_viewport_size({"width": 360, "height": 700})
        page.reload()
        page.wait_for_selector("html[data-drawn=yes]", state="attached")
        labels = page.locator("#chart-loss .role-legend-label text")
        assert labels.count() == 3
        assert max(labels.evaluate_all("labels => labels.map(label => label.getBoundingClientRect().right)")) <= 360
        assert complaints == []
