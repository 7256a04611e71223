"""Reproductions that never ran: every training of the first seeds has rows, so that pages and figures can be drawn."""

import json
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch

from subquad.experiments.base import Training, Trial
from subquad.experiments.linformer.errors import WAYS
from subquad.experiments.linformer.projections import CHANGE, CLOSENESS, FRESH, LEARNED, TRAINED
from subquad.experiments.registry import EXPERIMENTS
from subquad.files import write_whole
from subquad.measure.spectrum import singular_values, spectrum_rows
from subquad.results import Row, Run
from subquad.runs import RunOptions
from tests.compare.rows import SECONDS, rows

SEEDS = 2
STEPS = range(1, 10)
METRICS = {
    "copy": ("token_accuracy", "sequence_accuracy"),
    "infinity": ("token_accuracy", "places_off"),
    "events": ("nll", "accuracy"),
    "linformer": ("perplexity", "perplexity_of_unigram", "accuracy"),
    "conversion": ("perplexity", "perplexity_of_unigram"),
    "recall": ("accuracy", "state_bytes"),
    "lra": ("accuracy", "accuracy_of_most_frequent"),
    "images": ("bits_per_dimension",),
    "speech": ("error_rate", "beam_error_rate", "word_error_rate"),
}
"""Metrics that the trainings of an experiment report beside the loss."""
STAGES = ("original", "swapped", "distilled", "tuned")


def made_reproduction(folder: Path, name: str) -> Run:
    """A reproduction at the quick scale, of two seeds and the shortest length only, which saves time."""
    trials = list(EXPERIMENTS[name].scales["quick"].trials())
    shortest, seeds = min(trial.length for trial in trials), sorted({trial.seed for trial in trials})[:SEEDS]
    for number, trial in enumerate(trials):
        if trial.seed in seeds and trial.length == shortest:
            _made_trial(folder / trial.name, trial, METRICS.get(name, ()), 1 + 0.1 * math.sin(number))
    if name in PARTS:
        PARTS[name](folder)
    options = {"experiment": name, "scale": "quick", "data": None, "original": None}
    verdict = {"metric": "held", "value": 1, "claim": "something", "figures": "1"}
    return Run.create(folder, "reproduce", {"options": options, "command": f"subquad reproduce {name}"}, [verdict])


def _made_trial(folder: Path, trial: Trial, metrics: Sequence[str], factor: float) -> None:
    if isinstance(trial.work, Training):
        work = trial.work
        options = RunOptions(work.task, work.attention, work.model, work.options).as_json()
        Run.create(folder, "train", {"options": options, "seed": trial.seed}, _training_rows(metrics, factor))
        (folder / "checkpoint" / f"step-{work.options.steps:09d}").mkdir(parents=True)
    else:
        Run.create(folder, "convert", {"options": {}, "seed": trial.seed}, _conversion_rows(factor))
        about = {"phases": 1, "stand": {"phase": 1}}
        write_whole(folder / "checkpoint" / "step-000000009" / "about.json", json.dumps(about))


def _training_rows(metrics: Sequence[str], factor: float) -> Iterator[Row]:
    for step in STEPS:
        yield {"metric": "loss", "value": factor / step, "step": step}
        yield from ({"metric": metric, "value": factor / step, "step": step, "split": "held out"} for metric in metrics)
    for metric in metrics:
        about = {"metric": metric, "split": "test", "step": STEPS[-1]}
        yield {**about, "value": factor, "low": factor - 0.1, "high": factor + 0.1}
    for at in range(1, 5 if "nll" in metrics else 1):
        yield {"metric": "residual_quantile", "exponential": float(at), "value": factor * at, "step": STEPS[-1]}


def _conversion_rows(factor: float) -> Iterator[Row]:
    for recipe in ("conversion", "plain fine-tuning", "window alone", "softmax fine-tuned"):
        for step, stage in enumerate(STAGES):
            about = {"metric": "perplexity", "recipe": recipe, "stage": stage, "step": step, "elapsed": 1.0}
            yield from ({**about, "split": split, "value": factor * (9 - step)} for split in ("development", "test"))


def _timing(folder: Path, what: str, form: str, names: tuple[str, ...]) -> None:
    seconds = {name: SECONDS[name] for name in names}
    Run.create(folder / "timing", "compare", {}, rows(seconds, views=[(form, what)]))


def _copy(folder: Path) -> None:
    _timing(folder, "update", "causal", ("softmax", "linear", "favor"))


def _lra(folder: Path) -> None:
    _timing(folder, "training", "bidirectional", ("softmax", "linear", "favor"))


def _infinity(folder: Path) -> None:
    measured: list[Row] = []
    for context in (2048, 32768):
        about = {"context": context, "value": 1.0, "low": 0.9, "high": 1.1}
        measured += [{"metric": metric, **about} for metric in ("seconds", "times_first", "state_bytes")]
    Run.create(folder / "context", "context", {}, measured)


def _linformer(folder: Path) -> None:
    drawing = torch.Generator().manual_seed(0)
    for seed in range(SEEDS):
        matrices = torch.randn(2, 4, 16, 16, generator=drawing).softmax(-1)
        values = [[singular_values(layer)] for layer in matrices]
        models = [row for model in ("trained", "random") for row in spectrum_rows(values, {"model": model}, {"favor": 4})]
        Run.create(folder / f"spectrum-{seed}", "spectrum", {}, models)
    parts = [{**row, "part": "all"} for row in (*_slot_rows(), {"metric": "seconds_of_part", "value": 1.0})]
    Run.create(folder / "slots", "slots", {}, parts)


def _slot_rows() -> Iterator[Row]:
    for seed in range(SEEDS):
        for length in (32, 64, 128):
            for k in (8, 16, 32):
                errors = {way: (9 + at + seed) / k * length / 200 for at, way in enumerate(WAYS)}
                about = {"metric": "output_error", "seed": seed, "length": length, "layer": 1, "k": k}
                yield from ({**about, "way": way, "value": error} for way, error in errors.items())
        place = {"seed": seed, "length": 128, "k": 32, "sharing": "none", "layer": 1, "side": "keys", "head": 1}
        for metric in (*CLOSENESS, LEARNED):
            for model in (TRAINED, FRESH, CHANGE):
                yield {"metric": metric, "value": 0.3 + seed / 100, "model": model, **place}
    for model in (TRAINED, CHANGE):
        for slot in range(1, 5):
            place = {"seed": 0, "length": 128, "k": 32, "sharing": "heads", "layer": 1, "side": "keys"}
            yield {"metric": "weights", "value": slot, "model": model, "text": "0.1 -0.2 0.3", **place}


PARTS: dict[str, Callable[[Path], None]] = {
    "copy": _copy,
    "infinity": _infinity,
    "linformer": _linformer,
    "lra": _lra,
}
"""Functions that write what an experiment measures beside its trainings, if its page draws a chart of it."""
