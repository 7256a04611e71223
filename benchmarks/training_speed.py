"""How many times as fast a training step is with native kernels as with PyTorch's. Run by `make bench-training-speed`.

Whole steps, as `subquad train` does them (forward, backward, optimizer), on one thread: the copy task with 64 and 512
symbols, and events with two layers of 4 heads of 16 on sequences of 64 events. Steps of `subquad convert`, which puts the
hybrid into a masked language model of 6 layers of 8 heads of 32: matching layers, and tuning, on 2048 tokens in texts of
512. Both kernels take turns on the same model, with a model beside them whose attention takes no time: no kernel can be
faster than that.
"""

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import torch
import tyro
from rich.console import Console
from rich.table import Column, Table
from torch import Tensor

import subquad as sq
from subquad import native
from subquad.attention import Mechanism
from subquad.conversion.options import ConversionOptions
from subquad.conversion.plan import whole_plan
from subquad.conversion.recipes import CONVERSION, Phase, Recipe
from subquad.conversion.steps import Batches, Steps
from subquad.conversion.students import Students
from subquad.conversion.trained import TrainedMasked
from subquad.experiments.events.costs import sequences
from subquad.measure.timing import interleave
from subquad.models import ModelOptions
from subquad.results import Run
from subquad.statistics import median_interval, ratio_interval
from subquad.tasks import Copy, Events, Mlm

Step = Callable[[], object]
"""Does one training step."""


@dataclass(frozen=True)
class Options:
    """Training steps with native kernels and with PyTorch's."""

    attentions: tuple[str, ...] = ("linear", "favor", "hybrid")
    seconds: float = 20.0
    """Time for each attention on each task."""


class Passing(torch.autograd.Function):
    """Returns the values, and hands their gradient to queries and keys too, so that all projections are trained."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return v.view_as(v)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return gradient, gradient, gradient


class NoAttention(Mechanism):
    """Stands for an attention that takes no time."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, *, keep: Tensor | None = None) -> Tensor:
        """Returns the values."""
        mixed: Tensor = Passing.apply(q, k, v)  # type: ignore[no-untyped-call]
        return mixed

    def causal(
        self, q: Tensor, k: Tensor, v: Tensor, state: None = None, *, keep: Tensor | None = None
    ) -> tuple[Tensor, None]:
        """Returns the values and no state."""
        return self(q, k, v), None


def step_of(task: Any, attention: str, size: ModelOptions, batch: Any, *, attends: bool = True) -> Step:
    """Returns a training step of a new model on one batch, whose attention takes no time unless it `attends`."""
    model = task.build(sq.MECHANISMS[attention](), size, torch.Generator().manual_seed(0))
    for layer in [] if attends else [module for module in model.modules() if isinstance(module, sq.MultiheadAttention)]:
        layer.attend = NoAttention(layer.attend.options, layer.heads, layer.head_dim)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step() -> None:
        counted = task.loss(model, batch)
        (counted.total / counted.number).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def conversion_steps(folder: Path) -> Iterator[tuple[str, Step]]:
    """Yields the names and the steps of both stages of a conversion to the hybrid. `folder` is for an empty run."""
    task, size = Mlm(length=512).prepare(), ModelOptions(layers=6, heads=8, head_dim=32, positions="rotary")
    model = task.build(sq.Softmax(), size, torch.Generator().manual_seed(0))
    original, options = TrainedMasked(Run.create(folder, "train", {}), task, model), ConversionOptions()
    batches, recipe = Batches(original, whole_plan(original, options), seed=0), Recipe(CONVERSION, sq.Hybrid())
    students = Students(original, seed=0)
    for name, phase in (("matching", Phase(recipe, "match", "distilled")), ("tuning", Phase(recipe, "tune", "tuned"))):
        steps = Steps(batches, students.fresh(recipe, ()), phase, options, "task", students.converted(recipe, ()))
        yield f"convert, {name}", partial(_take_next, steps, count())


def _take_next(steps: Steps, numbers: Iterator[int]) -> None:
    steps.take(next(numbers), share=1.0)


def with_kernels(step: Step, kernels: native.Kernels) -> Step:
    """Returns the step done by these kernels."""

    def run() -> None:
        with native.using(kernels):
            step()

    return run


def tasks() -> dict[str, tuple[Any, ModelOptions, Any]]:
    """Returns a task, the size of its model and a batch, by name."""
    found: dict[str, tuple[Any, ModelOptions, Any]] = {}
    for length in (64, 512):
        copy = Copy(length=length)
        batch = copy.batch(8, torch.Generator().manual_seed(0))
        found[f"copy, {length} symbols"] = copy, ModelOptions(layers=2, heads=4, head_dim=32), batch
    events = replace(Events(), data="", sequences=64).prepare()
    found["events, 64 events"] = events, ModelOptions(layers=2, heads=4, head_dim=16), sequences(events, 64)
    return found


def all_steps(attentions: tuple[str, ...], folder: Path) -> Iterator[tuple[str, str, dict[str, Step]]]:
    """Yields the name of each task, the name of the attention, and training steps by who computes attention."""
    for name, (task, size, batch) in tasks().items():
        for attention in attentions:
            steps = with_both(step_of(task, attention, size, batch))
            yield name, attention, {**steps, "nobody": step_of(task, attention, size, batch, attends=False)}
    if "hybrid" in attentions:
        for name, step in conversion_steps(folder):
            yield name, "hybrid", with_both(step)


def with_both(step: Step) -> dict[str, Step]:
    """Returns the step done by native kernels and by PyTorch's."""
    return {"native": with_kernels(step, "native"), "torch": with_kernels(step, "torch")}


def times_as_fast(times: Mapping[str, Sequence[float]], kind: str) -> str:
    """Says how many times as fast as with PyTorch's kernels a step is."""
    if kind not in times:
        return ""
    ratio = ratio_interval(times["torch"], times[kind])
    return f"{ratio.value:.2f} ({ratio.low:.2f} to {ratio.high:.2f})"


def main(options: Options) -> None:
    """Prints a table with a row for each task and attention."""
    torch.set_num_threads(1)
    names = ("native", "times as fast as PyTorch's", "if attention took no time")
    table = Table("task", "attention", *(Column(name, justify="right") for name in names))
    with tempfile.TemporaryDirectory() as folder:
        for name, attention, steps in all_steps(options.attentions, Path(folder) / "run"):
            times = interleave(steps, seconds=options.seconds)
            milliseconds = median_interval(times["native"]).value * 1e3
            ratios = (times_as_fast(times, kind) for kind in ("native", "nobody"))
            table.add_row(name, attention, f"{milliseconds:.1f} ms", *ratios)
    Console().print(table)


if __name__ == "__main__":
    main(tyro.cli(Options))
