"""How fast and how large is each attention beside PyTorch's fused softmax? Run by `make bench`.

Ratios are within one run: candidates take turns, round after round, and a ratio is the median over rounds with a bootstrap
interval. Batch 1, 8 heads of 64, float32. Memory is the peak of a fresh process above its inputs.
"""

import os
import platform
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
import tyro
from rich.box import SIMPLE
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from torch import Tensor

from subquad import Favor, Linear, Linformer
from subquad.measure.memory import in_fresh_process, peak_extra_bytes
from subquad.measure.timing import interleave, median, pays_from, ratio
from subquad.results import Row, append_rows
from subquad.types import AttentionOptions

HEADS, WIDTH = 8, 64
BASELINE = "softmax"
OPTIONS: dict[str, AttentionOptions] = {"linear": Linear(), "favor": Favor(features=256), "linformer": Linformer(k=256)}

Mix = Callable[[Tensor, Tensor, Tensor], Tensor]
Form = Literal["bidirectional", "causal"]
What = Literal["forward", "with backward"]
FORMS: tuple[Form, ...] = ("bidirectional", "causal")
WORKS: tuple[What, ...] = ("forward", "with backward")


@dataclass(frozen=True)
class Benchmark:
    """Ratios to PyTorch's fused attention in time and memory."""

    lengths: tuple[int, ...] = (128, 192, 256, 384, 512, 768, 1024, 2048, 4096, 8192, 16384)
    threads: tuple[int, ...] = (1, os.cpu_count() or 1)
    seconds: float = 2.0
    """Time for the rounds of one cell, beyond the three that every cell gets."""
    memory_lengths: tuple[int, ...] = (1024, 4096, 16384)
    out: Path = Path("runs/bench")
    """Where the rows and the chart go."""
    seed: int = 0


def mixers(form: Form) -> dict[str, Mix]:
    """PyTorch's fused attention and the mechanisms that have the form."""
    generator = torch.Generator().manual_seed(0)
    built = {name: options.build(heads=HEADS, width=WIDTH, generator=generator) for name, options in OPTIONS.items()}
    if form == "bidirectional":
        return {BASELINE: F.scaled_dot_product_attention, **built}

    def causal(attend: Any) -> Mix:
        return lambda q, k, v: attend.causal(q, k, v)[0]

    fused: Mix = lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True)  # noqa: E731
    return {BASELINE: fused, **{name: causal(attend) for name, attend in built.items() if hasattr(attend, "causal")}}


def work(mix: Mix, what: What, length: int, seed: int) -> Callable[[], object]:
    """A function that runs one forward, or a forward with its backward."""
    generator = torch.Generator().manual_seed(seed)
    draw = partial(torch.randn, 1, HEADS, length, WIDTH, generator=generator)
    q, k, v = draw(), draw(), draw()
    if what == "forward":
        return torch.no_grad()(lambda: mix(q, k, v))
    gradient = draw()
    inputs = tuple(x.requires_grad_() for x in (q, k, v))
    return lambda: torch.autograd.grad(mix(*inputs), inputs, gradient)


def peak(name: str, form: Form, what: What, length: int) -> int:
    """Peak extra bytes of one run, to be called in a fresh process."""
    torch.set_num_threads(1)
    mix = mixers(form)[name]
    return peak_extra_bytes(lambda: work(mix, what, length, 0), lambda: work(mix, what, 64, 0)())


