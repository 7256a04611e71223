"""Scores of test clients by trained models, and time and memory of steps."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from numpy import ndarray

from subquad.experiments.base import is_finished, open_part
from subquad.experiments.transactions.grid import BASELINE, BEST_POSSIBLE, BOOSTING, LONG, SCORE
from subquad.measure.memory import in_fresh_process, peak_extra_bytes
from subquad.measure.timing import interleave
from subquad.results import Row, Run
from subquad.runs import read_options
from subquad.statistics import median_interval, ratio_interval
from subquad.tasks.transactions.batches import EventBatch
from subquad.tasks.transactions.boosting import boosted_scores
from subquad.training.loop import load_model

SECONDS = 8.0
"""Duration of the measurement of one group of candidates."""
TYPICAL = 256
"""Events of a client in the short measurement."""


def measure(folder: Path, scale: str) -> None:
    """Scores of every model's test clients, boosting on the same folds, and what steps cost."""
    run = open_part(folder / "scores", "scores", f"subquad reproduce transactions --scale {scale}")
    trained = [Run.open(path, "train") for path in sorted(folder.glob("transactions-*")) if is_finished(path)]
    options = {each.about["options"]["mechanism"]["kind"]: each.about["options"] for each in trained}
    is_costed = options.keys() <= {row["mechanism"] for row in run.rows() if _is_last_cost(row)}
    _forget_unfinished(run, is_costed=is_costed)
    run.append(score(trained, {_scored(row) for row in run.rows() if row["metric"] in (SCORE, BEST_POSSIBLE)}))
    if not is_costed:
        run.append(costs(options))


def _scored(row: Row) -> tuple[str, str, int]:
    """Label, mechanism (or that it is the best possible score) and fold of a score."""
    return row["label"], BEST_POSSIBLE if row["metric"] == BEST_POSSIBLE else row["mechanism"], row["fold"]


def _is_last_cost(row: Row) -> bool:
    return row["metric"] == "peak_bytes" and row["length"] == LONG


def _forget_unfinished(run: Run, *, is_costed: bool) -> None:
    """Takes out costs that were not measured to the end, and the scores that were written last, if nothing came after."""
    if not is_costed:
        run.keep_rows(lambda row: "work" not in row)
    rows = run.rows()
    if rows and rows[-1]["metric"] == SCORE:
        run.keep_rows(lambda row: row["metric"] != SCORE or _scored(row) != _scored(rows[-1]))


def score(runs: Sequence[Run], known: Collection[tuple[str, str, int]]) -> Iterator[Row]:
    """The test clients' scores of trained models, and of boosting once for each fold; nothing that is `known`."""
    by_fold = groupby(sorted(runs, key=_fold), key=_fold)
    for (label, fold), group in by_fold:
        models = {run.about["options"]["mechanism"]["kind"]: run for run in group}
        wanted = [name for name in (*models, BOOSTING) if (label, name, fold) not in known]
        if not wanted:
            continue
        first = next(iter(models.values()))
        if (label, BEST_POSSIBLE, fold) not in known:
            best = [row for row in first.rows() if row["metric"] == BEST_POSSIBLE]
            yield from ({**_about_run(first.about["options"]), **row} for row in best)
        task = _task(first)
        labels = task.labels("test").tolist()
        for name in wanted:
            values = boosted_scores(task) if name == BOOSTING else _scores(task, models[name])
            about = {"label": label, "fold": fold, "mechanism": name, "metric": SCORE}
            yield from ({**about, "value": value, "class": own} for value, own in zip(values.tolist(), labels, strict=True))


def _about_run(options: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of a row that say which run it is from."""
    return {"label": options["task"]["label"], "mechanism": options["mechanism"]["kind"], "fold": options["task"]["fold"]}


def _fold(run: Run) -> tuple[str, int]:
    about = _about_run(run.about["options"])
    return about["label"], about["fold"]


def _task(run: Run) -> Any:
    """The prepared task of a run, with its clients and fold."""
    return read_options(run.about["options"]).task.prepare(run.about["learned"])


def _scores(task: Any, run: Run) -> ndarray:
    """Scores of the test clients by a trained model."""
    kept = read_options(run.about["options"])
    model = task.build(kept.attention, kept.model)
    load_model(run.folder, model, lambda words: None)
    scores: ndarray = task.scores(model, "test")
    return scores


def costs(options: Mapping[str, Mapping[str, Any]]) -> Iterator[Row]:
    """Seconds of a training step and of scoring, candidates in turns, and the peak of a training step's memory."""
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
    """A training step or the scoring of some clients with as many events each."""
    kept = read_options(options)
    own: Any = kept.task
    simulated = {"data": "", "label": "", "clients": max(64, 2 * batch)}
    task = replace(own, **simulated, shortest_history=length, longest_history=length).prepare()
    model = task.build(kept.attention, kept.model, torch.Generator().manual_seed(0))
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
    """Peak memory of a training step, after the same step on tiny inputs. Runs in a fresh process."""
    _work(options, 16, batch, "training")()
    return peak_extra_bytes(_work(options, length, batch, "training"))
