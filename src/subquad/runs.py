"""Trained runs: builds the task and the model from the options in a run.json and loads the trained weights.

`subquad.load("runs/copy-linear-...")` is `load` in this module; the commands use the same function.
"""

import dataclasses
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from subquad.attention import Layers, Outside, joined, options_from
from subquad.attention.outside.trust import trusting
from subquad.capacity import require_memory
from subquad.checking import read, read_as, read_kind
from subquad.errors import SubquadError
from subquad.models import ModelOptions
from subquad.results import Run, holds_run, place_of
from subquad.tasks import TASKS, Task, TaskOptions
from subquad.tasks.base import Completion, Drawing, Outlook, Predictions, Stream, Vectors
from subquad.training import TrainOptions
from subquad.training.loop import BATCH, generator
from subquad.training.resuming import load_model
from subquad.types import AttentionOptions

MECHANISM = "mechanism"
"""Name of the field of a run.json that holds the options of the attention."""
INITIAL_STREAM = 100
"""Number of the random stream that initial weights are drawn from."""


class RunOptions(NamedTuple):
    """Options of a training run: task, attention, model and training."""

    task: TaskOptions
    attention: AttentionOptions
    model: ModelOptions
    training: TrainOptions

    def as_json(self) -> dict[str, Any]:
        """Returns the field ``options`` of a run.json."""
        parts: Mapping[str, Any] = self._asdict()
        return {MECHANISM if name == "attention" else name: dataclasses.asdict(part) for name, part in parts.items()}


class Built(NamedTuple):
    """A task with its data, and a model for it with initial weights."""

    task: Task[Any]
    model: nn.Module


class TrainedModel(nn.Module):
    """The model of a trained run, in eval mode. Calling it calls the module that it holds.

    Attributes:
        model: the trained module, such as a `Decoder`.
        task: the task that the model was trained on. Its data are read on first use.
        options: the options of the task, the attention, the model and the training.
        run: the run, with its folder and its rows.
    """

    def __init__(self, model: nn.Module, task: Task[Any], options: RunOptions, run: Run) -> None:
        super().__init__()
        self.model, self.task, self.options, self.run = model, task, options, run
        self.eval()

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Calls the trained module with the same arguments."""
        return self.model(*inputs, **named)

    def reply(self, sequence: str | Sequence[str]) -> str:
        """Returns the answer to a sequence, a text or a list of words, as `subquad predict` prints it."""
        return self.task.reply(self.model, self.task.words(sequence) if isinstance(sequence, str) else sequence)

    def complete(self, text: str, how: Completion | None = None) -> str:
        """Returns the continuation of a text, for a model of the task lm."""
        self.task.require_completion()
        return self.task.complete(self.model, text, how or Completion())

    def draw(self, how: Drawing | None = None, path: str | Path | None = None) -> bytes:
        """Returns a PNG file with finished or new pictures, for a model of the task images."""
        self.task.require_drawing()
        return self.task.draw(self.model, how or Drawing(), None if path is None else Path(path))

    def predict(self, path: str | Path) -> Predictions:
        """Returns the answers for all sequences in a file or folder, as a table."""
        return self.task.predict(self.model, Path(path))

    def embed(self, path: str | Path) -> Vectors:
        """Returns a vector for each sequence in a file or folder, such as for each client."""
        return self.task.embed(self.model, Path(path))

    def forecast(self, path: str | Path, outlook: Outlook | None = None) -> Predictions:
        """Returns forecasts of the next events of all sequences in a file or folder, by sampling, as a table."""
        return self.task.forecast(self.model, Path(path), outlook or Outlook())

    def follow(self, sequences: int = 1000, *, score: bool = False) -> Stream:
        """Returns a reader of event streams that remembers up to `sequences` sequences.

        With `score`, it says how unusual each event is instead of forecasting the next one.
        """
        return self.task.follow(self.model, sequences, score=score)


def read_options(values: Mapping[str, Any]) -> RunOptions:
    """Returns the options in the field ``options`` of a run.json of `subquad train`, checked."""
    place = f"{place_of(values)}: options"
    read_as(dict[str, Any], values, place)
    return RunOptions(
        read_kind(TASKS, values["task"], f"{place}: task"),
        options_from(values[MECHANISM], f"{place}: {MECHANISM}"),
        read(ModelOptions, values["model"], f"{place}: model"),
        read(TrainOptions, values["training"], f"{place}: training"),
    )


def check_options(options: RunOptions) -> None:
    """Raises `SubquadError` if a training is too large for this machine or its options do not fit together."""
    size = options.task.size(options.attention, options.model)
    processes = int(os.environ.get("WORLD_SIZE", 1))
    needed = options.training.memory_bytes(size, options.attention, options.model, processes)
    require_memory("this training", needed, "make the model, the batch, the sequences or the data smaller")
    options.task.check_model(options.attention, options.model)


def build(options: RunOptions, *, seed: int, learned: Mapping[str, Any] | None = None) -> Built:
    """Returns the task and a model with initial weights. If `learned` is given, the task's data are read on first use."""
    check_options(options)
    return build_model(options, options.task.prepare(learned), seed=seed)


