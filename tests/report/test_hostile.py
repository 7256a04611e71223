"""Pages and figures of runs whose names were chosen to do harm: in rows, in run.json, and in the data behind them."""

import json
import re
import stat
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from subquad.cli import main
from subquad.results import Row, Run
from tests.choose.made import race
from tests.compare.rows import rows as compared
from tests.report.test_conversion import costs, heads, quality
from tests.report.test_spectrum import rows as spectral
from tests.test_files import make_node

HOSTILE = """</script></style><img src=x onerror="window.harmed=1">'"<!--&amp;<script>window.harmed=1</script>"""
ABOUT: dict[str, Any] = {
    "machine": {"processor": HOSTILE, "cores": 2, "memory_bytes": 1, "system": HOSTILE},
    "versions": {HOSTILE: HOSTILE},
    "command": HOSTILE,
    "started": HOSTILE,
}


def trained(folder: Path, metrics: tuple[str, ...] = (HOSTILE,)) -> Run:
    options = {"mechanism": {"kind": HOSTILE}, "task": {HOSTILE: HOSTILE}}
    run = Run.create(folder, "train", {**ABOUT, "options": options, "seed": 0})
    rows: list[Row] = [{"metric": "loss", "value": 1.0 / (1 + step), "step": step, "split": "train"} for step in range(3)]
    rows += [{"metric": name, "value": 0.5, "step": step, "split": "held out"} for name in metrics for step in (1, 2)]
    rows += [{"metric": name, "value": 0.5, "step": 2, "split": "test", "low": 0.4, "high": 0.6} for name in metrics]
    rows += [{"metric": "sample", "value": None, "step": 2, "given": HOSTILE, "answered": HOSTILE, "right": HOSTILE + "x"}]
    run.append(rows)
    return run


def compared_with(folder: Path) -> Run:
    run = Run.create(folder, "compare", {**ABOUT, "mechanisms": {HOSTILE: {"time": HOSTILE, "space": HOSTILE}}})
    plain = compared(views=[("bidirectional", "training")])
    run.append({**row, "mechanism": HOSTILE if row["mechanism"] == "favor" else row["mechanism"]} for row in plain)
    run.append({**row, "device": HOSTILE} for row in compared(views=[("causal", "training")]))
    return run


def converted(folder: Path) -> Run:
    options = {"model": HOSTILE, "mechanism": {"kind": HOSTILE, "rest": HOSTILE}}
    run = Run.create(folder, "convert", {**ABOUT, "options": options})
    failure: Row = {"metric": "failure", "value": None, "length": 99999, "model": "after", "failure": HOSTILE}
    run.append([*quality(HOSTILE), *heads(), *costs(), failure | {"message": HOSTILE}])
    return run


def looked_at(folder: Path) -> Run:
    options = {"model": HOSTILE, "class": HOSTILE, "attention": HOSTILE}
    run = Run.create(folder, "spectrum", {**ABOUT, "options": options})
    run.append({**row, **({"mechanism": HOSTILE + row["mechanism"]} if "mechanism" in row else {})} for row in spectral())
    return run


def raced(folder: Path) -> Run:
    scores = {"softmax": 0.9, HOSTILE: 0.9}
    rows = race(scores, seconds={"softmax": 1.0, HOSTILE: 0.2}, rivals={HOSTILE + "x": 0.5})
    about: Row = {"mechanism": HOSTILE, "trial": HOSTILE, "stage": "final", "seed": 0}
    rows += [{"metric": "curve", "value": 0.5, "step": step, "of": HOSTILE, **about} for step in (1, 2)]
    rows += [{"metric": "score", "value": None, "failure": HOSTILE, "message": HOSTILE, "said": HOSTILE, **about}]
    rows += [{"metric": "left out", "value": None, "mechanism": HOSTILE, "message": HOSTILE}]
    rows += [{"metric": "data", "value": 0.5, "unit": "share", "part": HOSTILE, "what": "class", "type": HOSTILE}]
    run = Run.create(folder, "choose", {**ABOUT, "mechanisms": {HOSTILE: {"gives_up": HOSTILE}}, "options": {}})
    run.append(rows)
    return run


MAKERS: dict[str, Callable[[Path], Run]] = {
    "train": trained,
    "compare": compared_with,
    "convert": converted,
    "spectrum": looked_at,
    "choose": raced,
}


