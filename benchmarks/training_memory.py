"""What accumulation, recomputing and bfloat16 save in training, and what they cost. Run by `make bench-training`.

A decoder of 4 layers and width 512 is trained on the copy task for a few steps, each variant in a fresh process: the peak of
its memory above what it was before the first step, and the time of a step after the first, in turns with the others.
"""

import tempfile
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from time import perf_counter

import torch
import tyro
from rich.console import Console
from rich.table import Column, Table

from subquad.attention import MECHANISMS
from subquad.measure.memory import in_fresh_process, peak_extra_bytes
from subquad.models import ModelOptions
from subquad.results import Run
from subquad.tasks import Copy
from subquad.training import TrainOptions
from subquad.training.loop import Progress, train

PLAIN = TrainOptions(steps=3, batch=8, evaluate_every=10**6, checkpoint_every=10**6)
VARIANTS = {
    "as it is": PLAIN,
    "--accumulate 4": replace(PLAIN, accumulate=4),
    "--accumulate 8": replace(PLAIN, accumulate=8),
    "--recompute": replace(PLAIN, recompute=True),
    "--precision bfloat16": replace(PLAIN, precision="bfloat16"),
    "--recompute --precision bfloat16": replace(PLAIN, recompute=True, precision="bfloat16"),
    "--accumulate 8 --recompute": replace(PLAIN, accumulate=8, recompute=True),
}


@dataclass(frozen=True)
class Options:
    """Training's memory, with and without what saves it."""

    attention: str = "linear"
    length: int = 2048
    rounds: int = 3
    threads: int = 2


def measure(options: TrainOptions, attention: str, length: int, threads: int) -> tuple[int, float]:
    """Peak bytes of a few steps, and the seconds of one after the first."""
    torch.set_num_threads(threads)
    task = Copy(length=length // 2 - 1, held_out=1)  # a decoder reads the symbols twice, and two separators
    times: list[float] = []

    def run(task: Copy, steps: int) -> None:
        model = task.build(MECHANISMS[attention](), ModelOptions(), torch.Generator().manual_seed(0))
        with tempfile.TemporaryDirectory() as folder:
            kept = Run.create(Path(folder) / "run", "train", {})
            train(task, model, replace(options, steps=steps), kept, seed=0, watch=lambda done: _note(done, times))

    run(Copy(length=7, held_out=1), 1)
    times.clear()
    peak = peak_extra_bytes(lambda: run(task, options.steps))
    return peak, median(after - before for before, after in pairwise(times[:-1]))  # the last step ends with an evaluation


def _note(done: Progress, times: list[float]) -> None:
    times.append(perf_counter())


def main(given: Options) -> None:
    """Variants in turns, round after round."""
    console = Console()
    found: dict[str, list[tuple[int, float]]] = {name: [] for name in VARIANTS}
    for _ in range(given.rounds):
        for name, options in VARIANTS.items():
            found[name].append(in_fresh_process(measure, options, given.attention, given.length, given.threads))
    table = Table("training with", *(Column(name, justify="right") for name in ("peak, MB", "of plain", "time of plain")))
    plain = found["as it is"]
    for name, runs in found.items():
        peaks = [peak / 1e6 for peak, _ in runs]
        shares = [peak / base for (peak, _), (base, _) in zip(runs, plain, strict=True)]
        ratios = [seconds / base for (_, seconds), (_, base) in zip(runs, plain, strict=True)]
        spread = f"{median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        table.add_row(name, f"{median(peaks):.0f} ({min(peaks):.0f} to {max(peaks):.0f})", f"{median(shares):.2f}", spread)
    console.print(f"{given.attention}, 4 layers of 8 heads of 64, batch 8, length {given.length}, {given.rounds} rounds")
    console.print(table)


if __name__ == "__main__":
    main(tyro.cli(Options))