def build_model(options: RunOptions, task: Task[Any], *, seed: int) -> Built:
    """Returns a model with initial weights for a task that is already prepared."""
    return Built(task, task.build(options.attention, options.model, generator(seed, INITIAL_STREAM)))


def fitted(attention: AttentionOptions, task: Task[Any]) -> AttentionOptions:
    """The attention for the sequences of a task, if it is one of others whose constructor asks for their length."""
    if not attention.traits.foreign:
        return attention
    longest = max(int(some.max()) for some in task.lengths().values())

    def fit(part: AttentionOptions) -> AttentionOptions:
        if not isinstance(part, Outside):
            return part
        if part.is_fixed:  # it takes sequences of one length only
            return part.for_length(task.model_length(task.batch(1, torch.Generator().manual_seed(0))))
        return part.for_length(longest + 1)

    return joined([fit(part) for part in (attention.mechanisms if isinstance(attention, Layers) else (attention,))])


def try_training(options: RunOptions, task: Task[Any], *, seed: int) -> None:
    """Computes the gradients of two batches on a model of its own, to see whether an attention of others can be trained."""
    with torch.random.fork_rng():
        model = build_model(options, task, seed=seed).model.train()
        for number in range(2):
            batch = task.batch(options.training.batch, generator(seed, BATCH, number))
            for losses in task.losses(model, batch):
                losses.total.backward()


def rebuild(about: Mapping[str, Any]) -> tuple[RunOptions, Built]:
    """Returns the options, the task and a model with initial weights, as described by the contents of a run.json."""
    options = read_options(about["options"])
    return options, build(options, seed=about["seed"], learned=about.get("learned"))


def load(folder: str | Path, *, trust: Sequence[str] = (), say: Callable[[str], None] = warnings.warn) -> TrainedModel:
    """Loads the model of a run of `subquad train` with its best weights, or with its newest if no best ones were kept.

    For a run of `subquad convert` whose original was such a run, the converted model is loaded, and for a race of `subquad
    choose` the model of the attention that it recommends.

    Args:
        folder: the folder of the run.
        trust: names of modules of others that may be imported, and whose code may run, if the run's attention is of one of
            them; a package stands for its modules too. The environment variable SUBQUAD_TRUST names such modules as well.
        say: called with a sentence about each checkpoint that cannot be read and is skipped.
    """
    run = _trained_run(Path(folder))
    with trusting((trust,) if isinstance(trust, str) else trust):
        options, built = rebuild(run.about)
    load_model(run.folder, built.model, say)
    return TrainedModel(built.model, built.task, options, run)


def _trained_run(folder: Path) -> Run:
    run = Run.open(folder)
    if run.about.get("kind") == "choose":
        if not holds_run(folder / "best"):
            raise SubquadError(f"{folder} has no model yet: finish it with subquad choose --resume {folder}")
        return Run.open(folder / "best", "train")
    if run.about.get("kind") != "convert":
        return Run.open(folder, "train")
    converted = folder / "model"
    if holds_run(converted):
        return Run.open(converted, "train")
    if not converted.exists():
        raise SubquadError(f"{folder} has no model yet: finish it with subquad convert --resume {folder}")
    raise SubquadError(f"{folder} holds a model of Hugging Face: load it with subquad.hub.load({str(converted)!r})")
