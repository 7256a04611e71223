"""The page of the faults of the public code: figures as it reports them, and what the same weights are worth."""

from collections.abc import Collection, Sequence
from pathlib import Path

import altair as alt

from subquad.experiments.events.faults import ARMS, NONE, Trained, by_batch, judge, trained, values
from subquad.report.charts import HEIGHT, LEGEND_COLUMNS, PALETTE
from subquad.report.page import Chapter, Fold, Page, Picture, paragraph, table
from subquad.report.tables import NOTHING, Cell, Table
from subquad.report.verdicts import verdict_answer, verdict_fold
from subquad.results import Row
from subquad.statistics import mean_over_seeds
from subquad.tasks.events.faults import FAULTS
from subquad.words import between

TITLE = "Faults of the public code, put back in"
REPORTED, RIGHT, TRUTH = "as the code reports it", "the same weights, judged right", "the true process"
LABELS = {REPORTED: PALETTE[1], RIGHT: PALETTE[2], TRUTH: PALETTE[0]}
WORDS = {NONE: "no fault", "figures": "padding-rmse, test-picks"}
LIKELIHOODS = {REPORTED: "reported_nll", RIGHT: "nll", TRUTH: "nll_of_truth"}
COLUMNS = {
    "reported_nll": "-log-likelihood, reported",
    "nll": "judged right",
    "reported_rmse": "RMSE of the gap, reported (batches of 16)",
    "rmse_by_head": "judged right",
}


def faults_page(folder: Path) -> Page:
    """Returns the page: the likelihood with each fault first, then the RMSE by batch size, then tables."""
    runs, verdicts = trained(folder), judge(folder)
    sources = list(dict.fromkeys(run.source for run in runs))
    pictures = [picture for source in sources for picture in _pictures(runs, source)]
    words = [f"{name}: {text}." for name, text in FAULTS.items()]
    folds = [verdict_fold(verdicts), Fold("The faults", [paragraph(line) for line in words])]
    folds += [Fold(f"Figures: {source}", [table(fault_table(runs, source))]) for source in sources]
    return Page(
        TITLE,
        verdict_answer(verdicts),
        about="The code of Zuo et al. 2020. Dmitriev et al. 2020 removed a bug from it and got better results than "
        "published; they do not say which. Softmax, an intensity for each type, and a head that predicts the gap.",
        picture=pictures[0] if pictures else None,
        chapters=[Chapter("More pictures", pictures[1:])] if pictures[1:] else [],
        folds=folds,
    )


def _pictures(runs: Sequence[Trained], source: str) -> list[Picture]:
    pictures = []
    likelihoods = [point for arm in ARMS for point in arm_points(runs, source, arm)]
    if likelihoods:
        caption = f"Negative log-likelihood of test events, each seed a dot: {source}"
        pictures.append(Picture(f"faults_nll_{source}", caption, arm_chart(likelihoods, "nats per event, less is better")))
    errors = batch_points(runs, source)
    if errors:
        caption = f"RMSE of the predicted gap as the code reports it, by its batch size, same weights: {source}"
        pictures.append(Picture(f"faults_rmse_{source}", caption, batch_chart(errors)))
    return pictures


def arm_points(runs: Sequence[Trained], source: str, arm: str) -> list[Row]:
    """The likelihood of an arm: as reported, judged right, and that of the true process."""
    return [
        {"arm": WORDS.get(arm, arm), "label": label, "value": value, "seed": seed}
        for label, metric in LIKELIHOODS.items()
        for seed, value in values(runs, source, arm, metric).items()
    ]


def arm_chart(points: Sequence[Row], title: str) -> alt.Chart:
    """Returns the chart of a metric by arm, one dot for each seed."""
    arms = list(dict.fromkeys(point["arm"] for point in points))
    legend = alt.Legend(orient="top", title=None, columns=LEGEND_COLUMNS, labelLimit=400)
    colour = alt.Color("label:N").scale(domain=list(LABELS), range=list(LABELS.values())).legend(legend)
    drawn = alt.Chart(alt.Data(values=list(points))).mark_point(filled=True, size=70, opacity=0.8)
    drawn = drawn.encode(
        x=alt.X("value:Q", title=title).scale(type="symlog", constant=0.5),
        y=alt.Y("arm:N", title=None, sort=arms).axis(grid=True, labelLimit=200),
        color=colour,
        tooltip=["arm:N", "label:N", alt.Tooltip("value:Q", format=".4~g"), "seed:O"],
    ).properties(width="container", height=HEIGHT)
    return drawn.configure(background="transparent").configure_view(stroke=None)


def batch_points(runs: Sequence[Trained], source: str) -> list[Row]:
    """The reported RMSE by batch size of every training with a fault."""
    chosen = [run for run in runs if run.source == source]
    return [
        {"label": WORDS.get(run.arm, run.arm), "run": f"{run.arm} {run.seed}", "batch": batch, "value": value}
        for run in chosen
        for batch, value in sorted(by_batch(run).items())
    ]


def batch_chart(points: Sequence[Row]) -> alt.Chart:
    """Returns the chart of the reported RMSE against the batch size, one line for each seed."""
    labels = list(dict.fromkeys(point["label"] for point in points))
    colours = [PALETTE[(at + 1) % len(PALETTE)] for at in range(len(labels))]
    legend = alt.Legend(orient="top", title=None, columns=LEGEND_COLUMNS, labelLimit=400)
    sizes = sorted({point["batch"] for point in points})
    drawn = alt.Chart(alt.Data(values=list(points))).mark_line(point=True, strokeWidth=2)
    drawn = drawn.encode(
        x=alt.X("batch:Q", title="sequences in a batch").axis(values=sizes).scale(type="log", base=2),
        y=alt.Y("value:Q", title="reported RMSE, in the data's unit").scale(type="log"),
        color=alt.Color("label:N").scale(domain=labels, range=colours).legend(legend),
        detail="run:N",
        tooltip=["run:N", "batch:Q", alt.Tooltip("value:Q", format=".4~g")],
    ).properties(width="container", height=HEIGHT)
    return drawn.configure(background="transparent").configure_view(stroke=None)


def fault_table(runs: Sequence[Trained], source: str) -> Table:
    """Reported metrics of every arm, and the same metrics judged right, means over seeds with their 95% intervals."""
    rows = []
    for arm in ARMS:
        cells = [_cell(values(runs, source, arm, metric).values()) for metric in COLUMNS]
        if any(cell != NOTHING for cell in cells):
            rows.append([Cell(WORDS.get(arm, arm)), *cells])
    return Table("Test sequences, means over seeds", ["fault", *COLUMNS.values()], rows)


def _cell(seeds: Collection[float]) -> Cell:
    if not seeds:
        return NOTHING
    interval = mean_over_seeds(list(seeds))
    return Cell(between(interval, ".3f"), interval.value)
