"""The page of a race of attentions: the recommendation, its picture, learning curves, costs by length, and tables."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from subquad.choose.decision import Decision, Training, Wishes, decide
from subquad.choose.standings import Contestant, Standings, read_gives_up, read_standings
from subquad.choose.timing import Spent, early_sentence, time_spent
from subquad.report.choose_charts import choice_charts
from subquad.report.figures import write_page_figures
from subquad.report.page import Chapter, Fold, Page, Picture, bullets, paragraph, table, write_page
from subquad.report.runs import command_of, machine_of
from subquad.report.tables import NOTHING, Cell, Table
from subquad.results import Row, Run, holds_run
from subquad.statistics import Interval
from subquad.words import amount, compact, duration, to_precision

METHOD = (
    "Every attention had the same number of runs in each stage, and every run of a stage the same training seconds, on one "
    "thread, or the steps of a usual training where these took less. Learning rates and the options that matter to an "
    "attention were suggested by Optuna, and ranked on the development sequences. The best setting of each attention was "
    "then trained with several seeds, with the same batches in the same order, and scored once on the test sequences. "
    "Intervals are 95%: they hold for other test sequences, drawn again, the same for all, and for other seeds, whose "
    "scatter is moderated by the typical one of all attentions. An attention is level with another if the interval of its "
    "paired advantage does not reach below the margin. Seconds are those of a forward pass through all layers for a batch "
    "at the 90% length or the nearest that most were measured at, memory is that of one attention, forward and backward, at "
    "the longest length."
)


def load_decision(run: Run) -> tuple[Standings, Decision]:
    """Returns the standings and the decision that follow from the rows of a race."""
    rows = run.rows()
    standings = read_standings(rows)
    gives_up = read_gives_up(run.about.get("mechanisms", {}), rows)
    return standings, decide(standings, _wishes(_options(run, "wishes")), gives_up, _training(run))


def _options(run: Run, part: str) -> Mapping[str, Any]:
    """A part of the options of a race; empty for one that has none."""
    options = run.about.get("options", {})
    known = options.get(part, {}) if isinstance(options, Mapping) else {}
    return known if isinstance(known, Mapping) else {}


def _training(run: Run) -> Training:
    """The usual number of training steps, 0 if there is none, and the budget of a race."""
    steps, terms = _options(run, "training").get("steps"), _options(run, "terms")
    if _options(run, "task").get("kind") == "own":  # a race of an earlier version had no usual number for these
        steps = 0
    steps = _options(run, "usual").get("steps", steps)
    budget = next((row["value"] for row in reversed(run.rows()) if row["metric"] == "budget"), terms.get("budget"))
    known = float(budget) if isinstance(budget, int | float) else 0.0
    return Training(steps if isinstance(steps, int) else 0, known, _jobs(run))


def _wishes(values: Mapping[str, Any]) -> Wishes:
    known = {name: value for name, value in values.items() if name in Wishes._fields}
    numbers = {name: float(value) for name, value in known.items() if isinstance(value, int | float)}
    return Wishes(**numbers)


def write_choice_page(runs: Sequence[Run], path: Path) -> None:
    """Writes the page of a race."""
    write_page(choice_page(runs[0]), path)


def write_choice_figures(runs: Sequence[Run], folder: Path) -> Iterator[Path]:
    """Writes each chart of a race as PNG and SVG."""
    return write_page_figures(choice_page(runs[0]), folder)


def choice_page(run: Run) -> Page:
    """Builds the page of a race from its rows."""
    rows, (standings, decision) = run.rows(), load_decision(run)
    pictures = [Picture(*known) for known in choice_charts(rows, standings)]
    front = pictures[0] if pictures and pictures[0].name == "front" else None
    others = pictures[1:] if front is not None else pictures
    return Page(
        "Which attention do these sequences need?",
        " ".join(decision.sentences),
        about=machine_of(run),
        picture=front,
        chapters=[Chapter("Charts", others)] if others else [],
        folds=list(_folds(rows, standings, decision, _training(run))),
        commands=[command_of(run, "subquad choose"), *_best_command(run)],
    )


def _jobs(run: Run) -> int:
    """Number of runs side by side."""
    jobs = _options(run, "terms").get("jobs")
    return jobs if isinstance(jobs, int) and jobs > 0 else 1


def time_table(spent: Sequence[Spent], jobs: int) -> Table:
    """Returns the table of what the time of all workers was spent on."""
    lines = [
        [Cell(each.what), Cell(duration(each.seconds), each.seconds), Cell(f"{each.share:.1%}", each.share)]
        for each in spent
    ]
    return Table(f"Seconds of {jobs} workers together, until this page was written", ["what", "time", "share"], lines)


def _best_command(run: Run) -> Iterator[Any]:
    if holds_run(run.folder / "best"):
        yield command_of(Run.open(run.folder / "best"), "subquad train")


def _folds(rows: Sequence[Row], standings: Standings, decision: Decision, training: Training) -> Iterator[Fold]:
    if standings.contestants:
        yield Fold("On the test", [table(quality_table(standings, decision))], is_open=True)
        yield Fold("Each beside each, on the same sequences", [table(advantage_table(standings))])
    if perplexities := [row for row in rows if row["metric"] == "perplexity"]:
        yield Fold("Perplexity before and after", [table(perplexity_table(perplexities))], is_open=True)
    if ranks := [row for row in rows if row["metric"] == "rank"]:
        yield Fold("Ranks of the layers", [table(rank_table(ranks))])
    yield Fold("The data", [table(data_table(rows))])
    if runs := [row for row in rows if row["metric"] == "score"]:
        yield Fold("All runs", [table(run_table(runs))])
    lines = [f"{row['mechanism']} was left out: {row['message']}" for row in rows if row["metric"] == "left out"]
    lines += [
        f"{row.get('trial', 'models without attention')}: {row['failure']} ({row['message']})"
        for row in rows
        if row["metric"] in ("score", "rival") and row.get("failure")
    ]
    if lines:
        yield Fold("What was left out, and what failed", [bullets(lines)])
    before_page = [row for row in rows if row["metric"] != "phase" or row["what"] != "page"]
    if spent := time_spent(before_page, training.jobs):
        early = early_sentence(rows, training.budget, training.usual_steps)
        parts = [table(time_table(spent, training.jobs)), *([paragraph(early)] if early else [])]
        yield Fold("Where the time went", parts)
    yield Fold("How it was done", [paragraph(METHOD)])


def brief_table(standings: Standings, decision: Decision) -> Table:
    """Returns the table of all contestants for a terminal: score, advantage over the standard, level and time."""
    whole = quality_table(standings, decision)
    found = {each.name: each.quality for each in standings.contestants.values()}
    scores = {name: Cell(to_precision(quality.value, quality.spread), quality.value) for name, quality in found.items()}
    rows = [[row[0], scores[row[0].text.removesuffix(" *")], *row[2:5]] for row in whole.rows]
    return Table(whole.caption, whole.columns[:5], rows)


def quality_table(standings: Standings, decision: Decision) -> Table:
    """Returns the table of all contestants: score, advantage over the standard, level, time, memory and steps.

    An attention is on the front if no other one is as good, as fast and as small, and better in one of these.
    """
    rows = []
    for each in standings.of("attention", "rival", "trivial"):
        advantage = standings.advantage(each.name, decision.standard)
        level = decision.levels.get(each.name, "") if each.role == "attention" else "no attention"
        mark = " *" if each.name == decision.chosen else ""
        rows.append(
            [
                Cell(f"{each.name}{mark}"),
                _range(each.quality),
                NOTHING if advantage is None or each.name == decision.standard else _range(advantage, signed=True),
                Cell("standard" if each.name == decision.standard else level),
                *_cost_cells(each),
                Cell("yes") if each.name in decision.front else NOTHING,
            ]
        )
    metric = standings.metric.replace("_", " ")
    better = "more" if standings.good == "high" else "less"
    columns = [
        "model",
        metric,
        f"better than {decision.standard or 'the standard'}",
        "level",
        "seconds",
        "memory",
        "steps",
        "seeds",
        "on the front",
    ]
    return Table(f"On the test: {metric}, of which {better} is better; * is recommended", columns, rows)


def _cost_cells(each: Contestant) -> list[Cell]:
    seconds = NOTHING if each.seconds is None else Cell(duration(each.seconds), each.seconds)
    memory = NOTHING if each.memory is None else Cell(amount(each.memory), each.memory)
    steps = NOTHING if each.steps is None else Cell(f"{each.steps:,.0f}", each.steps)
    seeds = Cell(str(each.seeds), each.seeds) if each.role == "attention" else NOTHING
    return [seconds, memory, steps, seeds]


def _range(found: Interval, *, signed: bool = False) -> Cell:
    value, low, high = (to_precision(number, found.spread, signed=signed) for number in found)
    return Cell(f"{value} ({low} to {high})", found.value)


def advantage_table(standings: Standings) -> Table:
    """Returns the table of paired advantages of each contestant over each other one."""
    names = [each.name for each in standings.of("attention", "rival", "trivial")]
    rows = []
    for ours in names:
        known = [standings.advantage(ours, theirs) if ours != theirs else None for theirs in names]
        rows.append([Cell(ours), *(NOTHING if gain is None else _range(gain, signed=True) for gain in known)])
    return Table("By how much the model of a row is better than that of a column", ["", *names], rows)


def perplexity_table(rows: Sequence[Row]) -> Table:
    """Returns the table of the perplexity of the original and of each converted model, with intervals."""
    lines = [[Cell(row["mechanism"]), _range(Interval.of_row(row))] for row in sorted(rows, key=lambda row: row["value"])]
    return Table(
        "Perplexity on the test texts: exp of the nats per token; softmax is the original", ["model", "value"], lines
    )


def rank_table(rows: Sequence[Row]) -> Table:
    """Returns the table of the effective rank of each layer's attention matrices."""
    lines = [[Cell(str(row["layer"])), Cell(f"{row['value']:.1f}", row["value"])] for row in rows]
    caption = "Effective rank of the attention matrices, the mean over heads and texts: low ones are converted first"
    return Table(caption, ["layer", "rank"], lines)