def time_cells(options: Benchmark, rows: Path, progress: Progress) -> list[Row]:
    """Seconds and ratios of every cell."""
    cells = [
        (threads, form, what, length)
        for threads in dict.fromkeys(options.threads)
        for length in options.lengths
        for form in FORMS
        for what in WORKS
    ]
    measured: list[Row] = []
    task = progress.add_task("time", total=len(cells))
    for threads, form, what, length in cells:
        progress.update(task, description=f"time, {threads} threads, {form}, {what}, {length}")
        torch.set_num_threads(threads)
        candidates = {name: work(mix, what, length, options.seed) for name, mix in mixers(form).items()}
        taken = interleave(candidates, seconds=options.seconds)
        for name, seconds in taken.items():
            cell = {"mechanism": name, "form": form, "what": what, "length": length, "threads": threads}
            for metric, unit, value in (
                ("seconds", "s", median(seconds)),
                ("speedup", "times fused softmax", ratio(taken[BASELINE], seconds)),
            ):
                spread = {"value": value.middle, "low": value.low, "high": value.high, "rounds": len(seconds)}
                measured.append({"metric": metric, "unit": unit, **spread, **cell})
        append_rows(rows, measured[-2 * len(taken) :])
        progress.advance(task)
    return measured


def memory_cells(options: Benchmark, rows: Path, progress: Progress) -> list[Row]:
    """Peak extra memory of every cell."""
    cells = [
        (form, what, length, name)
        for length in options.memory_lengths
        for form in FORMS
        for what in WORKS
        for name in mixers(form)
    ]
    measured: list[Row] = []
    task = progress.add_task("memory", total=len(cells))
    for form, what, length, name in cells:
        progress.update(task, description=f"memory, {form}, {what}, {length}, {name}")
        value = in_fresh_process(peak, name, form, what, length)
        measured.append(
            {"metric": "peak_memory", "unit": "bytes", "value": value, "mechanism": name, "form": form, "what": what}
            | {"length": length, "threads": 1}
        )
        append_rows(rows, measured[-1:])
        progress.advance(task)
    return measured


def show(rows: list[Row], console: Console) -> None:
    """Tables: speed-up by length with the length from which it pays, and memory."""
    speedups = [row for row in rows if row["metric"] == "speedup" and row["mechanism"] != BASELINE]
    lengths = sorted({row["length"] for row in speedups})
    for threads, form in product(sorted({row["threads"] for row in speedups}), FORMS):
        title = f"{form}: times as fast as fused softmax, threads: {threads}"
        table = Table("attention", *map(str, lengths), "pays from", title=title, box=SIMPLE, padding=(0, 1, 0, 0))
        for name, what in product(OPTIONS, WORKS):
            cell = (name, form, what, threads)
            found = {
                row["length"]: row["value"]
                for row in speedups
                if (row["mechanism"], row["form"], row["what"], row["threads"]) == cell
            }
            if found:
                start = pays_from(lengths, [found[length] for length in lengths])
                values = [f"{found[length]:.2f}" for length in lengths]
                table.add_row(f"{name}, {what}", *values, "-" if start is None else f"{start:.0f}")
        console.print(table)
    memory = [row for row in rows if row["metric"] == "peak_memory"]
    if memory:
        lengths = sorted({row["length"] for row in memory})
        table = Table("mechanism", "form", "what", *map(str, lengths), title="peak extra memory, MB", box=SIMPLE)
        kinds = dict.fromkeys((row["mechanism"], row["form"], row["what"]) for row in memory)
        for kind in kinds:
            line = {row["length"]: row for row in memory if (row["mechanism"], row["form"], row["what"]) == kind}
            table.add_row(*map(str, kind), *(f"{line[length]['value'] / 1e6:.0f}" for length in lengths))
        console.print(table)


def main(options: Benchmark) -> None:
    """Measures, keeps the rows, shows them and draws the chart."""
    from subquad.report.charts import save, speedups

    console = Console()
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    rows = options.out / f"rows-{stamp}.jsonl"
    with Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), console=console
    ) as progress:
        measured = time_cells(options, rows, progress) + memory_cells(options, rows, progress)
    show(measured, console)
    chart = save(speedups(measured), options.out / f"speedup-{stamp}")
    machine = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, torch {torch.__version__}"
    console.print(f"Measured on {machine}. Rows: {rows}. Chart: {chart}.")


if __name__ == "__main__":
    main(tyro.cli(Benchmark, description=__doc__))
