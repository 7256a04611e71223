"""Scores of test clients by trained models, and time and memory of their steps."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from numpy import ndarray

from subquad.errors import SubquadError
from subquad.experiments.base import is_finished, open_part
from subquad.experiments.transactions.grid import BASELINE, BEST_POSSIBLE, BOOSTING, COUNTS, LONG, SCORE
from subquad.measure.memory import in_fresh_process, peak_extra_bytes
from subquad.measure.timing import interleave
from subquad.results import Row, Run
from subquad.runs import read_options
from subquad.statistics import median_interval, ratio_interval
from subquad.tasks.transactions import labelled
from subquad.tasks.transactions.batches import EventBatch
from subquad.training.resuming import load_model

SECONDS = 8.0
"""Duration in seconds of the measurement of one group of attentions."""
TYPICAL = 256
"""Number of events per client in the measurement of short histories."""


def measure(folder: Path, scale: str) -> None:
    """Measures scores of the test clients by every model and by boosting, and the cost of steps."""
    run = open_part(folder / "scores", "scores", f"subquad reproduce transactions --scale {scale}")
    trained = [Run.open(path, "train") for path in sorted(folder.glob("transactions-*")) if is_finished(path)]
    options = {training.about["options"]["mechanism"]["kind"]: training.about["options"] for training in trained}
    is_costed = options.keys() <= {row["mechanism"] for row in run.rows() if _is_last_cost(row)}
    _forget_unfinished(run, is_costed=is_costed)
    run.append(score(trained, {_scored(row) for row in run.rows() if row["metric"] in (SCORE, BEST_POSSIBLE)}))
    if not is_costed:
        run.append(costs(options))


def _scored(row: Row) -> tuple[str, str, int]:
    """Identifies a score: the label, the mechanism (or `BEST_POSSIBLE`) and the fold."""
    return row["label"], BEST_POSSIBLE if row["metric"] == BEST_POSSIBLE else row["mechanism"], row["fold"]


def _is_last_cost(row: Row) -> bool:
    return row["metric"] == "peak_bytes" and row["length"] == LONG


def _forget_unfinished(run: Run, *, is_costed: bool) -> None:
    """Deletes costs that are incomplete, and the scores that were written last if nothing follows them."""
    if not is_costed:
        run.keep_rows(lambda row: "work" not in row)
    rows = run.rows()
    if rows and rows[-1]["metric"] == SCORE:
        run.keep_rows(lambda row: row["metric"] != SCORE or _scored(row) != _scored(rows[-1]))


def score(runs: Sequence[Run], known: Collection[tuple[str, str, int]]) -> Iterator[Row]:
    """Yields scores of the test clients by trained models, and by baselines once for each fold, unless they are `known`."""
    by_fold = groupby(sorted(runs, key=_fold), key=_fold)
    for (label, fold), group in by_fold:
        models = {run.about["options"]["mechanism"]["kind"]: run for run in group}
        wanted = [name for name in (*models, COUNTS, BOOSTING) if (label, name, fold) not in known]
        if not wanted:
            continue
        first = next(iter(models.values()))
        if (label, BEST_POSSIBLE, fold) not in known:
            best = [row for row in first.rows() if row["metric"] == BEST_POSSIBLE]
            yield from ({**_about_run(first.about["options"]), **row} for row in best)
        task = _task(first)
        labels = task.truth("test")[:, 0].astype(int).tolist()
        others = baseline_scores(task) if {COUNTS, BOOSTING} & set(wanted) else {}
        for name in wanted:
            values = others[name] if name in others else _scores(task, models[name])
            about = {"label": label, "fold": fold, "mechanism": name, "metric": SCORE}
            yield from (
                {**about, "value": value, "class": kind} for value, kind in zip(values.tolist(), labels, strict=True)
            )


def _about_run(options: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of a row that name the run that it comes from."""
    return {"label": options["task"]["label"], "mechanism": options["mechanism"]["kind"], "fold": options["task"]["fold"]}


def _fold(run: Run) -> tuple[str, int]:
    about = _about_run(run.about["options"])
    return about["label"], about["fold"]


def _task(run: Run) -> Any:
    """The prepared task of a run."""
    return read_options(run.about["options"]).task.prepare(run.about["learned"])


def _scores(task: Any, run: Run) -> ndarray:
    """Scores of the test clients by a trained model."""
    options = read_options(run.about["options"])
    model = task.build(options.attention, options.model)
    load_model(run.folder, model, lambda words: None)
    scores: ndarray = task.scores(model, "test")[:, 0]
    return scores


def baseline_scores(task: Any) -> dict[str, ndarray]:
    """Scores of the test clients by models of counts and aggregates, on the same training clients."""
    options = replace(task.options, baselines=True)
    predicted = options.prepare(task.features.as_json()).baselines()
    if labelled.BOOSTING not in predicted:
        raise SubquadError("gradient boosting needs scikit-learn: pip install 'subquad[data]'")
    names = {labelled.COUNTS: COUNTS, labelled.BOOSTING: BOOSTING}
    return {names[name]: values[:, 0] for name, values in predicted.items()}


def costs(options: Mapping[str, Mapping[str, Any]]) -> Iterator[Row]:
    """Yields rows with the seconds of training and scoring, attentions in turns, and the peak memory of a training step."""
    for length, batch in ((TYPICAL, 32), (LONG, 1)):
        for work in ("training", "scoring"):
            candidates = {name: _work(trained_options, length, batch, work) for name, trained_options in options.items()}
            taken = interleave(candidates, seconds=SECONDS, at_least=3, at_most=30)
            for name, times in taken.items():
                about = {"mechanism": name, "length": length, "batch": batch, "work": work}
                relative = ratio_interval(times, taken[BASELINE])
                for metric, interval in (("seconds", median_interval(times)), ("times_softmax", relative)):
                    yield {**about, "metric": metric, **interval._asdict()}
        for name, trained_options in options.items():
            peak = in_fresh_process(_peak, trained_options, length, batch)
            about = {"mechanism": name, "length": length, "batch": batch, "work": "training"}
            yield {**about, "metric": "peak_bytes", "value": peak, "unit": "B"}


def _work(options: Mapping[str, Any], length: int, batch: int, work: str) -> Callable[[], object]:
    """A training step, or the scoring of a batch of clients with `length` events each."""
    trained_options = read_options(options)
    task_options: Any = trained_options.task
    simulated = {"data": "", "label": "", "clients": max(64, 2 * batch)}
    task = replace(task_options, **simulated, shortest_history=length, longest_history=length).prepare()
    model = task.build(trained_options.attention, trained_options.model, torch.Generator().manual_seed(0))
    drawn = task.batch(batch, torch.Generator().manual_seed(0))
    return (lambda: _step(task, model, drawn)) if work == "training" else (lambda: _score(model, drawn))


def _step(task: Any, model: torch.nn.Module, drawn: EventBatch) -> None:
    model.train()
    model.zero_grad()
    task.loss(model, drawn).total.backward()


def _score(model: torch.nn.Module, drawn: EventBatch) -> None:
    model.eval()
    with torch.inference_mode():
        model(drawn.events, keep=drawn.keep)


def _peak(options: Mapping[str, Any], length: int, batch: int) -> int:
    """Peak memory of a training step, after a step on short histories. Runs in a fresh process."""
    _work(options, 16, batch, "training")()
    return peak_extra_bytes(_work(options, length, batch, "training"))
