"""The task events: predict the time and the type of the next event from those before it."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Int
from numpy import ndarray
from torch import nn

from subquad.data.buckets import Buckets
from subquad.errors import SubquadError
from subquad.models import ModelOptions, detached
from subquad.results import Row
from subquad.tasks.base import Best, Counted, DataSize, Outlook, Predictions, Task, Vectors
from subquad.tasks.columns.summary import lines as summary_lines
from subquad.tasks.comparing import Judged, Rival, judged_terms
from subquad.tasks.events.ahead import ahead_rows
from subquad.tasks.events.baselines import fit_baselines
from subquad.tasks.events.batches import Encoded, EventBatch, count_pieces, pieces
from subquad.tasks.events.columns import carried_fields, hide_some, learn_further
from subquad.tasks.events.faults import FAULTS, FaultyEventModel, reported, reported_rows
from subquad.tasks.events.files import Columns
from subquad.tasks.events.follow import Follower, read_on
from subquad.tasks.events.importance import importance_rows
from subquad.tasks.events.judging import UNITS, baseline_rows, metric_rows, residual_rows, sequence_rows, truth_rows
from subquad.tasks.events.loading import EventSplits, load_sequences, load_splits
from subquad.tasks.events.metrics import Baselines, accuracy, rmse
from subquad.tasks.events.model import EventModel
from subquad.tasks.events.options import EventOptions
from subquad.tasks.events.outlook import look_ahead
from subquad.tasks.events.scales import Scales, learn
from subquad.tasks.events.scoring import LEVELS, Scored, encode, event_vectors, score
from subquad.tasks.events.sequences import EventSequences
from subquad.tasks.events.simulator import SIMULATORS, Process
from subquad.tasks.events.summary import calibration_rows, confusion_rows, data_rows
from subquad.types import AttentionOptions

SHARE = 5
"""Ratio of simulated training sequences to those for development, and to those for the test."""


@dataclass(frozen=True)
class Events(EventOptions):
    """Predict when the next event comes and of which type: on your own event sequences, or on simulated ones."""

    kind: str = field(default="events", init=False)

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
        train, returns = self.data.train, is_mixture and self.options.returns
        further = learn_further(train, rare=self.options.rare, buckets=self.options.hash_buckets)
        return replace(learn(train, _sizes(self.data), components, returns=returns), **further)

    def columns(self, scales: Scales | None) -> Columns:
        """Names of the columns of a table, with times and further columns as they were when these scales were learned."""
        if scales is None:
            return self.options.columns
        decided = {column.name: column.column for column in scales.further_columns}
        form = self.options.time_form if scales.time_form == "auto" else scales.time_form
        return replace(self.options.columns, decided=decided, time_form=form)

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
            splits = load_splits(options.data, self.columns(self.kept), options.repairs, fold=fold, seed=seed)
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

    @property
    def description(self) -> list[str]:
        """What the further columns of the data hold, as lines."""
        return summary_lines(self.scales.summary)

    def build(
        self, attention: AttentionOptions, model: ModelOptions, generator: torch.Generator | None = None
    ) -> EventModel:
        self.options.check_model(attention, model)
        if self.options.faults:
            return FaultyEventModel(self.scales, attention, model, self.options.heads, self.options.faults, generator)
        return EventModel(self.scales, attention, model, self.options.heads, generator)

    def batch(self, size: int, generator: torch.Generator) -> EventBatch:
        """Training sequences of similar length, some of them with further columns that are hidden from an event on."""
        batch = self.encoded.pad(self.buckets.draw(size, generator))
        carried = carried_fields(self.scales.further_columns, self.scales.carried)
        return batch._replace(columns=hide_some(batch.columns, carried, generator))

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
        scored = self.score(model, watched, levels=())
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
            rows += importance_rows(model, test, self.options.evaluation_tokens)
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
        scored = self.score(model, self.data.test, levels=None)
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

    def score(
        self,
        model: nn.Module,
        sequences: EventSequences,
        *,
        residuals: bool = False,
        levels: Sequence[float] | None = LEVELS,
    ) -> Scored:
        """Likelihoods and predictions of the model for every event."""
        assert isinstance(model, EventModel)
        return score(model, sequences, tokens=self.options.evaluation_tokens, residuals=residuals, levels=levels)

    def predict(self, model: nn.Module, path: Path) -> Predictions:
        """Forecasts the next event of each sequence of a file."""
        return read_on(self._checked(model), self._load(path), self.options.evaluation_tokens)

    def _load(self, path: Path) -> EventSequences:
        """Sequences of a file to forecast from."""
        repairs = self.options.repairs.for_forecasts
        return load_sequences(path, self.scales.type_names, self.columns(self.scales), repairs, fold=self.options.fold)

    def embed(self, model: nn.Module, path: Path) -> Vectors:
        """The vector after each event of the sequences of a file."""
        sequences = self._load(path)
        vectors = event_vectors(self._checked(model), sequences, self.options.evaluation_tokens)
        names = [name for name, length in zip(sequences.names, sequences.lengths, strict=True) for _ in range(length)]
        places = [1 + at for length in sequences.lengths for at in range(length)]
        return Vectors("sequence", names, vectors, sequences.complaints, places)

    def forecast(self, model: nn.Module, path: Path, outlook: Outlook) -> Predictions:
        """Forecasts the events after the last one of each sequence of a file, by sampling."""
        return look_ahead(self._checked(model), self._load(path), outlook, self.options.evaluation_tokens)

    def follow(self, model: nn.Module, sequences: int, *, score: bool = False) -> Follower:
        """Returns a reader of event streams that remembers up to `sequences` sequences."""
        return Follower(self._checked(model), sequences, score=score, columns=self.columns(self.scales))

    def _checked(self, model: nn.Module) -> EventModel:
        """The model. Raises `SubquadError` for a run with faults, whose forecasts would be wrong."""
        if self.options.faults:
            names = ", ".join(self.options.faults)
            raise SubquadError(f"this run was trained with faults put back in ({names}): train one without --faults")
        assert isinstance(model, EventModel)
        return model


def _sizes(splits: EventSplits) -> tuple[int, int]:
    return sum(len(part.names) for part in splits), sum(len(part.times) for part in splits)
