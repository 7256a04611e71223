"""Time and memory of a training step on long sequences of events, and tokens a second of training by length."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
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
"""Duration of the time measurement of all attentions together."""
PEAKS = 9
"""Number of processes in which a peak is measured, as the system counts pages only to within a quarter of a megabyte."""
LENGTHS = (32, 128, 512, 1024, 4096)
"""Numbers of events of a sequence at which the speed of training is measured."""
TOKENS = 4096
"""Number of events in a step of these measurements, in as many sequences as it takes."""
SECONDS_A_LENGTH = 8.0
"""Duration of the measurement of all attentions together at one length."""
SHORT = 16
"""Smallest number of events assumed of a simulated sequence, so that enough sequences are drawn."""
WARM = 512
"""Number of events in the first step, after which the libraries have allocated their buffers."""


def measure(folder: Path, scale: str) -> None:
    """Measures the models trained on simulated sequences with sinusoidal times, unless all were measured before."""
    run = open_part(folder / "costs", "costs", f"subquad reproduce events --scale {scale}")
    options = {run.attention: run.run.about["options"] for run in trained(folder) if run.setting == Setting(SIMULATED)}
    done = {row["mechanism"] for row in run.rows() if row["metric"] == "times_the_peak"}  # the last metric of each
    if not options.keys() <= done:
        run.keep_first_rows(0)
        run.append(costs(options))


def measure_speeds(folder: Path, scale: str) -> None:
    """Measures tokens a second of training at each of `LENGTHS` that was not measured before."""
    run = open_part(folder / "speeds", "speeds", f"subquad reproduce events --scale {scale}")
    options = {run.attention: run.run.about["options"] for run in trained(folder) if run.setting == Setting(SIMULATED)}
    last = [(row["mechanism"], row["length"]) for row in run.rows() if row["metric"] == "times_as_fast"]
    for length in LENGTHS:
        if BASELINE in options and not {(name, length) for name in options} <= set(last):
            run.keep_rows(partial(_is_other, length))  # those of a measurement that did not come to its end
            run.append(list(speeds(options, length)))


def _is_other(length: int, row: Row) -> bool:
    return bool(row["length"] != length)


def speeds(options: Mapping[str, Mapping[str, Any]], length: int) -> Iterator[Row]:
    """Yields rows with the tokens a second of a training step on one thread, attentions in turns, and times softmax's."""
    batch = max(1, TOKENS // length)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        steps = {name: work(trained_options, length, batch) for name, trained_options in options.items()}
        taken = interleave(steps, seconds=SECONDS_A_LENGTH, at_most=30)
    finally:
        torch.set_num_threads(threads)
    for name in options:
        rates = [batch * length / seconds for seconds in taken[name]]
        about = {"mechanism": name, "length": length, "batch": batch}
        yield {"metric": "tokens_per_second", **median_interval(rates)._asdict(), **about}
        yield {"metric": "times_as_fast", **ratio_interval(taken[BASELINE], taken[name])._asdict(), **about}


def costs(options: Mapping[str, Mapping[str, Any]]) -> Iterator[Row]:
    """Yields rows with the seconds of a training step and its peak memory in fresh processes, attentions in turns.

    One thread is used, as in all trainings of the experiment.
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
            peaks[name].append(float(in_fresh_process(_peak, trained_options, LONG)))
    for name in options:
        intervals = {
            "seconds": median_interval(taken[name]),
            "times_as_fast": ratio_interval(taken[BASELINE], taken[name]),
            "peak_bytes": median_interval(peaks[name]),
            "times_the_peak": ratio_interval(peaks[name], peaks[BASELINE]),
        }
        for metric, interval in intervals.items():
            yield {"mechanism": name, "length": LONG, "metric": metric, **interval._asdict()}


def work(options: Mapping[str, Any], length: int, batch_size: int = BATCH) -> Callable[[], object]:
    """A training step on a batch of simulated sequences with `length` events each."""
    trained_options = read_options(options)
    task = replace(trained_options.task, data="", sequences=2).prepare()  # type: ignore[call-arg]
    model = task.build(trained_options.attention, trained_options.model, torch.Generator().manual_seed(0))
    batch = sequences(task, length, batch_size)

    def step() -> None:
        model.train()
        model.zero_grad()
        task.loss(model, batch).total.backward()

    return step


def sequences(task: Any, length: int, count: int = BATCH) -> Any:
    """A batch of sequences of `length` events, made of the gaps and types of shorter ones."""
    drawn = task.process.draw(count * length // SHORT, 0)
    gaps, types = np.diff(drawn.times, prepend=0.0)[~drawn.first], drawn.types[~drawn.first]
    assert len(gaps) >= count * length, "too few simulated events"
    times = np.cumsum(gaps[: count * length].reshape(count, length), axis=1)
    made = EventSequences(
        [str(number) for number in range(count)],
        np.arange(count + 1) * length,
        times.ravel(),
        types[: times.size],
        list(task.scales.type_names),
        starts=times[:, 0],
        ends=times[:, -1],
    )
    return encode(task.scales, made).pad(np.arange(count))


def _peak(options: Mapping[str, Any], length: int) -> int:
    """Peak memory of a training step, after a step on short sequences. Runs in a fresh process."""
    torch.set_num_threads(1)
    give_back_at_once()
    work(options, WARM)()
    return peak_extra_bytes(work(options, length))
