"""What the experiment on events measures beside quality: time and memory of a training step on a long sequence."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch

from subquad.attention import options_from
from subquad.experiments.events import BASELINE, LONG
from subquad.measure.memory import in_fresh_process, peak_extra_bytes
from subquad.measure.timing import interleave, median, ratio
from subquad.models import ModelOptions
from subquad.results import Row
from subquad.tasks.events import Events

SECONDS = 20.0
SHORT = 16


def costs(options: Mapping[str, Mapping[str, Any]]) -> Iterator[Row]:
    """Seconds of a training step, candidates in turns, and the peak of its memory, each in a process of its own."""
    taken = interleave({name: work(given, LONG) for name, given in options.items()}, seconds=SECONDS, at_most=30)
    for name, times in taken.items():
        for metric, found in (("seconds", median(times)), ("times_as_fast", ratio(taken[BASELINE], times))):
            yield {
                **{"mechanism": name, "length": LONG, "metric": metric},
                **{"value": found.middle, "low": found.low, "high": found.high},
            }
    for name, given in options.items():
        peak = in_fresh_process(_peak, given, LONG)
        yield {"mechanism": name, "length": LONG, "metric": "peak_bytes", "value": peak, "unit": "B"}


def work(options: Mapping[str, Any], length: int) -> Callable[[], object]:
    """A training step on one simulated sequence of so many events."""
    given = dict(options["task"], data="", sequences=2)
    given.pop("kind")
    task = Events(**given).prepare()
    drawn = task.process.draw(length // SHORT, 0)  # type: ignore[union-attr]
    gaps = np.diff(drawn.times, prepend=0.0)[~drawn.first][:length]
    assert len(gaps) == length, "too few simulated events"
    model = task.build(
        options_from(options["mechanism"]), ModelOptions(**options["model"]), torch.Generator().manual_seed(0)
    )
    batch = one_sequence(task, np.cumsum(gaps), drawn.types[~drawn.first][:length])

    def step() -> None:
        model.train()
        model.zero_grad()
        task.loss(model, batch).total.backward()

    return step


def one_sequence(task: Any, times: Any, types: Any) -> Any:
    """As a batch."""
    from subquad.tasks.events.scoring import encode
    from subquad.tasks.events.sequences import EventSequences

    ends = {"starts": times[:1], "ends": times[-1:]}
    whole = EventSequences(["long"], np.array([0, len(times)]), times, types, list(task.scales.type_names), **ends)
    return encode(task.scales, whole).pad(np.array([0]))


def _peak(options: Mapping[str, Any], length: int) -> int:
    """In a process of its own: after the same on something tiny."""
    work(options, SHORT)()
    return peak_extra_bytes(work(options, length))