class Elements(HTMLParser):
    """Every element of a page with its attributes, and the text of scripts."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[str] = []
        self.scripts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [name for name, _ in attrs]
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data: str) -> None:
        if self.lasttag == "script" and self.scripts:
            self.scripts[-1] += data


@pytest.mark.parametrize("kind", MAKERS)
def test_names_stay_names(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the page as text: no element or attribute that is not ours, and the charts' JSON is whole."""
    monkeypatch.chdir(tmp_path)
    folder = Path("<img src=x onerror=window.harmed=1>")
    MAKERS[kind](folder)
    assert main(["report", str(folder)]) == 0
    written = (folder / "report.html").read_text()
    found = Elements()
    found.feed(written)
    assert "img" not in found.tags
    assert not [name for name in found.attributes if name.startswith("on")]
    assert found.tags.count("script") == written.count("<script") == 3
    assert HOSTILE in json.dumps(json.loads(found.scripts[0]), ensure_ascii=False).replace('\\"', '"')
    markup = re.sub(r"<script[^>]*>.*?</script>", "", written, flags=re.DOTALL)
    assert "&lt;img src=x onerror=" in markup
    assert "<img" not in markup


@pytest.mark.parametrize("kind", MAKERS)
def test_figures_stay_in_their_folder(kind: str, tmp_path: Path) -> None:
    MAKERS[kind](tmp_path / "run")
    assert (
        main(["report", str(tmp_path / "run"), "--out", str(tmp_path / "page"), "--figures", str(tmp_path / "in" / "f")])
        == 0
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "page", "run"]
    made = [path.relative_to(tmp_path / "in" / "f") for path in (tmp_path / "in").rglob("*") if path.is_file()]
    assert len(made) >= 4
    assert all(len(path.parts) == 1 and path.suffix in (".png", ".svg") for path in made)


def test_metrics_that_are_paths_make_figures_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Once `../../x` was written two folders above, and an absolute path anywhere."""
    names = ("../../x", str(tmp_path / "absolute"), "x", "X", "..", "a" * 300, "loss.x", "loss.y")
    trained(tmp_path / "run", names)
    assert main(["report", str(tmp_path / "run"), "--figures", str(tmp_path / "deep" / "figures")]) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["deep", "run"]
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["figures"]
    assert len(list((tmp_path / "deep" / "figures").iterdir())) == 2 * (1 + len(names))
    assert f"{1 + len(names)} charts, each as PNG and SVG" in " ".join(capsys.readouterr().out.split())


def test_a_page_to_a_full_device_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trained(tmp_path / "run")
    node = make_node(tmp_path / "full", stat.S_IFCHR, 1, 7)
    assert main(["report", str(tmp_path / "run"), "--out", str(node)]) == 2
    said = capsys.readouterr().err
    assert said == f"subquad: cannot write {node}: No space left on device; make room, or choose another place\n"
    assert stat.S_ISCHR(node.stat().st_mode)


@pytest.mark.parametrize("suffix", ["svg", "png"])
def test_a_full_disk_under_figures_leaves_no_half(suffix: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A full device stands where the chart goes, as a full disk would end it."""
    trained(tmp_path / "run")
    (tmp_path / "figures").mkdir()
    make_node(tmp_path / "figures" / f"loss.{suffix}", stat.S_IFCHR, 1, 7)
    assert main(["report", str(tmp_path / "run"), "--figures", str(tmp_path / "figures")]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert f"loss.{suffix}: No space left on device; make room" in said
    assert {path.name for path in (tmp_path / "figures").iterdir()} <= {"loss.svg", "loss.png"}


def test_numbers_that_add_up_to_infinity_leave_a_page_that_is_drawn(tmp_path: Path) -> None:
    """JSON has no infinity, and one in it would keep a browser from drawing any chart."""
    run = trained(tmp_path / "run")
    run.append([{"metric": "huge", "value": 1.7e308, "step": step, "split": "held out"} for step in range(500)])
    assert main(["report", str(run.folder)]) == 0
    found = Elements()
    found.feed((run.folder / "report.html").read_text())
    assert "huge" in json.loads(found.scripts[0], parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("check", {"metric": "held", "value": 1, "check": "batch", "sentence": "x"}),
        ("check", {"metric": "held", "value": 1, "check": "batch", "sentence": "x", "verdict": "maybe"}),
        ("compare", {"what": "other"}),
        ("compare", {"value": 0}),
    ],
)
def test_damaged_rows_are_a_sentence(
    kind: str, change: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = [change] if kind == "check" else [compared()[0] | change, *compared()[1:]]
    Run.create(tmp_path / "run", kind, {"options": {}}, made)
    assert main(["report", str(tmp_path / "run")]) == 2
    assert "line 1 of" in capsys.readouterr().err
