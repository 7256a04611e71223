"""Races attentions in a user's own PyTorch model: ``subquad.choose(factory, data)``."""

import dataclasses
import multiprocessing
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from subquad.attention import MECHANISMS, Mechanism, Softmax
from subquad.choose.decision import Decision, Training, Wishes, decide
from subquad.choose.entries import enter
from subquad.choose.race import BEST, Field, Race, Terms, Watch, memory_share
from subquad.choose.records import Kept, describe
from subquad.choose.space import import_optuna
from subquad.choose.standings import read_standings
from subquad.choose.workers import Inline, Pool, Workers
from subquad.errors import SubquadError
from subquad.machine import cores
from subquad.models import ModelOptions, Size
from subquad.results import Run, describe_run, new_folder
from subquad.runs import RunOptions
from subquad.tasks.base import Counted, DataSize, Task, TaskOptions
from subquad.tasks.comparing import Best, Judged, Rival, judged_means
from subquad.training import TrainOptions
from subquad.training.resuming import load_model
from subquad.types import AttentionOptions
from subquad.words import names_by_layer

Factory = Callable[[AttentionOptions], nn.Module]
"""Builds a model with an attention, such as by ``subquad.MultiheadAttention(64, heads=4, attention=attention)``."""
Pairs = tuple[Tensor, Tensor]
"""Inputs and targets, with the sequences along the first axis of both."""
SPLITS = ("train", "development", "test")
IGNORED = -100
"""Target of positions that do not count."""


class PairBatch(NamedTuple):
    """Inputs and targets of some sequences."""

    inputs: Tensor
    targets: Tensor


@dataclass(frozen=True)
class OwnOptions(TaskOptions):
    """Options of a task that is a user's own model and data; everything else is in Python objects."""

    kind: str = field(default="own", init=False)

    def size(self, attention: AttentionOptions, model: ModelOptions) -> Size:
        return Size(0, 0)

    def prepare(self, learned: Mapping[str, Any] | None = None) -> Task[Any]:
        raise SubquadError("a race of your own model goes on in Python only: call subquad.choose again")