def data_table(rows: Sequence[Row]) -> Table:
    """Returns the table of what was seen of the data."""
    lines = [
        [Cell(f"{row['part']} sequences"), Cell(f"{row['value']:,}", row["value"])]
        for row in rows
        if row["metric"] == "sequences"
    ]
    for row in rows:
        if row["metric"] == "seen":
            lines.append([Cell(f"length, {row['quantile']:.0%} quantile"), Cell(f"{row['value']:,.0f}", row["value"])])
    shares = [row for row in rows if row["metric"] == "data" and row.get("unit") == "share" and "type" in row]
    first = shares[0]["part"] if shares else ""
    lines += [
        [Cell(f"{row['what']} {row['type']}, {first}"), Cell(f"{row['value']:.1%}", row["value"])]
        for row in shares
        if row["part"] == first
    ]
    lines += [[Cell(row["message"]), NOTHING] for row in rows if row["metric"] == "complaint"]
    return Table("What was seen", ["what", "value"], lines)


def run_table(rows: Sequence[Row]) -> Table:
    """Returns the table of all runs: stage, attention, setting, seconds, steps and score in development."""
    lines = []
    for row in rows:
        failed = row["value"] is None
        score = Cell(row["failure"]) if failed else Cell(compact(row["value"]), row["value"])
        seconds = NOTHING if failed else Cell(f"{row['seconds']:.3g}", row["seconds"])
        steps = NOTHING if failed else Cell(f"{row['steps']:,}", row["steps"])
        lines.append([Cell(row["trial"]), Cell(row["stage"]), Cell(row.get("said", "")), seconds, steps, score])
    metric = next((row["of"] for row in rows if "of" in row), "score").replace("_", " ")
    columns = ["run", "stage", "setting", "training seconds", "steps", f"{metric} in development"]
    return Table("All runs", columns, lines)
