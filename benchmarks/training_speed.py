"""How many times as fast a training step is with native kernels as with PyTorch's. Run by `make bench-training-speed`.

Whole steps, as `subquad train` does them (forward, backward, optimizer), on one thread: the copy task with 64 and 512
symbols, and events with two layers of 4 heads of 16 on sequences of 64 events. Both kernels take turns on the same model.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
import tyro
from rich.console import Console
from rich.table import Column, Table

import subquad as sq
from subquad import native
from subquad.experiments.events.costs import sequences
from subquad.measure.timing import interleave
from subquad.models import ModelOptions
from subquad.statistics import median_interval, ratio_interval
from subquad.tasks import Copy, Events


@dataclass(frozen=True)
class Options:
    """Training steps with native kernels and with PyTorch's."""

    attentions: tuple[str, ...] = ("linear", "favor", "hybrid")
    seconds: float = 20.0
    """Time for each attention on each task."""


def step_of(task: Any, attention: str, size: ModelOptions, batch: Any) -> Callable[[native.Kernels], Callable[[], object]]:
    """Returns a function from the name of the kernels to a training step with them."""
    model = task.build(sq.MECHANISMS[attention](), size, torch.Generator().manual_seed(0))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step() -> None:
        counted = task.loss(model, batch)
        (counted.total / counted.number).backward()
        optimizer.step()
        optimizer.zero_grad()

    def with_kernels(kernels: native.Kernels) -> Callable[[], object]:
        def run() -> None:
            with native.using(kernels):
                step()

        return run

    return with_kernels


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


def main(options: Options) -> None:
    """Prints a table with a row for each task and attention."""
    torch.set_num_threads(1)
    table = Table(
        "task", "attention", Column("native", justify="right"), Column("times as fast as PyTorch's", justify="right")
    )
    for name, (task, size, batch) in tasks().items():
        for attention in options.attentions:
            step = step_of(task, attention, size, batch)
            times = interleave({"native": step("native"), "torch": step("torch")}, seconds=options.seconds)
            ratio = ratio_interval(times["torch"], times["native"])
            milliseconds = median_interval(times["native"]).value * 1e3
            table.add_row(
                name, attention, f"{milliseconds:.1f} ms", f"{ratio.value:.2f} ({ratio.low:.2f} to {ratio.high:.2f})"
            )
    Console().print(table)


if __name__ == "__main__":
    main(tyro.cli(Options))