class OwnTask(Task[PairBatch]):
    """Batches, loss and metrics of a user's data: classes if targets are whole numbers, squared errors otherwise."""

    kind = "own"

    def __init__(self, factory: Factory, splits: Mapping[str, Pairs], *, is_causal: bool, tokens: int) -> None:
        self.factory, self.splits, self.causal, self.tokens = factory, splits, is_causal, tokens
        self.has_classes = not splits["train"][1].is_floating_point()

    @property
    def chosen_by(self) -> Best:
        return Best("accuracy", "high") if self.has_classes else Best("squared_error", "low")

    @property
    def is_causal(self) -> bool:
        return self.causal

    def build(self, attention: AttentionOptions, model: ModelOptions, generator: torch.Generator | None = None) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            if generator is not None:
                torch.manual_seed(int(torch.randint(2**31, (1,), generator=generator)))
            return self.factory(attention)

    def batch(self, size: int, generator: torch.Generator) -> PairBatch:
        inputs, targets = self.splits["train"]
        chosen = torch.randint(len(inputs), (size,), generator=generator)
        return PairBatch(inputs[chosen], targets[chosen])

    def loss(self, model: nn.Module, batch: PairBatch) -> Counted:
        outputs, targets = model(batch.inputs), batch.targets
        if not self.has_classes:
            return Counted(F.mse_loss(outputs.float(), targets.float(), reduction="sum"), self.count(batch))
        logits = outputs.float().flatten(0, -2)
        losses = F.cross_entropy(logits, targets.flatten().long(), ignore_index=IGNORED, reduction="sum")
        return Counted(losses, self.count(batch))

    def count(self, batch: PairBatch) -> int:
        return max(1, int((batch.targets != IGNORED).sum()) if self.has_classes else batch.targets.numel())

    def evaluate(self, model: nn.Module, generator: torch.Generator) -> dict[str, float]:
        totals, counts = self._scores(model, "development")
        return {self.chosen_by.metric: float(totals.sum() / max(1.0, counts.sum()))}

    def judge(self, model: nn.Module) -> Judged:
        return judged_means(*self.chosen_by, "share" if self.has_classes else "", *self._scores(model, "test"))

    def rivals(self) -> dict[str, Rival]:
        """The most frequent class, or the mean of the targets."""
        known, targets = self.splits["train"][1], self.splits["test"][1]
        if self.has_classes:
            usual = known[known != IGNORED].flatten().mode().values
            totals, counts = ((targets == usual) & (targets != IGNORED)).double(), (targets != IGNORED).double()
        else:
            totals, counts = (targets - known.float().mean(0)).double() ** 2, torch.ones_like(targets, dtype=torch.double)
        parts = (part.flatten(1).sum(1).numpy() if part.ndim > 1 else part.numpy() for part in (totals, counts))
        judged = judged_means(*self.chosen_by, "share" if self.has_classes else "", *parts)
        return {"most frequent class" if self.has_classes else "mean": Rival(judged, is_trivial=True)}

    def lengths(self) -> dict[str, np.ndarray]:
        return {name: np.full(len(inputs), inputs.shape[1]) for name, (inputs, _) in self.splits.items()}

    @torch.no_grad()
    def _scores(self, model: nn.Module, split: str) -> tuple[np.ndarray, np.ndarray]:
        """Right answers and answers, or squared errors and numbers, of each sequence."""
        model.eval()
        totals, counts = [], []
        inputs, targets = self.splits[split]
        for first in range(0, len(inputs), at_a_time := max(1, self.tokens // inputs.shape[1])):
            right = targets[first : first + at_a_time]
            outputs = model(inputs[first : first + at_a_time])
            kept = right != IGNORED if self.has_classes else torch.ones_like(right, dtype=torch.bool)
            each = (outputs.argmax(-1) == right) & kept if self.has_classes else (outputs.float() - right) ** 2
            totals.append(each.double().reshape(len(right), -1).sum(1))
            counts.append(kept.double().reshape(len(right), -1).sum(1))
        return torch.cat(totals).numpy(), torch.cat(counts).numpy()


class Choice(NamedTuple):
    """What a race of a user's model found."""

    decision: Decision
    attention: AttentionOptions | None
    """Options of the recommended attention, or of the best one where none is recommended."""
    model: nn.Module | None
    """The trained model with this attention."""
    folder: Path
    """Folder of the race, with its rows and its runs; `subquad report FOLDER` writes its page."""

    def __str__(self) -> str:
        return " ".join(self.decision.sentences)


def choose(
    factory: Factory,
    data: Pairs | Mapping[str, Pairs],
    *,
    mechanisms: Sequence[str] = (),
    budget: float = 600.0,
    causal: bool = False,
    batch: int = 32,
    learning_rate: float = 1e-3,
    steps: int | None = None,
    jobs: int | None = None,
    seed: int = 0,
    wishes: Wishes | None = None,
    out: str | Path | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> Choice:
    """Races attentions in a model of your own and returns the recommendation with a trained model.

    Args:
        factory: a function that builds the model with an attention, given as options.
        data: inputs and targets, as a pair of tensors, which is divided, or a mapping of train, development and test to
            pairs. The second axis of the inputs is the positions. Targets that are whole numbers are classes of sequences
            or of positions (-100 where none is asked), predicted by logits along the last axis; others are numbers.
        mechanisms: names of attentions, or several by layer such as ``linear*3,softmax``; the usual ones by default.
        budget: seconds for everything.
        causal: whether the model uses attention in its causal form.
        batch: number of sequences in a training step.
        learning_rate: the middle of the learning rates that are searched.
        steps: number of training steps in which your model usually learns. No run takes more, so that the race may end
            before its budget, and nothing is recommended after far fewer. None if you do not know: the whole budget is used.
        jobs: number of runs side by side, each on one thread; the number of cores by default.
        seed: seed of initial weights, batches and suggested settings.
        wishes: what is asked of the recommended attention.
        out: folder of the race, which must not exist yet; runs/choose-own-DATE-TIME by default.
        say: called with lines about the progress of the race.
    """
    import_optuna()
    task = OwnTask(factory, divided(data, seed), is_causal=causal, tokens=4 * batch * 256)
    training = TrainOptions(batch=batch, learning_rate=learning_rate, optimizer="adamw", schedule="cosine", warm_up=50)
    training = training if steps is None else replace(training, steps=steps)
    raced = _field(task, factory, mechanisms, training, has_usual_steps=steps is not None)
    jobs = jobs or cores()
    terms = Terms(float(budget), jobs, seed, memory_share(jobs))
    kept = Kept(raced, terms, wishes or Wishes())
    about = describe_run(describe(kept), ["choose", "own"], seed=seed)
    about["mechanisms"] = {name: dataclasses.asdict(each.traits) for name, each in kept.field.attentions.items()}
    run = Run.create(Path(out) if out is not None else new_folder("choose", "own"), "choose", about)
    with run.writing(), main_left_alone():
        race = Race(run, kept.field, kept.terms, task, _workers(task, kept.terms), own_words, Watch(tell=say))
        race.go()
    return _conclude(race, kept, task)


@contextmanager
def main_left_alone() -> Iterator[None]:
    """Processes that are started in the block do not run the user's script again, whether it is guarded or not.

    Python lets new processes import the main module, for objects that are defined there. The processes that measure costs
    need none of them: models are built in forks of this process.
    """
    main = sys.modules["__main__"]
    kept = {name: getattr(main, name) for name in ("__spec__", "__file__") if hasattr(main, name)}
    try:
        main.__spec__ = None
        if "__file__" in kept:
            del main.__file__
        yield
    finally:
        for name, value in kept.items():
            setattr(main, name, value)


def _field(
    task: OwnTask, factory: Factory, mechanisms: Sequence[str], training: TrainOptions, *, has_usual_steps: bool
) -> Field:
    """What is raced: the model with each attention that it takes."""
    model = _model_options(factory)
    names = [[_known(name) for name in names_by_layer(text)] for text in mechanisms]
    longest = max(int(some.max()) for some in task.lengths().values())
    attentions = enter(names, task, OwnOptions(), model, training, longest).attentions
    return Field(OwnOptions(), model, training, attentions, has_usual_steps=has_usual_steps)


def _conclude(race: Race, kept: Kept, task: OwnTask) -> Choice:
    standings = read_standings(race.ledger.rows)
    gives_up = {name: options.traits.gives_up for name, options in kept.field.attentions.items()}
    decision = decide(standings, kept.wishes, gives_up, Training(kept.field.usual_steps, kept.terms.budget, kept.terms.jobs))
    chosen = race.chosen(decision.chosen)
    if not chosen or race.keep_best(chosen) is None:
        return Choice(decision, None, None, race.run.folder)
    attention = race.ledger.finalists()[chosen].attention
    model = task.build(attention, kept.field.model, torch.Generator().manual_seed(0))
    load_model(race.run.folder / BEST, model, warnings.warn)
    return Choice(decision, attention, model.eval(), race.run.folder)


def own_words(options: RunOptions, seed: int, size: DataSize | None) -> list[str]:
    """What a run of a user's own model stores in place of a command."""
    return ["choose", "own", "--attention", options.attention.name, "--seed", str(seed)]


def _workers(task: OwnTask, terms: Terms) -> Workers:
    """Forked processes, which know Python objects that cannot be sent to others; this process where there is no fork."""
    if "fork" not in multiprocessing.get_all_start_methods():
        return Inline(lambda variant: task)
    return Pool(lambda variant: task, terms.jobs, terms.memory_bytes, is_forked=True)


def _known(name: str) -> str:
    if name not in MECHANISMS:
        raise SubquadError(f"there is no attention {name!r:.80}: choose from {', '.join(MECHANISMS)}")
    return name


def _model_options(factory: Factory) -> ModelOptions:
    """Heads, head dimension and number of attentions of a model, for measuring costs."""
    built = factory(Softmax())
    if not isinstance(built, nn.Module):
        raise SubquadError("the factory must return a torch.nn.Module that is built with the attention that it is given")
    attentions = [module for module in built.modules() if isinstance(module, Mechanism)]
    if not attentions:
        raise SubquadError(
            "the model of the factory has no attention of subquad: build it with the options that the factory is given, "
            "such as subquad.MultiheadAttention(64, heads=4, attention=attention)"
        )
    return ModelOptions(layers=len(attentions), heads=attentions[0].heads, head_dim=attentions[0].head_dim)


def divided(data: Pairs | Mapping[str, Pairs], seed: int) -> dict[str, Pairs]:
    """The three splits: those that are given, or eight, one and one tenths of the sequences at random."""
    if isinstance(data, Mapping):
        if set(data) != set(SPLITS):
            raise SubquadError(f"data must have the splits {', '.join(SPLITS)}, but has {', '.join(map(str, data))}")
        splits = {name: data[name] for name in SPLITS}
    else:
        inputs, targets = _checked(data, "data")
        order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(seed))
        tenth = max(1, len(inputs) // 10)
        parts = (order[2 * tenth :], order[:tenth], order[tenth : 2 * tenth])
        splits = {name: (inputs[part], targets[part]) for name, part in zip(SPLITS, parts, strict=True)}
    return dict(_checked_splits(splits))


def _checked_splits(splits: Mapping[str, Pairs]) -> Iterator[tuple[str, Pairs]]:
    for name, pair in splits.items():
        yield name, _checked(pair, f"the split {name}")


def _checked(pair: Any, what: str) -> Pairs:
    if not (isinstance(pair, Sequence) and len(pair) == 2 and all(isinstance(part, Tensor) for part in pair)):
        raise SubquadError(f"{what} must be a pair of tensors, inputs and targets")
    inputs, targets = pair
    if inputs.ndim < 2 or len(inputs) != len(targets) or not len(inputs):
        raise SubquadError(
            f"{what} must have the sequences along the first axis of inputs and targets, and positions along the second of "
            f"inputs, but has {tuple(inputs.shape)} and {tuple(targets.shape)}"
        )
    if any(part.is_floating_point() and not bool(torch.isfinite(part).all()) for part in pair):
        raise SubquadError(f"{what} has NaN or infinite numbers: leave them out or replace them")
    return inputs, targets
