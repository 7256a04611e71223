"""Forecasts of the next event: for the sequences of a file, or for streams, event by event."""

import math
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from subquad.checking import excerpt
from subquad.data.tables import LARGEST_NUMBER, listed
from subquad.data.times import WRITTEN, as_text, attempt, iso
from subquad.errors import SubquadError
from subquad.models import DecoderState
from subquad.tasks.base import Predictions
from subquad.tasks.events.batches import EventBatch
from subquad.tasks.events.columns import carried_fields, encode_cells, hidden_after
from subquad.tasks.events.files import KNOWN, Columns
from subquad.tasks.events.forecasts import Forecast
from subquad.tasks.events.model import EventModel
from subquad.tasks.events.returns import due_after
from subquad.tasks.events.scales import Scales
from subquad.tasks.events.scoring import encode, foresee, states
from subquad.tasks.events.sequences import EventSequences

TOGETHER = 256
"""Largest number of events that wait to be read together."""

ONLY = "stream"
"""Name of a sequence in a stream whose events name none."""


@dataclass
class Known:
    """What is remembered of a sequence. Its size is constant if the state of the attention is."""

    first: float  # time of the first event
    last: float  # time of the last event
    events: int = 0
    waiting: list[tuple[float, float, int]] = field(default_factory=list)  # events not yet read: time, gap, type
    columns: list[Tensor] = field(default_factory=list)  # 1 f, fields of further columns of the events not yet read
    following: Tensor | None = None  # 1 f, fields of an event after the last whose columns are not known
    state: DecoderState | None = None
    hidden: Tensor | None = None  # 1 w, the model's vector after the last event that it has read
    lasts: Tensor | None = None  # 1 c, time of the last event that can return
    type: int = 0  # type of the last event
    scores: list[str] = field(default_factory=list)  # how unusual the last event is, as printed


def columns(scales: Scales) -> list[str]:
    """Names of the columns of a forecast: times in the data's unit, a 90% interval, and each type's probability."""
    return ["sequence", "events", "last_time", "expected_time", "low", "high", *(f"p_{name}" for name in scales.type_names)]


def line(name: str, events: int, last: float, forecast: Forecast, at: int, scales: Scales) -> list[str]:
    """The forecast for one sequence, as printed."""
    gaps = torch.stack([forecast.gap[at], forecast.quantiles[at, 0], forecast.quantiles[at, -1]]).double()
    times = (last + gaps * scales.mean_gap).tolist()
    numbers = [as_text(time, is_date=scales.dated) for time in (last, *times)]
    return [name, str(events), *numbers, *(f"{share:.6g}" for share in forecast.types[at].tolist())]


@torch.no_grad()
def read_on(model: EventModel, sequences: EventSequences, tokens: int) -> Predictions:
    """Forecasts the next event of each sequence that has events, in the order of the sequences."""
    scales, forecast_of = model.scales, {}
    for at, last, hidden in states(model, encode(scales, sequences), tokens):
        if last.any():
            forecast = foresee(model, hidden[torch.from_numpy(last)])
            for number, event in enumerate(at[last]):
                forecast_of[int(event)] = (forecast, number)
    lines = []
    for name, end, length in zip(sequences.names, sequences.offsets[1:], sequences.lengths, strict=True):
        if length:
            forecast, number = forecast_of[int(end) - 1]
            lines.append(line(name, int(length), float(sequences.times[end - 1]), forecast, number, scales))
    return Predictions(columns(scales), lines, sequences.complaints)


def score_columns() -> list[str]:
    """Names of the columns of scores: how unusual an event is, given those before it.

    `score` is the negative log-likelihood of its time and type in nats, the sum of the next two columns. `shorter` is the
    probability of a shorter gap, near 0 for an event that came too early and near 1 for one that came too late, and
    `type_probability` that of its type at this time. They are empty for the first event of a sequence.
    """
    return ["sequence", "events", "time", "type", "score", "score_time", "score_type", "shorter", "type_probability"]


