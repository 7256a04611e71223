"""The page of a race, from made-up rows."""

from pathlib import Path

from subquad.choose.standings import read_standings
from subquad.report.choose import advantage_table, brief_table, choice_page, load_decision, run_table
from subquad.report.choose_charts import choice_charts, fastest_for_quality
from subquad.report.page import render
from subquad.results import Row, Run
from tests.choose.made import costs, race

ABOUT = {"options": {"wishes": {"quality_loss": 0.02}}, "mechanisms": {"linear": {"gives_up": "some exactness"}}}


def made(folder: Path) -> Run:
    rows = race({"softmax": 0.9, "linear": 0.893}, seconds={"softmax": 1.0, "linear": 0.2}, rivals={"counts": 0.6})
    rows += costs({"softmax": 0.1, "linear": 0.1}, {"softmax": 2e6, "linear": 1e6}, length=64)
    rows += [{"metric": "length_bin", "value": 5, "unit": "sequences", "low": 10.0, "high": 600.0}]
    rows += [{"metric": "sequences", "value": 7, "unit": "1", "part": "train", "positions": 99}]
    about: Row = {"mechanism": "linear", "stage": "final", "trial": "linear-final-0", "seed": 0}
    rows += [{"metric": "curve", "value": 0.1 * step, "step": step, "of": "accuracy", **about} for step in (1, 2, 3)]
    rows += [{"metric": "loss_curve", "value": 1.0 / step, "step": step, "unit": "nats", **about} for step in (1, 2, 3)]
    scored: Row = {"seconds": 1.5, "steps": 30, "said": "rate 0.01", "of": "accuracy"}
    rows += [{"metric": "score", "value": 0.3, **scored, **about}]
    rows += [{"metric": "score", "value": None, "failure": "not finite", "message": "nan at step 2", **about}]
    return Run.create(folder, "choose", ABOUT, rows)


def test_the_page_has_the_answer_the_front_and_all_charts(tmp_path: Path) -> None:
    run = made(tmp_path / "race")
    page = choice_page(run)
    assert page.answer.startswith("Linear: it is level with softmax")
    assert page.answer.endswith("What is given up: some exactness.")
    assert page.picture is not None
    assert page.picture.name == "front"
    names = ["front", "curves", "losses", "cost-layer", "cost-memory", "lengths"]
    assert [picture.name for picture in page.pictures] == names
    written = render(page)
    assert "linear-final-0: not finite (nan at step 2)" in written
    assert "How it was done" in written


def test_the_page_says_why_a_race_ended_early(tmp_path: Path) -> None:
    kept = {"options": {"training": {"steps": 30}, "terms": {"budget": 60.0, "jobs": 2}, "task": {"kind": "recall"}}}
    phase: Row = {"metric": "phase", "what": "final", "value": 20.0, "unit": "s"}
    final: Row = {"metric": "score", "value": 0.3, "mechanism": "linear", "stage": "final", "trial": "linear-final-0"}
    rows = [phase, {**final, "seed": 0, "seconds": 1.5, "steps": 30, "said": "rate 0.01", "of": "accuracy"}]
    assert "It took 20.0 s of 60.0 s: " in render(choice_page(Run.create(tmp_path / "race", "choose", ABOUT | kept, rows)))


def test_tables(tmp_path: Path) -> None:
    run = made(tmp_path / "race")
    standings, decision = load_decision(run)
    brief = brief_table(standings, decision)
    assert [row[0].text for row in brief.rows] == ["softmax", "linear *", "counts", "guessing"]
    assert [row[3].text for row in brief.rows] == ["standard", "level", "no attention", "no attention"]
    assert advantage_table(standings).rows[1][1].text == "-0.0070 (-0.0120 to -0.0020)"
    runs = run_table([row for row in run.rows() if row["metric"] == "score"])
    assert [row[-1].text for row in runs.rows] == ["0.3", "not finite"]


def test_a_name_has_the_same_colour_in_all_charts(tmp_path: Path) -> None:
    rows = made(tmp_path / "race").rows()
    scales: dict[str, dict[str, str]] = {}
    for name, _, chart in choice_charts(rows, read_standings(rows)):
        colours = [
            encoded["color"]["scale"]
            for layer in chart.to_dict()["layer"]
            for encoded in [part["encoding"] for part in layer.get("layer", [layer])]
            if "color" in encoded
        ]
        scales[name] = {
            label: colour for scale in colours for label, colour in zip(scale["domain"], scale["range"], strict=True)
        }
    assert set(scales["front"]) == {"softmax", "linear", "counts"}  # guessing is worse than counts
    assert list(scales["curves"]) == ["linear"]
    for scale in scales.values():
        assert scale.items() <= scales["front"].items()


def test_the_line_of_the_front_goes_up_with_time() -> None:
    points = [{"name": name, "seconds": s, "value": v} for name, s, v in (("a", 3, 0.9), ("b", 2, 0.5), ("c", 1, 0.6))]
    assert [point["name"] for point in fastest_for_quality(points, "high")] == ["c", "a"]
    assert [point["name"] for point in fastest_for_quality(points, "low")] == ["c", "b"]


def test_a_race_that_has_just_begun_has_a_page(tmp_path: Path) -> None:
    rows: list[Row] = [{"metric": "sequences", "value": 7, "unit": "1", "part": "train", "positions": 99}]
    page = choice_page(Run.create(tmp_path / "race", "choose", {"options": {}}, rows))
    assert page.answer.startswith("No attention was scored")
    assert page.pictures == []
    assert render(page)
