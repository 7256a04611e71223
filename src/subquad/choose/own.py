"""Races attentions in a user's own PyTorch model: ``subquad.choose(factory, data)``."""

import dataclasses
import multiprocessing
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn

from subquad.attention import MECHANISMS, Mechanism, Softmax
from subquad.attention.outside.mechanism import imported_parts
from subquad.attention.outside.trust import module_of, trusting
from subquad.check.opening import open_all
from subquad.check.request import Request
from subquad.checking import excerpt
from subquad.choose.decision import Decision, Training, Wishes, decide
from subquad.choose.entries import Entries, enter, trying_by
from subquad.choose.own_task import Factory, OwnOptions, OwnTask, Pairs, divided
from subquad.choose.race import BEST, Field, Race, Terms, Watch, memory_share
from subquad.choose.records import Kept, describe
from subquad.choose.space import import_optuna
from subquad.choose.standings import read_standings
from subquad.choose.workers import PRELOAD, Inline, Pool, Workers
from subquad.errors import SubquadError
from subquad.machine import cores
from subquad.models import ModelOptions
from subquad.results import Run, describe_run, new_folder
from subquad.runs import RunOptions
from subquad.tasks.base import DataSize
from subquad.training import TrainOptions
from subquad.training.resuming import load_model
from subquad.types import AttentionOptions
from subquad.words import is_import_name, names_by_layer


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
        return in_python(" ".join(self.decision.sentences))


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
        mechanisms: names of attentions, several by layer such as ``linear*3,softmax``, or yours on q, k and v such as
            ``mypackage.attention:MyAttention``; the usual ones by default. What cannot be used is left out with a warning.
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
    jobs = jobs or cores()
    terms = Terms(float(budget), jobs, seed, memory_share(jobs))
    model = _model_options(factory)
    task.try_out()
    with main_left_alone():
        entries = _entries(task, mechanisms, model, training, terms)
    for name, why in entries.left_out.items():
        warnings.warn(f"{name} is left out: {why}", stacklevel=3)  # the caller of the module
    raced = Field(OwnOptions(), model, training, entries.attentions, has_usual_steps=steps is not None)
    kept = Kept(raced, terms, wishes or Wishes())
    about = describe_run(describe(kept), ["choose", "own"], seed=seed)
    about["mechanisms"] = {name: dataclasses.asdict(each.traits) for name, each in kept.field.attentions.items()}
    folder = Path(out) if out is not None else new_folder("choose", "own")
    run = Run.create(folder, "choose", about, entries.rows())
    with trusting(part.target for each in entries.attentions.values() for part in imported_parts(each)):
        with run.writing(), main_left_alone():
            race = Race(run, kept.field, kept.terms, task, _workers(task, kept.terms), own_words, Watch(tell=say))
            race.go()
        return _conclude(race, kept, task)


def in_python(sentences: str) -> str:
    """Sentences that name options of the command line, with arguments of `choose` in place of these."""
    seconds = {"m": 60, "h": 3600}
    said = sentences.replace("go on with --resume and", "start again with")
    said = re.sub(r"--budget (\d+)([mh])\b", lambda found: f"budget={int(found[1]) * seconds[found[2]]}", said)
    return re.sub(r"--([a-z-]+)", lambda found: found[1].replace("-", "_"), said)


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


def _entries(task: OwnTask, mechanisms: Sequence[str], model: ModelOptions, training: TrainOptions, terms: Terms) -> Entries:
    """What is raced: the attentions that the model takes. Those of others are called and trained elsewhere first."""
    texts = dict.fromkeys((mechanisms,) if isinstance(mechanisms, str) else mechanisms)
    layers = [[_known(name) for name in names_by_layer(text)] for text in texts]
    longest = max(int(some.max()) for some in task.lengths().values())
    entering = partial(enter, layers, task, OwnOptions(), model, training, longest)
    imported = [name for name in dict.fromkeys(chain(*layers)) if is_import_name(name)]
    if not imported:
        return entering()
    opened = open_all([Request(name, model.attention_heads, model.head_dim) for name in imported], PRELOAD)
    workers = _workers(task, terms)
    try:
        return entering(Entries(*opened), trying_by(workers, terms.budget, terms.seed))
    finally:
        workers.close()


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
    """The name of a mechanism or one to import. Raises `SubquadError` for any other."""
    if is_import_name(name) and module_of(name) == "__main__":
        raise SubquadError(
            f"{excerpt(name)} is in the script itself, which other processes cannot import: move it to a module"
        )
    if name not in MECHANISMS and not is_import_name(name):
        raise SubquadError(
            f"there is no attention {excerpt(name)}: choose from {', '.join(MECHANISMS)}, or write MODULE:NAME, as in "
            "mypackage.attention:MyAttention"
        )
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