class Follower:
    """Reads events one at a time. With an attention whose state does not grow, each takes constant time and memory.

    The model reads events when a forecast is asked for or when `TOGETHER` of them wait, as reading them together is faster.

    At most `sequences` sequences are remembered. Beyond that, the least recently active one is forgotten, and starts anew if
    more events of it come.
    """

    def __init__(self, model: EventModel, sequences: int, *, score: bool = False, columns: Columns | None = None) -> None:
        """`score` says how unusual each event is instead of forecasting the next one; `columns` names those of records."""
        model.eval()
        self.named = columns or Columns()
        self.scores = score
        self.model, self.scales, self.limit = model, model.scales, sequences
        self.device = next(model.parameters()).device
        self.types = {name: number for number, name in enumerate(self.scales.type_names)}
        self.further = {column.name: column for column in self.scales.further_columns}
        self.carried = carried_fields(self.scales.further_columns, self.scales.carried)
        self.known: OrderedDict[str, Known] = OrderedDict()
        self.forgotten = 0

    @property
    def columns(self) -> list[str]:
        """Names of the columns of a forecast or of a score."""
        return score_columns() if self.scores else columns(self.scales)

    def take(self, words: Sequence[str]) -> str | None:
        """Reads `time type` or `sequence time type` and returns the name of the sequence. A name alone ends a sequence.

        Values of further columns may follow as `column=value`. Without any, those of the event are unknown.
        """
        cells = dict(word.split("=", 1) for word in words if word.partition("=")[0] in self.further and "=" in word)
        words = [word for word in words if word.partition("=")[0] not in self.further or "=" not in word]
        if len(words) == 1:
            if self.known.pop(words[0], None) is None:
                raise SubquadError(
                    f"there is no sequence {excerpt(words[0])} to end: an event is `time type` or `sequence time type`"
                )
            return None
        if len(words) > 3:
            also = f", then COLUMN=VALUE of {listed(self.further)}" if self.further else ""
            raise SubquadError(f"an event is `time type` or `name time type`{also}, but there are {len(words):,} words")
        name, written, kind = (ONLY, *words) if len(words) == 2 else words
        return self._take(name, written, kind, cells)

    def take_record(self, record: Mapping[str, str]) -> str | None:
        """Reads an event whose parts are named as the columns of a table, and returns the name of the sequence."""
        parts: dict[str, str] = {}
        for role, usual in KNOWN.items():
            named = getattr(self.named, role)
            name = named or next((known for known in usual if known in record), usual[0])
            if name not in record and role != "sequence":
                raise SubquadError(f"the event has no {excerpt(name)} but {listed(record)}")
            parts[role] = record.get(name, ONLY)
        cells = {name: cell for name, cell in record.items() if name in self.further}
        return self._take(parts["sequence"], parts["time"], parts["type"], cells)

    def _take(self, name: str, written: str, kind: str, cells: Mapping[str, str]) -> str:
        if kind not in self.types:
            raise SubquadError(f"the model knows no type {excerpt(kind)}: it was trained on {listed(self.types, 12)}")
        time = _time(written, self.named.time_form)
        fields = None
        if cells:
            fields = encode_cells(self.scales.further_columns, cells, time if self.scales.dated else None)
        self._add(name, time, self.types[kind], fields)
        return name

    def forecast(self, name: str) -> list[str]:
        """The forecast of the event after the sequence's last, or how unusual its last event is."""
        known = self.known[name]
        if self.scores:
            kind = self.scales.type_names[known.type]
            return [name, str(known.events), self._as_text(known.last), kind, *known.scores]
        with torch.inference_mode():
            self._read(known)
            assert known.hidden is not None
            return line(name, known.events, known.last, foresee(self.model, known.hidden), 0, self.scales)

    def _as_text(self, time: float) -> str:
        return as_text(time, is_date=self.scales.dated)

    def _add(self, name: str, time: float, kind: int, fields: Tensor | None = None) -> None:
        known = self.known.get(name) or Known(time, time)
        if time < known.last:
            raise SubquadError(
                f"sequence {excerpt(name)} goes back in time, from {self._as_text(known.last)} to "
                f"{self._as_text(time)}: sort its events"
            )
        unit = self.scales.mean_gap
        if not (time - known.first) / unit <= LARGEST_NUMBER:
            raise SubquadError(
                f"the time {self._as_text(time)} is too far from {self._as_text(known.first)}, at which sequence "
                f"{excerpt(name)} began"
            )
        if self.scores:
            known.scores = self._score(known, (time - known.last) / unit, kind)
        known.waiting.append(((time - known.first) / unit, (time - known.last) / unit if known.events else -1.0, kind))
        if fields is None:
            empty = torch.zeros(1, len(self.carried))
            fields = hidden_after(empty, self.carried) if known.following is None else known.following
        known.columns.append(fields)
        known.following = hidden_after(fields, self.carried)
        known.last, known.events, known.type = time, known.events + 1, kind
        self.known[name] = known
        self.known.move_to_end(name)
        if len(known.waiting) == TOGETHER:
            with torch.inference_mode():
                self._read(known)
        if len(self.known) > self.limit:
            self.known.popitem(last=False)
            self.forgotten += 1

    @torch.inference_mode()
    def _score(self, known: Known, gap: float, kind: int) -> list[str]:
        """How unusual the next event is, before the model reads it; empty for the first event of a sequence."""
        if not known.events:
            return [""] * (len(score_columns()) - 4)
        self._read(known)
        assert known.hidden is not None
        gaps = torch.tensor([gap], dtype=known.hidden.dtype, device=self.device)
        terms = self.model.head.terms(known.hidden, gaps, torch.tensor([kind], device=self.device))
        passed = self.model.head.compensators(known.hidden, gaps)
        time, kind_score = float(math.log(self.scales.mean_gap) - terms.time), float(-terms.type)
        shorter = float(-torch.expm1(-passed))
        return [f"{value:.6g}" for value in (time + kind_score, time, kind_score, shorter, math.exp(-kind_score))]

    def _read(self, known: Known) -> None:
        """Lets the model read the waiting events: a single one by a step, several together."""
        if not known.waiting:
            return
        times, gaps, types = zip(*known.waiting, strict=True)
        at, kinds = torch.tensor([times], dtype=torch.float64), torch.tensor([types])
        due, known.lasts = due_after(self.scales.return_parts, at, kinds, known.lasts)
        keep, columns = torch.ones(1, len(times), dtype=torch.bool), torch.cat(known.columns)[None]
        parts = (at, torch.tensor([gaps], dtype=torch.float32), kinds, keep, due, columns)
        events = EventBatch(*(part.to(self.device) for part in parts))
        read = self.model.step if len(times) == 1 else self.model.encode
        hidden, known.state = read(events, known.state)
        known.hidden = hidden[:, -1].float()
        known.waiting.clear()
        known.columns.clear()


def _time(written: str, form: str) -> float:
    """The time in a word: in the format of the training data, a number, or an ISO date in seconds since 1970."""
    for read in (*([] if form == "auto" else [WRITTEN[form]]), float, iso):
        if math.isfinite(time := attempt(read, written)):
            return time
    raise SubquadError(f"{excerpt(written)} is no time: write a finite number or an ISO date such as 2024-05-01T12:00")
