"""Shares of held-out sequences that each recipe copies without an error: the sentence, the picture and the table."""

from collections.abc import Mapping, Sequence

import altair as alt

from subquad.experiments.base import Training, Trial
from subquad.experiments.copy.grid import LINEAR_FOUND
from subquad.experiments.copy.recipes import differences
from subquad.experiments.copy.verdicts import copied_shares, groups
from subquad.report.charts import PALETTE
from subquad.report.page import Picture
from subquad.report.tables import Cell, Table
from subquad.report.training import final_loss
from subquad.results import Row
from subquad.statistics import mean_over_seeds
from subquad.words import between

ROW_HEIGHT = 30
"""Height in pixels of a recipe's row in the picture."""
NAME_WIDTH = 260
"""Largest width in pixels of a recipe's name in the picture."""


def recipe_answer(trained: Mapping[str, Sequence[Row]], trials: Sequence[Trial]) -> str | None:
    """How many seeds copy with the replication's recipe and with the one found here; None for scales without both."""
    counts = {key: _count(copied_shares(trained, group)) for key, group in groups(trials).items()}
    lengths = [length for name, length in counts if name == LINEAR_FOUND]
    done = [length for length in lengths if counts["linear", length] and counts[LINEAR_FOUND, length]]
    if not done:
        return None
    work = next(trial.work for trial in trials if trial.variant == LINEAR_FOUND)
    assert isinstance(work, Training)
    model, options = work.model, work.options
    setting = (
        f"batch {options.batch}, {options.steps} steps, {model.layers} + {model.layers} layers, {model.heads} heads of "
        f"{model.head_dim}"
    )
    symbols = ", ".join(map(str, done))
    theirs, ours = (", ".join(counts[name, length] for length in done) for name in ("linear", LINEAR_FOUND))
    return (
        f"Linear attention copies {symbols} symbols without error in {theirs} seeds with the replication's recipe "
        f"({setting}), and in {ours} with the recipe found here, at the same batch and steps."
    )


def _count(shares: Mapping[int, float]) -> str:
    return f"{sum(share == 1 for share in shares.values())} of {len(shares)}" if shares else ""


def share_picture(trained: Mapping[str, Sequence[Row]], trials: Sequence[Trial]) -> Picture | None:
    """Share of sequences copied without an error by recipe, each seed a dot; None if nothing is finished."""
    has_lengths = len({trial.length for trial in trials}) > 1
    dots: list[Row] = []
    counts: list[Row] = []
    for (name, length), group in groups(trials).items():
        label = f"{name}, {length} symbols" if has_lengths else name
        shares = copied_shares(trained, group)
        dots += [
            {"recipe": label, "seed": seed, "share": share, "copies": "without error" if share == 1 else "with errors"}
            for seed, share in shares.items()
        ]
        counts += [{"recipe": label, "share": 1.0, "words": _count(shares)}] if shares else []
    if not dots:
        return None
    caption = "Share of held-out sequences copied without error, each seed a dot; on the right, seeds without any error"
    return Picture("shares", caption, share_chart(dots, counts))


def share_chart(dots: Sequence[Row], counts: Sequence[Row]) -> alt.LayerChart:
    """Returns the chart of shares by recipe, from rows with recipe, seed, share and copies, and rows with words."""
    order = [row["recipe"] for row in counts]
    y = alt.Y("recipe:N", title=None).sort(order).axis(labelLimit=NAME_WIDTH)
    x = alt.X("share:Q", title="share of sequences copied without error").scale(domain=[0, 1], nice=False)
    x = x.axis(format="%", tickCount=5)
    kinds, colours = ["without error", "with errors"], [PALETTE[3], PALETTE[1]]
    colour = alt.Color("copies:N", title=None).scale(domain=kinds, range=colours).legend(orient="top", symbolOpacity=1)
    points = alt.Chart(alt.Data(values=list(dots))).mark_point(filled=True, size=45, opacity=0.85, clip=False)
    hints = ["recipe:N", "seed:N", alt.Tooltip("share:Q", format=".1%")]
    words = alt.Chart(alt.Data(values=list(counts))).mark_text(align="left", dx=12)
    drawn = alt.layer(
        points.encode(x=x, y=y, yOffset=alt.YOffset("seed:N").scale(paddingOuter=1), color=colour, tooltip=hints),
        words.encode(x=x, y=y, text="words:N"),
    ).properties(width="container", height=alt.Step(ROW_HEIGHT, **{"for": "position"}))
    padding = {"left": 5, "top": 5, "bottom": 5, "right": 60}  # leaves room for the words on the right
    return drawn.configure(background="transparent", padding=padding).configure_view(stroke=None)


def share_table(trained: Mapping[str, Sequence[Row]], trials: Sequence[Trial]) -> Table:
    """Returns the table of recipes: what differs from the first with linear attention, and how many sequences it copies."""
    base = next((trial.work for trial in trials if trial.variant == "linear"), trials[0].work)
    rows = []
    for (name, length), group in groups(trials).items():
        shares = copied_shares(trained, group)
        if not shares:
            continue
        assert isinstance(group[0].work, Training)
        assert isinstance(base, Training)
        mean = mean_over_seeds(list(shares.values()))
        rows.append(
            [
                Cell(name),
                Cell(str(length), length),
                Cell(_count(shares), sum(share == 1 for share in shares.values())),
                Cell(between(mean, ".1%"), mean.value),
                Cell(f"{min(shares.values()):.1%}", min(shares.values())),
                _final_loss(trained, group),
                Cell(differences(group[0].work, base)),
            ]
        )
    copied = ["seeds without error", "sequences copied", "lowest"]
    columns = ["recipe", "symbols", *copied, "loss at the end, nats", "differs from linear's recipe in"]
    caption = "Sequences copied without error and loss at the end: means over seeds with their 95% intervals"
    return Table(caption, columns, rows)


def _final_loss(trained: Mapping[str, Sequence[Row]], group: Sequence[Trial]) -> Cell:
    """Returns the mean over seeds of the loss at the end of training, with its interval."""
    losses = [loss for trial in group if trial.name in trained and (loss := final_loss(trained[trial.name])) is not None]
    if not losses:
        return Cell("")
    mean = mean_over_seeds(losses)
    return Cell(between(mean, ".3g"), mean.value)
