"""The page of training runs: metrics by step, final metrics and sample answers, grouped by attention over seeds."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

import altair as alt

from subquad.report import client_baselines, event_baselines
from subquad.report.charts import save
from subquad.report.clients import (
    CURVES,
    client_charts,
    confusion_table,
    importance_table,
    overview_sentence,
    summary_table,
)
from subquad.report.curves import curves, thin
from subquad.report.event_pairs import BySeed, pair_sentences, pair_table
from subquad.report.events import caption_of, data_sentence, data_tables, event_charts, event_folds
from subquad.report.page import Chapter, Fold, Page, Picture, table, write_page
from subquad.report.residuals import quantiles, residual_chart
from subquad.report.runs import command_of, machine_of
from subquad.report.series import series_captions, series_charts
from subquad.report.tables import NOTHING, Cell, Table
from subquad.results import Row, Run
from subquad.words import capitalized, digits, run_lengths

CAPTIONS = {"residuals": "Residuals", **{name: caption for name, (_, _, _, caption) in CURVES.items()}}
"""Captions of charts that are not a metric by step."""
WRITTEN = {"nll": "negative log-likelihood", "auroc": "AUROC", "rmse": "RMSE", "mae": "MAE", "crps": "CRPS", "f1": "F1"}
"""How words in the names of metrics are written."""
DATA_OPTIONS = ("data", "fold", "split_seed", "process", "sequences", "data_seed", "ties", "backwards", "broken")
"""Options of the task of events that decide which data a model is tested on."""
KIND = "mechanism.kind"
"""The option that names the attention of a run."""


class Trained(NamedTuple):
    """A run, its rows, and a label for the options by which it differs from other runs, except the seed."""

    run: Run
    rows: list[Row]
    label: str


def label_runs(runs: Sequence[Run]) -> list[Trained]:
    """Labels each run by the options in which the runs differ. Runs that differ only in their seed share a label."""
    flat = [_flat(run.about.get("options", {})) for run in runs]
    labels = [", ".join(_words(key, options[key]) for key in _differing(options, flat)) for options in flat]
    return [Trained(run, run.rows(), label) for run, label in zip(runs, labels, strict=True)]


def _differing(options: Mapping[str, Any], flat: Sequence[Mapping[str, Any]]) -> list[str]:
    """Names of the options by which a run is told from others: its mechanism first, then what differs between runs.

    Options of a mechanism are compared between runs of the same mechanism only, since others do not have them.
    """

    def differs(key: str) -> bool:
        has_part = key.startswith("mechanism.")
        others = [other for other in flat if not has_part or other.get(KIND) == options.get(KIND)]
        return len({json.dumps(other.get(key)) for other in others}) > 1

    return [*filter(options.__contains__, [KIND]), *(key for key in options if key != KIND and differs(key))]


def _flat(options: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    mechanisms = options.get("mechanisms")
    if isinstance(mechanisms, list):  # one for each layer
        layers = [dict(each) for each in mechanisms if isinstance(each, Mapping)]
        kinds = [str(layer.pop("kind", "")) for layer in layers]
        options = {**{f"layer {at + 1}": layer for at, layer in enumerate(layers)}, "kind": run_lengths(kinds)}
    for name, value in options.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = value
    return flat


def _words(key: str, value: object) -> str:
    name = key.rsplit(".", 1)[-1].replace("_", " ")
    if isinstance(value, bool):
        return name if value else f"no {name}"
    return str(value) if name == "kind" else f"{name} {value}"


def points(trained: Sequence[Trained], metric: str) -> list[Row]:
    """Returns the points of a metric by step, for each run."""
    curve_points: list[Row] = []
    for training in trained:
        rows = sorted((row for row in training.rows if _watched(row, metric)), key=lambda row: row["step"])
        for step, value in thin([row["step"] for row in rows], [row["value"] for row in rows]):
            curve_points.append({"label": training.label, "run": training.run.folder.name, "step": step, "value": value})
    return curve_points


def _watched(row: Row, metric: str) -> bool:
    """Whether a row is the value of a metric during training, not on the test split nor of a baseline."""
    return row["metric"] == metric and row["value"] is not None and row.get("split") in (None, "train", "held out")


def metric_names(trained: Sequence[Trained]) -> list[str]:
    """Returns the names of metrics that were evaluated on held-out data."""
    return list(
        dict.fromkeys(row["metric"] for training in trained for row in training.rows if row.get("split") == "held out")
    )


def training_charts(trained: Sequence[Trained], *, interactive: bool = True) -> dict[str, alt.LayerChart]:
    """Returns charts of the loss, of each metric, and of the residuals of event models, by name."""
    drawn: dict[str, alt.LayerChart] = {}
    for metric in ("loss", *metric_names(trained)):
        if curve_points := points(trained, metric):
            log = metric == "loss" and min(row["value"] for row in curve_points) > 0  # the loss of a density can be negative
            drawn[metric] = curves(curve_points, metric.replace("_", " "), log=log, interactive=interactive)
    labelled = {label: group[0].rows for label, group in _by_label(trained).items()}
    drawn |= {name: chart for name, (_, chart) in client_charts(labelled, interactive=interactive).items()}
    if residual := [point for training in trained for point in quantiles(training.rows, training.label)]:
        drawn["residuals"] = residual_chart(residual, interactive=interactive)
    if trained:
        drawn |= event_charts(trained[0].rows, interactive=interactive)
        drawn |= series_charts(trained[0].rows, interactive=interactive)
    return drawn


def write_training_page(runs: Sequence[Run], path: Path) -> None:
    """Writes the page of one or several trainings."""
    write_page(training_page(label_runs(runs)), path)


def training_page(trained: Sequence[Trained]) -> Page:
    """Builds the page: the answer, the data, the deciding metric by step, then the loss and the other metrics."""
    drawn = training_charts(trained)
    names = sorted(drawn, key=lambda name: name != deciding_metric(trained))
    captions = {name: CAPTIONS.get(name, f"{metric_words(name)} by step") for name in names}
    captions |= {name: caption_of(name, trained[0].rows) for name in event_charts(trained[0].rows)}
    captions |= {name: caption for name, caption in series_captions(trained[0].rows).items() if name in captions}
    pictures = [Picture(name, captions[name], drawn[name]) for name in names]
    folds = [*_pair_folds(trained), *event_folds(trained[0].rows), *_event_baseline_folds(trained)]
    folds.append(Fold("At the end of training", [table(final_table(trained))]))
    if (tested := test_table(trained)).rows:
        folds.append(Fold("On the test split", [table(tested)]))
    folds += _client_folds(trained)
    if (samples := sample_table(trained)).rows:
        folds.append(Fold("Answers of the model", [table(samples)]))
    return Page(
        "How training went",
        training_answer(trained),
        data=_data_sentence(trained[0]),
        data_folds=_data_folds(trained[0]),
        about=machine_of(trained[0].run),
        picture=pictures[0] if pictures else None,
        chapters=[Chapter("Charts", pictures[1:])] if pictures[1:] else [],
        folds=folds,
        commands=[command_of(training.run, "subquad train") for training in trained],
    )


def _data_sentence(training: Trained) -> str:
    """Describes the data of a run in one sentence; empty if it stored nothing about them."""
    learned = training.run.about.get("learned")
    return data_sentence(training.rows) or (overview_sentence(learned) if isinstance(learned, Mapping) else "")


def _data_folds(training: Trained) -> list[Fold]:
    """The tables of columns, and of sequences and types of events, in one section; none if a run stored nothing of it."""
    learned = training.run.about.get("learned")
    columns = summary_table(learned) if isinstance(learned, Mapping) else None
    tables = [*([] if columns is None else [columns]), *data_tables(training.rows)]
    return [Fold("What the data hold", [table(each) for each in tables])] if tables else []


def _pair_folds(trained: Sequence[Trained]) -> Iterator[Fold]:
    """Yields the differences between models of events on each test sequence, if several were trained."""
    beside = pair_table(_rows_by_seed(trained))
    if beside.rows:
        yield Fold("Beside each other", [table(beside)], is_open=True)


def _rows_by_seed(trained: Sequence[Trained]) -> dict[str, BySeed]:
    """The rows of all trainings that were tested on the same data as the first, by label, then by seed."""
    groups = _by_label([training for training in trained if _tested_on(training) == _tested_on(trained[0])])
    return {label: {_seed(training): training.rows for training in group} for label, group in groups.items()}


def _tested_on(training: Trained) -> list[object]:
    """The options that decide which data a model was tested on."""
    flat = _flat(training.run.about.get("options", {}))
    return [flat.get(f"task.{name}") for name in DATA_OPTIONS]


def _seed(training: Trained) -> int:
    seed = training.run.about.get("seed")
    return seed if isinstance(seed, int) else 0


def _event_baseline_folds(trained: Sequence[Trained]) -> Iterator[Fold]:
    """Yields the likelihoods of baselines beside that of each model of events."""
    for training in trained:
        beside = event_baselines.baseline_table(training.rows, training.label)
        if beside.rows:
            yield Fold(f"Beside baselines: {training.run.folder.name}", [table(beside)], is_open=True)


def _client_folds(trained: Sequence[Trained]) -> Iterator[Fold]:
    """Yields baselines, confusion and the columns that matter, for each run that has them."""
    for training in trained:
        suffix = f": {training.run.folder.name}" if len(trained) > 1 else ""
        if any(row.get("split") == "baseline" for row in training.rows):
            beside = client_baselines.baseline_table(training.rows, training.label)
            yield Fold(f"Beside baselines{suffix}", [table(beside)], is_open=True)
        for title, content in (
            ("Which columns matter", importance_table(training.rows)),
            ("Confusion", confusion_table(training.rows)),
        ):
            if content is not None:
                yield Fold(f"{title}{suffix}", [table(content)])


def deciding_metric(trained: Sequence[Trained]) -> str:
    """Returns the metric that the page begins with: the first evaluated one, or the loss if there is none."""
    return next(iter(metric_names(trained)), "loss")


def training_answer(trained: Sequence[Trained]) -> str:
    """Returns the final metric of each attention, on the test split if there is one, and what it loses to.

    A model that loses to a baseline says so first.
    """
    metric = deciding_metric(trained)
    lost: list[str] = []
    others: list[str] = []
    sentences = []
    for label, group in _by_label(trained).items():
        shown = next((training for training in group if event_baselines.is_behind(training.rows)), group[0])
        words = event_baselines.standing(shown.rows, label)
        (lost if event_baselines.is_behind(shown.rows) else others).append(words)
        lost += _lost_to_client_baselines(label, group)
        tested = [value for training in group if (value := value_on_test(training.rows, metric)) is not None]
        watched = [
            final_loss(training.rows) if metric == "loss" else last_value(training.rows, metric) for training in group
        ]
        end = _spread(tested or watched)
        if end is not NOTHING:
            name = metric_words(metric, lower=True)
            article = "an" if name[0].lower() in "aeiou" or name.startswith(("RMSE", "MAE")) else "a"
            sentences.append(f"{label} ended with {article} {name} of {end.text}{' on the test' if tested else ''}")
    parts = [*lost, *sentences, *pair_sentences(_rows_by_seed(trained)), *filter(None, others)]
    return f"{capitalized('; '.join(parts))}." if parts else "Nothing was trained yet."


def value_on_test(rows: Sequence[Row], metric: str) -> float | None:
    """Returns a metric on the test split, or None if it was not measured."""
    values = [row["value"] for row in rows if row["metric"] == metric and row.get("split") == "test"]
    return values[-1] if values else None


def metric_words(metric: str, *, lower: bool = False) -> str:
    """Returns the name of a metric for display."""
    words = " ".join(WRITTEN.get(word, word) for word in metric.split("_"))
    return words if lower else capitalized(words)


def _lost_to_client_baselines(label: str, group: Sequence[Trained]) -> list[str]:
    """What the runs of one attention lose to on clients: the first sentence only if there are more than two."""
    sentences = [sentence for training in group for sentence in client_baselines.lost_to(training.rows)]
    behind = [f"{label}: {sentence[:1].lower()}{sentence[1:-1]}" for sentence in sentences]
    return behind[:1] if len(behind) > 2 else behind


def _by_label(trained: Sequence[Trained]) -> dict[str, list[Trained]]:
    """Groups trainings by label."""
    groups: dict[str, list[Trained]] = {}
    for training in trained:
        groups.setdefault(training.label, []).append(training)
    return groups


def write_training_figures(runs: Sequence[Run], folder: Path) -> Iterator[Path]:
    """Writes each chart as PNG and SVG."""
    return save(training_charts(label_runs(runs), interactive=False), folder)


def final_loss(rows: Sequence[Row]) -> float | None:
    """Returns the mean loss over the last twentieth of the steps, or None without any."""
    losses = [row["value"] for row in sorted(rows, key=lambda row: row["step"]) if row["metric"] == "loss"]
    return mean(losses[-max(1, len(losses) // 20) :]) if losses else None


def last_value(rows: Sequence[Row], metric: str) -> float | None:
    """Returns a metric at the last step that has it, or None."""
    watched = [row for row in rows if _watched(row, metric)]
    return max(watched, key=lambda row: row["step"])["value"] if watched else None


def final_table(trained: Sequence[Trained]) -> Table:
    """Returns the table of final loss and metrics by label: mean and range over seeds."""
    metrics = metric_names(trained)
    rows = []
    for label, group in _by_label(trained).items():
        cells = [_spread([final_loss(training.rows) for training in group])]
        cells += [
            _spread([last_value(training.rows, name) for training in group]) for name in (*metrics, "tokens_per_second")
        ]
        steps = max((row["step"] for training in group for row in training.rows), default=0)
        rows.append([Cell(label), Cell(str(len(group)), len(group)), Cell(str(steps), steps), *cells])
    names = [name.replace("_", " ") for name in metrics]
    return Table("At the end: mean and range over seeds", ["attention", "runs", "steps", "loss", *names, "tokens/s"], rows)


def test_table(trained: Sequence[Trained]) -> Table:
    """Returns the table of each run's metrics on the test split, with intervals."""
    rows = []
    for training in trained:
        for row in (row for row in training.rows if row.get("split") == "test"):
            between = f"{_figure(row['low'])} to {_figure(row['high'])}" if "low" in row else ""
            name, value = row["metric"].replace("_", " "), Cell(_figure(row["value"]), row["value"])
            rows.append([Cell(training.label), Cell(training.run.folder.name), Cell(name), value, Cell(between)])
    return Table("On the test", ["attention", "run", "metric", "value", "95% interval"], rows)


def _figure(value: float) -> str:
    """A loss or metric: three significant digits below .1, and three decimals up to 100, since hundredths of nats count."""
    if abs(value) < 0.1:
        return f"{value:.3g}"
    return f"{value:.3f}" if abs(value) < 100 else digits(value)


def _spread(values: Sequence[float | None]) -> Cell:
    measured = [value for value in values if value is not None]
    if not measured:
        return NOTHING
    middle = mean(measured)
    text = (
        _figure(middle)
        if len(measured) == 1
        else f"{_figure(middle)} ({_figure(min(measured))} to {_figure(max(measured))})"
    )
    return Cell(text, middle)


def sample_table(trained: Sequence[Trained]) -> Table:
    """Returns the table of sample inputs, the model's answers, and the right answers."""
    rows = [
        [
            Cell(training.label),
            Cell(row["given"]),
            Cell(row["answered"]),
            Cell("right" if row["answered"] == row["right"] else row["right"]),
        ]
        for training in trained
        for row in training.rows
        if row["metric"] == "sample"
    ]
    return Table("On fresh sequences", ["attention", "given", "answered", "right"], rows)
