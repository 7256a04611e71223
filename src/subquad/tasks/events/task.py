"""The task of the events: when the next one comes and of which type, from those before it."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import nn

from subquad.attention import require_causal
from subquad.checking import AtLeastTwo, Count, FileName, NonNegative, Seed, Whole, Words
from subquad.data.buckets import Buckets
from subquad.errors import SubquadError
from subquad.models import ModelOptions, Size, detached, with_stack
from subquad.results import Row
from subquad.tasks.base import Best, Counted, DataSize, Defaults, Predictions, Task, TaskOptions
from subquad.tasks.events.batches import Encoded, EventBatch, count_pieces, pieces
from subquad.tasks.events.files import Columns
from subquad.tasks.events.follow import Follower, read_on
from subquad.tasks.events.heads import HeadName
from subquad.tasks.events.judging import UNITS, metric_rows, residual_rows, truth_rows
from subquad.tasks.events.likelihood import Integral
from subquad.tasks.events.loading import EventSplits, load_sequences, load_splits
from subquad.tasks.events.metrics import Baselines, accuracy, rmse
from subquad.tasks.events.model import EventModel, HeadOptions, event_numbers
from subquad.tasks.events.repairs import Backwards, Broken, Repairs, Ties
from subquad.tasks.events.scales import Scales, learn
from subquad.tasks.events.scoring import Scored, encode, score
from subquad.tasks.events.sequences import EventSequences
from subquad.tasks.events.simulator import SIMULATORS, Process
from subquad.types import AttentionOptions

ATTENTION_DEFAULTS: dict[str, dict[str, Any]] = {"favor": {"features": 64}, "infinity": {"segment": 128, "basis": 64}}
EVENTS_A_STEP = 16_384
"""Events of a batch at most, by which batches of long sequences are smaller unless another size is given."""
EVENTS_OF_ALL_STEPS = 2_000_000
"""Events that a training reads, unless a number of steps is given, if that is 100 to 500 steps or three rounds."""
LONG = 1024
"""Mean number of events of a sequence from which on sequences count as long."""

SHARE = 5
"""Ratio of simulated sequences to train on to those for development, and to those for the test."""

SEQUENCE_BYTES = 500
"""Memory of a simulated sequence, at least: its name, and the times and types of some thirty events or more."""


@dataclass(frozen=True)
class Events(TaskOptions):
    """When the next event comes and of which type: on simulated sequences, or on your own."""

    data: FileName = ""  # a folder, a file, or a dataset such as easytpp/taxi; default: simulated sequences
    sequence_column: Words = ""  # column of a table with the sequence; default: "sequence" or "id"
    time_column: Words = ""  # column with the time, as numbers or ISO dates; default: "time"
    type_column: Words = ""  # column with the type; default: "type"
    ties: Ties = "keep"  # events at the same time: keep, refuse, drop, or spread over half of the smallest gap
    backwards: Backwards = "refuse"  # events that stand after a later one: refuse or sort
    broken: Broken = "refuse"  # events without a time or a type: refuse or drop
    fold: Count = 1  # which fold to use, for data that come in several
    split_seed: Seed = 0  # seed of the splits, for data that come without
    process: Literal["hawkes", "self-correcting", "renewal"] = "hawkes"  # the process that simulated sequences come from
    sequences: Count = 1500  # simulated sequences to train on; a fifth as many are for development and for the test each
    data_seed: Seed = 0  # seed of simulated sequences
    head: HeadName = "mixture"  # mixture: of log-normal gaps, in closed form; hawkes: an intensity for each type
    inner: Count = 64  # hidden units of the head
    integral: Integral = "monte-carlo"  # how the hawkes head integrates in training; elsewhere the trapezoid rule is used
    integral_points: AtLeastTwo = 16  # points of the integral over a gap in training; there are twice as many elsewhere
    components: Count = 16  # number of components of the mixture head
    types_see_gap: bool = True  # whether the type depends on the gap in the mixture head
    type_weight: NonNegative = 0.0  # weight in the loss of a head that only predicts the type; 0 for no such head
    time_weight: NonNegative = 0.0  # weight in the loss of a head that only predicts the gap; 0 for no such head
    chunk: Whole = 512  # events after which gradients are cut, to save memory with long sequences; 0 for never
    evaluation_tokens: Count = 16_384  # events, with padding, that are evaluated at a time
    kind: str = field(default="events", init=False)

    default_notes: ClassVar[str] = (
        "The defaults of --batch, --steps, --learning-rate and --dropout depend on the data. With --data, those shown are "
        "for sequences of about 60 events. With longer ones, a batch has at most 16,384 events but at least 4 sequences, "
        "and all steps together read 2 million events, in at least 100 steps and three rounds over the data."
    )

    @property
    def columns(self) -> Columns:
        """What a table's columns are called."""
        return Columns(self.sequence_column, self.time_column, self.type_column)

    @property
    def repairs(self) -> Repairs:
        """What to do about events that are not as they should be."""
        return Repairs(self.ties, self.backwards, self.broken)

    @property
    def heads(self) -> HeadOptions:
        """What is read from the stack."""
        given = (self.head, self.inner, self.integral, self.integral_points, self.components, self.types_see_gap)
        return HeadOptions(*given, self.type_weight, self.time_weight)

    def defaults(self, attention: str, data: DataSize | None = None) -> Defaults:
        """Those of `subquad reproduce events`: for simulated sequences, for real ones, and for long ones."""
        training: dict[str, Any] = {"batch": 32, "steps": 600, "learning_rate": 3e-3}
        dropout = 0.0
        if self.data:
            mean_length = 1.0 if data is None else data.positions / data.sequences
            batch = 2 ** int(math.log2(min(64, max(4, EVENTS_A_STEP / mean_length))))  # so that processes can share it
            steps = min(500, max(100, EVENTS_OF_ALL_STEPS // (batch * mean_length)))
            rounds = 0 if data is None else 3 * data.sequences // batch
            is_long = mean_length > LONG
            dropout = 0.0 if is_long else 0.1
            training = {
                "batch": batch,
                "steps": int(max(steps, min(10_000, rounds))),
                "learning_rate": 3e-3 if is_long else 4e-3,
            }
        training |= {"optimizer": "adamw", "schedule": "cosine", "warm_up": 50}
        training |= {"evaluate_every": 100, "checkpoint_every": 100}
        model = {"layers": 2, "heads": 4, "head_dim": 16, "dropout": dropout}
        return Defaults(model, training, ATTENTION_DEFAULTS.get(attention, {}))

    def size(self, attention: AttentionOptions, model: ModelOptions, types: int = 1) -> Size:
        """What its model and simulated sequences need, at least. The number of types is known once the data are."""
        size = with_stack(event_numbers(types, model.model_dim, self.heads), attention, model)
        return size._replace(data_bytes=0 if self.data else self.sequences * SEQUENCE_BYTES)

    def check_model(self, attention: AttentionOptions, model: ModelOptions) -> None:
        require_causal(attention)

    def prepare(self, learned: Mapping[str, Any] | None = None) -> "EventsTask":
        """The task itself. With what was learned before, the data are read only when they are needed."""
        return EventsTask(self, None if learned is None else Scales.from_json(learned))


class EventsTask(Task[EventBatch]):
    """Batches, model, loss and metrics over loaded sequences."""

    kind = "events"
    best: ClassVar[Best | None] = Best("nll", "low")
    units: ClassVar[Mapping[str, str]] = UNITS
    takes: ClassVar[str] = "forecasts events: give sequences by --data, or events line by line with --follow"

    def __init__(self, options: Events, scales: Scales | None = None) -> None:
        self.options, self.kept = options, scales

    @cached_property
    def scales(self) -> Scales:
        """Names of types, and units of time: of the training sequences only."""
        return learn(self.data.train, _sizes(self.data)) if self.kept is None else self.kept

    @cached_property
    def process(self) -> Process | None:
        """What simulated sequences come from."""
        process: Process | None = None if self.options.data else SIMULATORS[self.options.process]()
        return process

    @cached_property
    def data(self) -> EventSplits:
        """All sequences."""
        options = self.options
        if self.process is None:
            seed, fold = options.split_seed, options.fold
            splits = load_splits(options.data, options.columns, options.repairs, fold=fold, seed=seed)
        else:
            few = max(2, options.sequences // SHARE)
            seeds = np.random.SeedSequence(options.data_seed).generate_state(3).tolist()
            drawn = zip((options.sequences, few, few), seeds, strict=True)
            splits = EventSplits(*(self.process.draw(count, seed) for count, seed in drawn))
        if self.kept is not None and (had := (self.kept.sequences, self.kept.events)) != (has := _sizes(splits)):
            raise SubquadError(
                f"the data in {options.data} are not those that the run was made with: it had {had[0]:,} sequences and "
                f"{had[1]:,} events, they have {has[0]:,} and {has[1]:,}; start a new run"
            )
        return splits

    @cached_property
    def encoded(self) -> Encoded:
        """Training sequences as the model reads them."""
        return encode(self.scales, self.data.train)

    @cached_property
    def buckets(self) -> Buckets:
        """Training sequences by length. One without a second event has nothing to predict."""
        lengths = self.data.train.lengths
        which = np.flatnonzero(lengths > 1)
        return Buckets(which, lengths[which])

    @property
    def learned(self) -> dict[str, Any]:
        """What a run must keep for its model to read new sequences."""
        return self.scales.as_json()

    @property
    def data_size(self) -> DataSize | None:
        """The training sequences and their events. Simulated ones have the same size whatever they are."""
        train = self.data.train
        return DataSize(len(train.names), len(train.times)) if self.options.data else None

    @property
    def complaints(self) -> tuple[str, ...]:
        """What was left out of the data."""
        return self.data.complaints

    def build(
        self, attention: AttentionOptions, model: ModelOptions, generator: torch.Generator | None = None
    ) -> EventModel:
        self.options.check_model(attention, model)
        return EventModel(self.scales, attention, model, self.options.heads, generator)

    def batch(self, size: int, generator: torch.Generator) -> EventBatch:
        """Training sequences of about the same length."""
        return self.encoded.pad(self.buckets.draw(size, generator))

    def loss(self, model: nn.Module, batch: EventBatch) -> Counted:
        """The negative log-likelihood of each event but the first, in nats and in the data's unit of time."""
        found = list(self.losses(model, batch))
        return Counted(torch.stack([one.total for one in found]).sum(), sum(one.number for one in found))

    def losses(self, model: nn.Module, batch: EventBatch) -> Iterator[Counted]:
        """The loss of one chunk after the other. Values are those of the whole; gradients stop where a chunk begins."""
        state, unit = None, math.log(self.scales.mean_gap)
        for piece in pieces(batch, self.options.chunk):
            outcome = model(piece, state)
            state, number = detached(outcome.state), len(outcome.extra)
            each = outcome.extra - outcome.terms.time - outcome.terms.type
            yield Counted(each.sum() + number * unit, number)

    def pieces(self, batch: EventBatch) -> int:
        return count_pieces(batch, self.options.chunk)

    def count(self, batch: EventBatch) -> int:
        return int(batch.keep[:, 1:].sum())

    def evaluate(self, model: nn.Module, generator: torch.Generator) -> dict[str, float]:
        """On the development split."""
        found = self.score(model, self.data.development)
        return {
            "nll": float(-(found.time + found.type).mean()),
            "accuracy": accuracy(found.types, found.likeliest),
            "rmse": rmse(found.gaps, found.expected),
        }

    def final(self, model: nn.Module) -> list[Row]:
        """On the test split, with intervals, beside what knows nothing of the history and, where it is known, the truth."""
        test = self.data.test
        found = self.score(model, test, residuals=True)
        heads, baselines = self.options.heads, Baselines.learn(self.data.train)
        rows = metric_rows(found, baselines, type_head=heads.type_weight > 0, time_head=heads.time_weight > 0)
        if self.process is not None:
            rows += truth_rows(found, self.process, test)
        return rows + residual_rows(found)

    def samples(self, model: nn.Module, generator: torch.Generator, count: int) -> list[dict[str, str]]:
        """The last event of some development sequences, forecast from those before it."""
        development, names = self.data.development, self.scales.type_names
        long = np.flatnonzero(development.lengths > 1)
        some = development.select(long[torch.randperm(len(long), generator=generator)[:count].numpy()])
        found = self.score(model, some)
        lines = []
        for name, at in zip(some.names, np.cumsum(found.lengths) - 1, strict=True):
            low, _, high = found.quantiles[at]
            expected = f"expected after {found.expected[at]:.4g} ({low:.3g} to {high:.3g})"
            given = f"{name}, {some.lengths[some.names.index(name)] - 1} events: {expected}, came after {found.gaps[at]:.4g}"
            lines.append({"given": given, "answered": names[found.foreseen[at]], "right": names[found.types[at]]})
        return lines

    def score(self, model: nn.Module, sequences: EventSequences, *, residuals: bool = False) -> Scored:
        """The model's word on every event."""
        assert isinstance(model, EventModel)
        return score(model, sequences, tokens=self.options.evaluation_tokens, residuals=residuals)

    def predict(self, model: nn.Module, path: Path) -> Predictions:
        """The next event of each sequence of a file."""
        assert isinstance(model, EventModel)
        sequences = load_sequences(path, self.scales.type_names, self.options.columns, self.options.repairs)
        return read_on(model, sequences, self.options.evaluation_tokens)

    def follow(self, model: nn.Module, sequences: int) -> Follower:
        """What takes events as they come, of so many sequences at once."""
        assert isinstance(model, EventModel)
        return Follower(model, sequences)


def _sizes(splits: EventSplits) -> tuple[int, int]:
    return sum(len(part.names) for part in splits), sum(len(part.times) for part in splits)
