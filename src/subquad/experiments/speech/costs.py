"""Time for each second of sound, and memory, against the length of a sound, for every encoder."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from subquad.experiments.base import Training, open_part
from subquad.experiments.speech.grid import BASELINE, SCALES
from subquad.measure.memory import give_back_at_once, in_fresh_process, peak_extra_bytes
from subquad.measure.timing import interleave
from subquad.results import Row
from subquad.statistics import median_interval, ratio_interval
from subquad.tasks.speech.model import SpeechModel
from subquad.tasks.speech.task import DELTAS, Speech

SECONDS = 12.0
"""Duration of the measurement of all encoders at one length."""
FRAMES = 100
"""Frames of a second."""
UNITS = 28
"""Number of units of the models that are measured."""


def measure(folder: Path, scale: str) -> None:
    """Measures time and memory at each length, unless they were measured before."""
    run = open_part(folder / "costs", "costs", f"subquad reproduce speech --scale {scale}")
    done = {row["sound_seconds"] for row in run.rows()}
    works = SCALES[scale].works()
    for seconds in SCALES[scale].seconds:
        if seconds not in done:
            run.append(list(costs(works, seconds)))


def costs(works: dict[str, Training], seconds: int, *, duration: float = SECONDS) -> Iterator[Row]:
    """Yields rows with the time of recognition and of a training step for a second of sound, and the peak of a step."""
    about: dict[str, object] = {"sound_seconds": seconds}
    for what in ("recognition", "training"):
        candidates = {name: work_of(work, seconds, what) for name, work in works.items()}
        taken = interleave(candidates, seconds=duration, at_least=3, at_most=30)
        for name, times in taken.items():
            for metric, interval in (
                ("seconds_per_second", median_interval([time / seconds for time in times])),
                ("times_softmax", ratio_interval(times, taken[BASELINE])),
            ):
                yield {"metric": metric, "unit": "", "encoder": name, "work": what, **about, **interval._asdict()}
    for name, work in works.items():
        peak = in_fresh_process(_peak, work, seconds)
        yield {"metric": "peak_bytes", "unit": "B", "encoder": name, "work": "training", **about, "value": peak}


def work_of(work: Training, seconds: int, what: str) -> Callable[[], object]:
    """Recognition of a sound of random features, or a training step on it, on a model with random weights."""
    assert isinstance(work.task, Speech)
    model = SpeechModel(
        DELTAS * work.task.bands,
        UNITS,
        work.attention,
        replace(work.model, dropout=0.0),
        halvings=work.task.halvings,
        convolutions=work.task.convolutions,
        encoder=work.task.encoder,
        generator=torch.Generator().manual_seed(0),
    )
    drawing = torch.Generator().manual_seed(1)
    frames = torch.randn(1, seconds * FRAMES, DELTAS * work.task.bands, generator=drawing)
    keep = torch.ones(frames.shape[:2], dtype=torch.bool)
    if what == "recognition":
        return lambda: _recognise(model.eval(), frames, keep)
    said = torch.randint(1, UNITS + 1, (1, seconds * 8), generator=drawing)
    return lambda: _train(model.train(), frames, keep, said)


@torch.inference_mode()
def _recognise(model: nn.Module, frames: torch.Tensor, keep: torch.Tensor) -> None:
    model(frames, keep)


def _train(model: nn.Module, frames: torch.Tensor, keep: torch.Tensor, said: torch.Tensor) -> None:
    model.zero_grad()
    log_probabilities, kept = model(frames, keep)
    sizes = torch.tensor([said.shape[1]])
    nn.functional.ctc_loss(log_probabilities.transpose(0, 1), said, kept.sum(1), sizes, reduction="sum").backward()


def _peak(work: Training, seconds: int) -> int:
    """Peak memory of a training step, after a step on a short sound. Runs in a fresh process."""
    give_back_at_once()
    work_of(work, 1, "training")()
    return peak_extra_bytes(work_of(work, seconds, "training"))
