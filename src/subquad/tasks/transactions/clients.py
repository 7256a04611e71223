"""The clients of a run: their histories, splits, features, encoded batches, and the linear model of their aggregates."""

from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy import ndarray

from subquad.errors import SubquadError
from subquad.results import Run
from subquad.tasks.targets.linear import LinearModel, fit_linear, left_out, scale
from subquad.tasks.transactions.aggregates import Aggregates
from subquad.tasks.transactions.batches import EventBatch, pad
from subquad.tasks.transactions.collecting import Reading
from subquad.tasks.transactions.features import Features, learn
from subquad.tasks.transactions.histories import Histories
from subquad.tasks.transactions.loading import load_histories
from subquad.tasks.transactions.options import ClientOptions
from subquad.tasks.transactions.splits import Splits, split, split_unlabelled
from subquad.tasks.transactions.summary import summarise

OWN_FEATURES = ("labels", "clients", "events", "target", "time_form", "amount_form")
"""Features that a run learns from its own data even if it starts with those of another run."""


class Data(NamedTuple):
    """All clients, and the indices of those in each split."""

    histories: Histories
    splits: Splits


class Clients:
    """Reads clients on first use, and encodes them as a model needs them."""

    def __init__(self, options: ClientOptions, kept: Features | None) -> None:
        """`kept` are the features that a run stored; None for a new run."""
        self.options, self.kept = options, kept

    @property
    def is_labelled(self) -> bool:
        """Whether labels are learned."""
        return self.options.objective == "label"

    @cached_property
    def data(self) -> Data:
        """All histories and splits. Raises `SubquadError` if the data differ from those that the run was made with."""
        options, kept = self.options, self.kept
        how = self.reading() if kept is not None else self._started_reading() if options.start else options.how()
        if options.data:
            loaded = load_histories(Path(options.data), options.columns, labelled=self.is_labelled, how=how)
        else:
            loaded = options.simulator.draw()
        histories = loaded.latest(options.latest)
        if kept is not None and (kept.clients, kept.events) != (len(histories.clients), len(histories.times)):
            raise SubquadError(
                f"the data in {options.data} are not those that the run was made with: it had {kept.clients:,} clients and "
                f"{kept.events:,} events, they have {len(histories.clients):,} and {len(histories.times):,}; start a new run"
            )
        if not self.is_labelled:
            histories = histories._replace(label_names=histories.label_names or ("", ""))
            return Data(histories, split_unlabelled(histories.clients, options.split_seed))
        splits = split(
            histories.clients,
            histories.labels,
            folds=options.folds,
            fold=options.fold,
            seed=options.split_seed,
            share=options.labelled_share,
            by_class=histories.target_kind == "classes",
        )
        return Data(histories, splits)

    @cached_property
    def _learned(self) -> tuple[Features, Float[ndarray, "train o"] | None]:
        """The features of a new run, and outputs of linear models of training clients that these were not fitted to."""
        options, (histories, splits) = self.options, self.data
        training = histories.select(splits.train)
        features = learn(training, options.amounts, histories, rare=options.rare, buckets=options.hash_buckets)
        if options.start:
            own = {name: getattr(features, name) for name in OWN_FEATURES}
            features = replace(self.started, **own, wide={})
            features.require_fields(histories)
        features = replace(features, summary=summarise(histories, features))
        if not self.is_labelled or options.wide == "off":
            return features, None
        aggregates = Aggregates.learn(features, training, len(histories.clients))
        model, outside = fit_linear(aggregates.table(training), training.targets, features.predicted)
        if options.wide == "auto" and not self._beats_trivial(features, aggregates, model, outside):
            return features, None
        return replace(features, wide={**aggregates.as_json(), "linear": model.as_json()}), outside

    def _beats_trivial(self, features: Features, aggregates: Aggregates, model: LinearModel, outside: ndarray) -> bool:
        """Whether the linear model predicts development clients, and training clients left out, better than the trivial."""
        histories, splits = self.data
        target, development = features.predicted, histories.select(splits.development)
        truth = np.concatenate([histories.targets[splits.train], development.targets])
        outputs = np.concatenate([outside, model.logits(aggregates.table(development))])
        trivial = np.repeat(target.trivial(histories.targets[splits.train]), len(truth), axis=0)
        name, good = target.best
        ours, theirs = (target.metrics(truth, each, 0)[name][0] for each in (target.predict(outputs), trivial))
        return bool(ours < theirs if good == "low" else ours > theirs)

    @cached_property
    def started(self) -> Features:
        """The features of the run that the model starts with."""
        about = Run.open(Path(self.options.start), "train").about
        task = about["options"]["task"]
        if task["kind"] != "transactions" or task.get("objective", "label") == "label":
            raise SubquadError(
                f"{self.options.start} did not learn from histories without labels: --start takes a run of subquad train "
                "transactions with --objective both, next or contrastive"
            )
        return Features.from_json(about["learned"])

    def _started_reading(self) -> Reading:
        options, columns = self.options, (*self.started.further_columns, *self.started.static_columns)
        for name in filter(None, (options.label, *options.labels, options.observed_column)):
            if any(column.name == name for column in columns):
                raise SubquadError(
                    f"{options.start} learned from the column {name!r:.60}, which is the label now: train it again with the "
                    "options that name the label, so that the column is left out"
                )
        return replace(_as_read(options.how(), self.started), order=None)

    def reading(self) -> Reading:
        """How data are read in the same way as those that the run was trained on."""
        return _as_read(self.options.how(), self.features)

    @cached_property
    def features(self) -> Features:
        """Vocabularies, scales and the linear model of the training clients, or those that a run stored."""
        return self._learned[0] if self.kept is None else self.kept

    @cached_property
    def aggregates(self) -> Aggregates | None:
        """What the linear model counts; None without one."""
        wide = self.features.wide
        return Aggregates.from_json(self.features, wide) if wide else None

    @cached_property
    def linear(self) -> LinearModel | None:
        """The linear model of aggregates; None without one."""
        wide = self.features.wide
        return LinearModel.from_json(wide["linear"]) if wide else None

    @cached_property
    def _training_offsets(self) -> Float[ndarray, "clients o"]:
        """For each training client, outputs of a linear model that was fitted without it; 0 for all other clients."""
        histories, splits = self.data
        offsets = np.zeros((len(histories.clients), self.features.predicted.outputs))
        if self.linear is None or self.aggregates is None:
            return offsets
        if self.kept is None and self._learned[1] is not None:
            offsets[splits.train] = self._learned[1]
            return offsets
        training = histories.select(splits.train)
        scaled = scale(self.aggregates.table(training), np.array(self.linear.mean), np.array(self.linear.scale))
        x = torch.from_numpy(scaled)
        y = torch.from_numpy(training.targets).to(x.dtype)
        offsets[splits.train] = left_out(x, y, self.features.predicted, self.linear.penalty).numpy()
        return offsets

    def training_batch(self, chosen: Int[ndarray, "b"]) -> EventBatch:
        """A batch of training clients, with outputs of linear models that were fitted without them."""
        histories = self.data.histories
        return self._batch(histories.select(chosen), self._training_offsets[chosen])

    def batch(self, histories: Histories, offsets: Float[ndarray, "clients o"] | None = None) -> EventBatch:
        """All clients of some histories as a batch. `offsets` are those of `offsets`, computed here if not given."""
        return self._batch(histories, self.offsets(histories) if offsets is None else offsets)

    def offsets(self, histories: Histories) -> Float[ndarray, "clients o"]:
        """Outputs of the linear model of aggregates; 0 without one."""
        if self.linear is None or self.aggregates is None:
            return np.zeros((len(histories.clients), self.features.predicted.outputs))
        return self.linear.logits(self.aggregates.table(histories))

    def _batch(self, histories: Histories, offsets: Float[ndarray, "b o"]) -> EventBatch:
        events, keep = pad(self.features.encode(histories), histories.offsets)
        static = (self.aggregates or Aggregates(self.features, ())).static(histories)
        numbers = (histories.targets, static, offsets)
        return EventBatch(events, keep, *(torch.from_numpy(np.asarray(values)).float() for values in numbers))


def _as_read(how: Reading, features: Features) -> Reading:
    """Reads columns as they were decided when these features were learned."""
    static = {column.name: column.column for column in features.static_columns}
    further = {column.name: column.column for column in features.further_columns}
    is_old = not (features.time_form or features.further or features.static or features.summary)
    return replace(
        how,
        decided=static | further,
        decided_clients=static,
        static=frozenset(static.keys() - further.keys()),
        time_form=features.time_form or ("" if is_old else how.time_form),
        order=features.labels or None,
        amount_form=features.amount_form,
    )
