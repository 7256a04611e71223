"""Which attentions enter a race of `subquad choose`: mechanisms, and those that are imported by name."""

from collections.abc import Sequence
from functools import partial
from itertools import chain
from typing import Any

from subquad.attention import MECHANISMS
from subquad.choose.entries import Entries, enter, trying_by
from subquad.choose.race import memory_share
from subquad.choose.workers import PRELOAD, Pool
from subquad.cli.outside import Calling, open_outside
from subquad.cli.values import parse_attention
from subquad.runs import RunOptions
from subquad.tasks import Task, TaskOptions
from subquad.words import is_import_name


def enter_race(
    texts: Sequence[str], options: RunOptions, task: Task[Any], calling: Calling, *, seconds: float, seed: int
) -> Entries:
    """The attentions of a race. Those that are imported by name are called and trained for a moment in other processes.

    Args:
        texts: names of attentions, or several by layer, as the user wrote them; none for the usual ones.
        options: the options of the trainings, whose attention is not used.
        task: the task with its data.
        calling: how attentions that are imported by name are called.
        seconds: the time for the race.
        seed: seed of initial weights and batches.
    """
    layers = [parse_attention(text, MECHANISMS, "--mechanisms", takes_imported=True) for text in dict.fromkeys(texts)]
    longest = max(int(some.max()) for some in task.lengths().values())
    entering = partial(enter, layers, task, options.task, options.model, options.training, longest)
    imported = [name for name in dict.fromkeys(chain(*layers)) if is_import_name(name)]
    if not imported:
        return entering()
    sizes = {"heads": options.model.attention_heads, "head_dim": options.model.head_dim}
    opened = open_outside(imported, calling, **sizes, preload=PRELOAD)
    workers = Pool(partial(prepare_again, options.task, task.learned), 1, memory_share(1))
    try:
        return entering(Entries(*opened), trying_by(workers, seconds, seed))
    finally:
        workers.close()


def prepare_again(options: TaskOptions, learned: Any, variant: TaskOptions | None) -> Task[Any]:
    """Returns the task in a process of its own, with what was learned from the data, or the task of other options."""
    return options.prepare(learned) if variant is None else variant.prepare()
