"""The task events: predict the time and the type of the next event from those before it."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from jaxtyping import Int
from numpy import ndarray
from torch import nn

from subquad.attention import require_causal
from subquad.checking import AtLeastTwo, Count, FileName, NonNegative, Seed, Whole, Words
from subquad.data.buckets import Buckets
from subquad.errors import SubquadError
from subquad.models import ModelOptions, Size, detached, with_stack
from subquad.results import Row
from subquad.tasks.base import Best, Counted, DataSize, Defaults, Outlook, Predictions, Task, TaskOptions
from subquad.tasks.comparing import Judged, Rival, judged_terms
from subquad.tasks.events.ahead import ahead_rows
from subquad.tasks.events.baselines import fit_baselines
from subquad.tasks.events.batches import Encoded, EventBatch, count_pieces, pieces
from subquad.tasks.events.faults import FAULTS, ON_PADDING, Fault, FaultyEventModel, reported, reported_rows
from subquad.tasks.events.files import Columns
from subquad.tasks.events.follow import Follower, read_on
from subquad.tasks.events.heads import HeadName
from subquad.tasks.events.judging import UNITS, baseline_rows, metric_rows, residual_rows, sequence_rows, truth_rows
from subquad.tasks.events.likelihood import Integral
from subquad.tasks.events.loading import EventSplits, load_sequences, load_splits
from subquad.tasks.events.metrics import Baselines, accuracy, rmse
from subquad.tasks.events.model import EventModel, HeadOptions, event_numbers
from subquad.tasks.events.outlook import look_ahead
from subquad.tasks.events.repairs import Backwards, Broken, Repairs, Ties
from subquad.tasks.events.scales import Scales, learn
from subquad.tasks.events.scoring import Scored, encode, score
from subquad.tasks.events.sequences import EventSequences
from subquad.tasks.events.simulator import SIMULATORS, Process
from subquad.tasks.events.summary import calibration_rows, confusion_rows, data_rows
from subquad.types import AttentionOptions

ATTENTION_DEFAULTS: dict[str, dict[str, Any]] = {"favor": {"features": 64}, "infinity": {"segment": 128, "basis": 64}}
EVENTS_A_STEP = 16_384
"""Largest number of events in a default batch, so that batches of long sequences are smaller."""
EVENTS_OF_ALL_STEPS = 2_000_000
"""Number of events that a training reads by default, in 100 to 500 steps, or more if three passes over the data need it."""
LONG = 1024
"""Mean number of events per sequence above which sequences count as long."""

SHARE = 5
"""Ratio of simulated training sequences to those for development, and to those for the test."""

SEQUENCE_BYTES = 500
"""Lower bound on the bytes of a simulated sequence: its name, and about thirty times and types."""


@dataclass(frozen=True)
class Events(TaskOptions):
    """Predict when the next event comes and of which type: on your own event sequences, or on simulated ones."""

    data: FileName = ""  # a folder, a file, or a Hugging Face dataset such as easytpp/taxi; default: simulated sequences
    sequence_column: Words = ""  # column of a table that names the sequence; default: "sequence" or "id"
    time_column: Words = ""  # column of a table with the time, as numbers or ISO dates; default: "time"
    type_column: Words = ""  # column of a table with the type of the event; default: "type"
    ties: Ties = "keep"  # events at the same time: keep, refuse, drop, or spread them over half of the smallest gap
    backwards: Backwards = "refuse"  # events earlier than the previous one: refuse or sort them
    broken: Broken = "refuse"  # events without a valid time or type: refuse or drop them
    fold: Count = 1  # fold to use, for data that come in several folds
    split_seed: Seed = 0  # seed for dividing data that come without splits into training, development and test
    process: Literal["hawkes", "self-correcting", "renewal"] = "hawkes"  # process that simulated sequences are drawn from
    sequences: Count = 1500  # number of simulated training sequences; a fifth as many are for development, and for the test
    data_seed: Seed = 0  # seed of the simulated sequences
    head: HeadName = "mixture"  # mixture: log-normal mixture for the gap; hawkes: intensity of each type
    inner: Count = 64  # number of hidden units of the head
    integral: Integral = "monte-carlo"  # how the hawkes head integrates in training; evaluations use the trapezoid rule
    integral_points: AtLeastTwo = 16  # points of the hawkes head's integral in training; evaluations use twice as many
    components: Count = 16  # number of components of the mixture head
    returns: bool = True  # mixture head: look for types that come again after a fixed time, such as a year, and expect them
    types_see_gap: bool = True  # let the type depend on the gap in the mixture head
    type_weight: NonNegative = 0.0  # weight of the loss of an additional head that predicts only the type; 0 for none
    time_weight: NonNegative = 0.0  # weight of the loss of an additional head that predicts only the gap; 0 for none
    chunk: Whole = 512  # number of events after which gradients are cut, to save memory on long sequences; 0 for never
    evaluation_tokens: Count = 16_384  # number of events per batch in evaluations, padding included
    faults: tuple[Fault, ...] = ()  # faults of the code of Zuo et al. 2020 to put back in, only to see what they do
    kind: str = field(default="events", init=False)

    default_notes: ClassVar[str] = (
        "The defaults of --batch, --steps, --learning-rate and --dropout depend on the data. With --data, those shown are "
        "for sequences of about 60 events. With longer ones, a batch has at most 16,384 events but at least 4 sequences, "
        "and all steps together read 2 million events, in at least 100 steps and three rounds over the data."
    )

    def check(self) -> None:
        if self.faults and (self.head != "hawkes" or self.chunk):
            raise SubquadError("--faults are those of an intensity on whole sequences: give --head hawkes and --chunk 0 too")
        if set(self.faults) & set(ON_PADDING) and not self.time_weight:
            raise SubquadError(f"the faults {' and '.join(ON_PADDING)} are of the head for the gap: give --time-weight too")

    @property
    def columns(self) -> Columns:
        """Names of the columns of a table."""
        return Columns(self.sequence_column, self.time_column, self.type_column)

    @property
    def repairs(self) -> Repairs:
        """What to do with events that are not valid."""
        return Repairs(self.ties, self.backwards, self.broken)

    @property
    def heads(self) -> HeadOptions:
        """Options of the heads on top of the stack."""
        distribution = (self.head, self.inner, self.integral, self.integral_points, self.components, self.types_see_gap)
        return HeadOptions(*distribution, self.type_weight, self.time_weight)

    def defaults(self, attention: str, data: DataSize | None = None) -> Defaults:
        """Returns the options of `subquad reproduce events` for simulated sequences, for real ones, and for long ones."""
        training: dict[str, Any] = {"batch": 32, "steps": 600, "learning_rate": 3e-3}
        dropout = 0.0
        if self.data:
            mean_length = 1.0 if data is None else data.positions / data.sequences
            # a power of two, so that processes can share it
            batch = 2 ** int(math.log2(min(64, max(4, EVENTS_A_STEP / mean_length))))
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
        """Lower bound on the size of the model and of simulated sequences. The data determine the number of types."""
        size = with_stack(event_numbers(types, model.model_dim, self.heads), attention, model)
        return size._replace(data_bytes=0 if self.data else self.sequences * SEQUENCE_BYTES)

    def check_model(self, attention: AttentionOptions, model: ModelOptions) -> None:
        require_causal(attention)

    def prepare(self, learned: Mapping[str, Any] | None = None) -> "EventsTask":
        """Returns the task. If `learned` is given, the data are read only on first use."""
        return EventsTask(self, None if learned is None else Scales.from_json(learned))


class EventsTask(Task[EventBatch]):
    """Batches, model, loss and metrics for event sequences."""

    kind = "events"
    best: ClassVar[Best | None] = Best("nll", "low")
    units: ClassVar[Mapping[str, str]] = UNITS
    takes: ClassVar[str] = "forecasts events: give sequences by --data, or events line by line with --follow"

    def __init__(self, options: Events, scales: Scales | None = None) -> None:
        self.options, self.kept = options, scales

    @cached_property
    def scales(self) -> Scales:
        """Type names and time scales of the training sequences, or those that a run stored."""
        if self.kept is not None:
            return self.kept
        is_mixture = self.options.head == "mixture"
        components = self.options.components if is_mixture else 0
        return learn(self.data.train, _sizes(self.data), components, returns=is_mixture and self.options.returns)

    @cached_property
    def process(self) -> Process | None:
        """The process that simulated sequences are drawn from; None for real data."""
        process: Process | None = None if self.options.data else SIMULATORS[self.options.process]()
        return process

    @cached_property
    def data(self) -> EventSplits:
        """The sequences of all splits. Raises `SubquadError` if they differ from those that the run was made with."""
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
        """Training sequences in the model's numbers and units."""
        return encode(self.scales, self.data.train)

    @cached_property
    def buckets(self) -> Buckets:
        """Training sequences grouped by length, without those of a single event, which have nothing to predict."""
        lengths = self.data.train.lengths
        predictable = np.flatnonzero(lengths > 1)
        return Buckets(predictable, lengths[predictable])

    @property
    def learned(self) -> dict[str, Any]:
        """The scales, which a run stores."""
        return self.scales.as_json()

    @property
    def data_size(self) -> DataSize | None:
        """Numbers of training sequences and of their events; None for simulated sequences, whose size is fixed."""
        train = self.data.train
        return DataSize(len(train.names), len(train.times)) if self.options.data else None

    @property
    def complaints(self) -> tuple[str, ...]:
        """Sentences about what was left out of the data, and about faults that were put back in."""
        faults = tuple(f"a fault is put back in, {name}: {FAULTS[name]}" for name in self.options.faults)
        return self.data.complaints + faults

    def build(
        self, attention: AttentionOptions, model: ModelOptions, generator: torch.Generator | None = None
    ) -> EventModel:
        self.options.check_model(attention, model)
        if self.options.faults:
            return FaultyEventModel(self.scales, attention, model, self.options.heads, self.options.faults, generator)
        return EventModel(self.scales, attention, model, self.options.heads, generator)

    def batch(self, size: int, generator: torch.Generator) -> EventBatch:
        """Training sequences of similar length."""
        return self.encoded.pad(self.buckets.draw(size, generator))

    def loss(self, model: nn.Module, batch: EventBatch) -> Counted:
        """Negative log-likelihood of each event but the first, in nats and in the data's unit of time."""
        parts = list(self.losses(model, batch))
        return Counted(torch.stack([part.total for part in parts]).sum(), sum(part.number for part in parts))

    def losses(self, model: nn.Module, batch: EventBatch) -> Iterator[Counted]:
        """Yields the loss of each chunk in turn. Values equal those of the whole; gradients stop at the start of a chunk."""
        state, unit = None, math.log(self.scales.mean_gap)
        for piece in pieces(batch, self.options.chunk):
            outcome = model(piece, state)
            state, number = detached(outcome.state), len(outcome.extra)
            event_losses = outcome.extra - outcome.terms.time - outcome.terms.type
            yield Counted(event_losses.sum() + number * unit, number)

    def pieces(self, batch: EventBatch) -> int:
        return count_pieces(batch, self.options.chunk)

    def count(self, batch: EventBatch) -> int:
        return int(batch.keep[:, 1:].sum())

    def evaluate(self, model: nn.Module, generator: torch.Generator) -> dict[str, float]:
        """Metrics on the development split. With faults, the likelihood is the reported one, which picks the weights."""
        watched = self.data.test if "test-picks" in self.options.faults else self.data.development
        scored = self.score(model, watched)
        correct = float(-(scored.time + scored.type).mean())
        return {
            "nll": reported(model, watched).nll if isinstance(model, FaultyEventModel) else correct,
            "accuracy": accuracy(scored.types, scored.likeliest),
            "rmse": rmse(scored.gaps, scored.expected),
        }

    def final(self, model: nn.Module) -> list[Row]:
        """Metrics on the test split with intervals, baselines, the true process if it is known, and rows about the data."""
        assert isinstance(model, EventModel)
        test, names = self.data.test, self.scales.type_names
        scored = self.score(model, test, residuals=True)
        heads, trivial = self.options.heads, Baselines.learn(self.data.train)
        rows = metric_rows(scored, trivial, type_head=heads.type_weight > 0, time_head=heads.time_weight > 0)
        fitted = fit_baselines(self.data.train, self.scales)
        if self.process is not None:
            rows += truth_rows(scored, self.process, test)
        if isinstance(model, FaultyEventModel):
            rows += reported_rows(model, test)
        else:
            rows += baseline_rows(scored, fitted.judge(test))
            rows += ahead_rows(model, test, fitted, self.options.evaluation_tokens)
        rows += data_rows(self.data, self.scales) + confusion_rows(scored, names) + calibration_rows(scored)
        return rows + residual_rows(scored) + sequence_rows(scored)

    @property
    def is_causal(self) -> bool:
        return True

    def lengths(self) -> dict[str, Int[ndarray, "sequences"]]:
        return {part: sequences.lengths for part, sequences in self.data._asdict().items()}

    def data_rows(self) -> list[Row]:
        return data_rows(self.data, self.scales)

    def judge(self, model: nn.Module) -> Judged:
        """Negative log-likelihood of the events of each test sequence."""
        scored = self.score(model, self.data.test)
        return judged_terms("nll", "low", "nats", -scored.time - scored.type, scored.lengths)

    def rivals(self) -> dict[str, Rival]:
        """Poisson, Markov, renewal and Hawkes processes, of which Poisson's knows nothing of a sequence."""
        lengths = (self.data.test.lengths - 1).clip(0)
        fitted = fit_baselines(self.data.train, self.scales).judge(self.data.test)
        return {
            name: Rival(judged_terms("nll", "low", "nats", -known.time - known.type, lengths), name == "poisson")
            for name, known in fitted.items()
        }

    def samples(self, model: nn.Module, generator: torch.Generator, count: int) -> list[dict[str, str]]:
        """The last event of some development sequences, forecast from those before it."""
        development, names = self.data.development, self.scales.type_names
        long = np.flatnonzero(development.lengths > 1)
        chosen = development.select(long[torch.randperm(len(long), generator=generator)[:count].numpy()])
        scored = self.score(model, chosen)
        lines = []
        for name, at in zip(chosen.names, np.cumsum(scored.lengths) - 1, strict=True):
            low, _, high = scored.quantiles[at]
            expected = f"expected after {scored.expected[at]:.4g} ({low:.3g} to {high:.3g})"
            count = chosen.lengths[chosen.names.index(name)] - 1
            question = f"{name}, {count} events: {expected}, came after {scored.gaps[at]:.4g}"
            lines.append({"given": question, "answered": names[scored.foreseen[at]], "right": names[scored.types[at]]})
        return lines

    def score(self, model: nn.Module, sequences: EventSequences, *, residuals: bool = False) -> Scored:
        """Likelihoods and predictions of the model for every event."""
        assert isinstance(model, EventModel)
        return score(model, sequences, tokens=self.options.evaluation_tokens, residuals=residuals)

    def predict(self, model: nn.Module, path: Path) -> Predictions:
        """Forecasts the next event of each sequence of a file."""
        return read_on(self._checked(model), self._load(path), self.options.evaluation_tokens)

    def _load(self, path: Path) -> EventSequences:
        """Sequences of a file to forecast from."""
        repairs = self.options.repairs.for_forecasts
        return load_sequences(path, self.scales.type_names, self.options.columns, repairs, fold=self.options.fold)

    def forecast(self, model: nn.Module, path: Path, outlook: Outlook) -> Predictions:
        """Forecasts the events after the last one of each sequence of a file, by sampling."""
        return look_ahead(self._checked(model), self._load(path), outlook, self.options.evaluation_tokens)

    def follow(self, model: nn.Module, sequences: int, *, score: bool = False) -> Follower:
        """Returns a reader of event streams that remembers up to `sequences` sequences."""
        return Follower(self._checked(model), sequences, score=score)

    def _checked(self, model: nn.Module) -> EventModel:
        """The model. Raises `SubquadError` for a run with faults, whose forecasts would be wrong."""
        if self.options.faults:
            names = ", ".join(self.options.faults)
            raise SubquadError(f"this run was trained with faults put back in ({names}): train one without --faults")
        assert isinstance(model, EventModel)
        return model


def _sizes(splits: EventSplits) -> tuple[int, int]:
    return sum(len(part.names) for part in splits), sum(len(part.times) for part in splits)
