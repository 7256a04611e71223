"""What comes next in sequences that go on: of a file's sequences, or of a stream, event by event."""

import math
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from subquad.checking import excerpt
from subquad.data.tables import LARGEST_NUMBER, listed
from subquad.data.times import attempt, iso
from subquad.errors import SubquadError
from subquad.models import DecoderState
from subquad.tasks.base import Predictions
from subquad.tasks.events.batches import EventBatch
from subquad.tasks.events.forecasts import Forecast
from subquad.tasks.events.model import EventModel
from subquad.tasks.events.scales import Scales
from subquad.tasks.events.scoring import encode, foresee, states
from subquad.tasks.events.sequences import EventSequences

TOGETHER = 256
"""Events that wait at most to be read together."""

ONLY = "stream"
"""The name of a sequence that has none."""


@dataclass
class Known:
    """All that is kept of a sequence: of constant size, if the state of its mechanism is."""

    first: float  # time
    last: float
    events: int = 0
    waiting: list[tuple[float, float, int]] = field(default_factory=list)  # events that the model has not read yet
    state: DecoderState | None = None
    hidden: Tensor | None = None  # 1 w, after the last event read


def columns(scales: Scales) -> list[str]:
    """Columns of a forecast: times in the data's unit, the ends of a 90% interval, and each type's probability."""
    return ["sequence", "events", "last_time", "expected_time", "low", "high", *(f"p_{name}" for name in scales.type_names)]


def line(name: str, events: int, last: float, forecast: Forecast, at: int, scales: Scales) -> list[str]:
    """One sequence's forecast, as it is printed."""
    gaps = torch.stack([forecast.gap[at], forecast.quantiles[at, 0], forecast.quantiles[at, -1]]).double()
    times = (last + gaps * scales.mean_gap).tolist()
    numbers = [f"{time:.15g}" for time in (last, *times)]
    return [name, str(events), *numbers, *(f"{share:.6g}" for share in forecast.types[at].tolist())]


@torch.no_grad()
def read_on(model: EventModel, sequences: EventSequences, tokens: int) -> Predictions:
    """The next event of each sequence that has one, in their order."""
    scales, found = model.scales, {}
    for at, last, hidden in states(model, encode(scales, sequences), tokens):
        if last.any():
            forecast = foresee(model, hidden[torch.from_numpy(last)])
            for number, event in enumerate(at[last]):
                found[int(event)] = (forecast, number)
    lines = []
    for name, end, length in zip(sequences.names, sequences.offsets[1:], sequences.lengths, strict=True):
        if length:
            forecast, number = found[int(end) - 1]
            lines.append(line(name, int(length), float(sequences.times[end - 1]), forecast, number, scales))
    return Predictions(columns(scales), lines, sequences.complaints)


class Follower:
    """Takes events one at a time: constant time and memory for each, with a mechanism whose state does not grow.

    The model reads them when a forecast is asked for, or when a few hundred wait: together is faster than one by one.

    Of sequences that go on side by side so many are remembered; beyond that the one that has been silent for longest is
    forgotten, and begins anew if it goes on.
    """

    def __init__(self, model: EventModel, sequences: int) -> None:
        model.eval()
        self.model, self.scales, self.limit = model, model.scales, sequences
        self.device = next(model.parameters()).device
        self.types = {name: number for number, name in enumerate(self.scales.type_names)}
        self.known: OrderedDict[str, Known] = OrderedDict()
        self.forgotten = 0

    @property
    def columns(self) -> list[str]:
        """Names of the columns of a forecast."""
        return columns(self.scales)

    def take(self, words: Sequence[str]) -> str | None:
        """An event as `time type` or `sequence time type`; gives the sequence's name. A name alone ends it."""
        if len(words) == 1:
            if self.known.pop(words[0], None) is None:
                raise SubquadError(
                    f"there is no sequence {excerpt(words[0])} to end: an event is `time type` or `sequence time type`"
                )
            return None
        if len(words) > 3:
            raise SubquadError(f"an event is `time type` or `name time type`, but there are {len(words):,} words")
        name, written, kind = (ONLY, *words) if len(words) == 2 else words
        if kind not in self.types:
            raise SubquadError(f"the model knows no type {excerpt(kind)}: it was trained on {listed(self.types, 12)}")
        self._add(name, _time(written), self.types[kind])
        return name

    def forecast(self, name: str) -> list[str]:
        """What follows the sequence's last event."""
        known = self.known[name]
        with torch.inference_mode():
            self._read(known)
            assert known.hidden is not None
            return line(name, known.events, known.last, foresee(self.model, known.hidden), 0, self.scales)

    def _add(self, name: str, time: float, kind: int) -> None:
        known = self.known.get(name) or Known(time, time)
        if time < known.last:
            raise SubquadError(
                f"sequence {excerpt(name)} goes back in time, from {known.last:.15g} to {time:.15g}: sort its events"
            )
        unit = self.scales.mean_gap
        if not (time - known.first) / unit <= LARGEST_NUMBER:
            raise SubquadError(
                f"the time {time:.15g} is too far from {known.first:.15g}, at which sequence {excerpt(name)} began"
            )
        known.waiting.append(((time - known.first) / unit, (time - known.last) / unit if known.events else -1.0, kind))
        known.last, known.events = time, known.events + 1
        self.known[name] = known
        self.known.move_to_end(name)
        if len(known.waiting) == TOGETHER:
            with torch.inference_mode():
                self._read(known)
        if len(self.known) > self.limit:
            self.known.popitem(last=False)
            self.forgotten += 1

    def _read(self, known: Known) -> None:
        """Lets the model read what waits: one event by a step, several together."""
        if not known.waiting:
            return
        times, gaps, types = zip(*known.waiting, strict=True)
        events = EventBatch(
            torch.tensor([times], dtype=torch.float64, device=self.device),
            torch.tensor([gaps], dtype=torch.float32, device=self.device),
            torch.tensor([types], device=self.device),
            torch.ones(1, len(times), dtype=torch.bool, device=self.device),
        )
        read = self.model.step if len(times) == 1 else self.model.encode
        hidden, known.state = read(events, known.state)
        known.hidden = hidden[:, -1].float()
        known.waiting.clear()


def _time(written: str) -> float:
    """A number, or an ISO date in seconds since 1970."""
    for read in (float, iso):
        if math.isfinite(time := attempt(read, written)):
            return time
    raise SubquadError(f"{excerpt(written)} is no time: write a finite number or an ISO date such as 2024-05-01T12:00")
