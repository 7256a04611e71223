"""Time and memory of a training step on long sequences of events."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from subquad.experiments.base import open_part
from subquad.experiments.events.grid import BASELINE, BATCH, LONG, SIMULATED, Setting
from subquad.experiments.events.verdicts import trained
from subquad.measure.memory import give_back_at_once, in_fresh_process, peak_extra_bytes
from subquad.measure.timing import interleave
from subquad.results import Row
from subquad.runs import read_options
from subquad.statistics import median_interval, ratio_interval
from subquad.tasks.events.scoring import encode
from subquad.tasks.events.sequences import EventSequences

SECONDS = 20.0
PEAKS = 9
"""Processes in which a peak is read. The system counts a process' pages to within a quarter of a megabyte."""
SHORT = 16
"""Events that a simulated sequence has at least, so that enough of them are drawn."""
WARM = 512
"""Events after which the libraries' own buffers are there."""


def measure(folder: Path, scale: str) -> None:
    """Measures the models that were trained on simulated sequences as in the paper, unless that was done to the end."""
    run = open_part(folder / "costs", "costs", f"subquad reproduce events --scale {scale}")
    options = {each.attention: each.run.about["options"] for each in trained(folder) if each.setting == Setting(SIMULATED)}
    done = {row["mechanism"] for row in run.rows() if row["metric"] == "times_the_peak"}  # the last that is measured
    if not options.keys() <= done:
        run.keep_first_rows(0)
        run.append(costs(options))


def costs(options: Mapping[str, Mapping[str, Any]]) -> Iterator[Row]:
    """Seconds of a training step, and the peak of its memory in processes of its own, both with the candidates in turns.

    On one thread, as every training of the experiment is.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        taken = interleave(
            {name: work(trained_options, LONG) for name, trained_options in options.items()}, seconds=SECONDS, at_most=30
        )
    finally:
        torch.set_num_threads(threads)
    peaks: dict[str, list[float]] = {name: [] for name in options}
    for _ in range(PEAKS):
        for name, trained_options in options.items():
            peaks[name].append(in_fresh_process(_peak, trained_options, LONG))
    for name in options:
        intervals = {
            "seconds": median_interval(taken[name]),
            "times_as_fast": ratio_interval(taken[BASELINE], taken[name]),
            "peak_bytes": median_interval(peaks[name]),
            "times_the_peak": ratio_interval(peaks[name], peaks[BASELINE]),
        }
        for metric, interval in intervals.items():
            yield {"mechanism": name, "length": LONG, "metric": metric, **interval._asdict()}


def work(options: Mapping[str, Any], length: int) -> Callable[[], object]:
    """A training step on a batch of simulated sequences of so many events each."""
    kept = read_options(options)
    task = replace(kept.task, data="", sequences=2).prepare()  # type: ignore[call-arg]
    model = task.build(kept.attention, kept.model, torch.Generator().manual_seed(0))
    batch = sequences(task, length)

    def step() -> None:
        model.train()
        model.zero_grad()
        task.loss(model, batch).total.backward()

    return step


def sequences(task: Any, length: int) -> Any:
    """As many as a batch has, of the gaps and types of shorter ones."""
    drawn = task.process.draw(BATCH * length // SHORT, 0)
    gaps, types = np.diff(drawn.times, prepend=0.0)[~drawn.first], drawn.types[~drawn.first]
    assert len(gaps) >= BATCH * length, "too few simulated events"
    times = np.cumsum(gaps[: BATCH * length].reshape(BATCH, length), axis=1)
    made = EventSequences(
        [str(number) for number in range(BATCH)],
        np.arange(BATCH + 1) * length,
        times.ravel(),
        types[: times.size],
        list(task.scales.type_names),
        starts=times[:, 0],
        ends=times[:, -1],
    )
    return encode(task.scales, made).pad(np.arange(BATCH))


def _peak(options: Mapping[str, Any], length: int) -> int:
    """In a process of its own: after the same on something small."""
    torch.set_num_threads(1)
    give_back_at_once()
    work(options, WARM)()
    return peak_extra_bytes(work(options, length))
