"""What native kernels reach: share of the matrix-multiply rate, gain of a second thread, growth up to a million tokens.

Run by `make bench-kernels`. Candidates take turns; ratios are medians over rounds with their 95% intervals.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
import tyro
from rich.console import Console
from rich.table import Column, Table
from torch import Tensor

import subquad as sq
from subquad.measure.memory import in_fresh_process, peak_extra_bytes
from subquad.measure.timing import interleave
from subquad.statistics import Interval, median_interval, ratio_interval

CHUNK = 32  # positions of a chunk in the kernels


@dataclass(frozen=True)
class Options:
    """Rates, threads and growth of native kernels."""

    seconds: float = 10.0
    """Time for each measurement of rates and threads."""
    longest: int = 2**20
    """Longest sequence for the growth of time."""
    attentions: tuple[str, ...] = ("linear", "favor", "hybrid")


def inputs(length: int, heads: int = 8) -> list[Tensor]:
    """Returns queries, keys and values of heads of 64."""
    return [torch.randn(1, heads, length, 64) for _ in range(3)]


def share(seconds: float) -> tuple[Interval, float]:
    """Rate of causal linear attention at 4096 tokens as a share of that of a matrix product, and the latter in GFLOP/s."""
    torch.set_num_threads(1)
    attend, (q, k, v), square = sq.Linear().build(heads=8, head_dim=64), inputs(4096), torch.randn(1024, 1024)
    products = 8 * 4096 * (2 * 64 * 64 + CHUNK // 2 * 2 * 64)
    with torch.no_grad():
        times = interleave(
            {"attention": lambda: attend.causal(q, k, v), "product": lambda: square @ square}, seconds=seconds
        )
    rates = {"attention": 2 * products, "product": 2 * 1024**3}
    shares = [
        (rates["attention"] / attention) / (rates["product"] / product)
        for attention, product in zip(times["attention"], times["product"], strict=True)
    ]
    return median_interval(shares), rates["product"] / min(times["product"]) / 1e9


def threads(options: Options) -> Table:
    """Times as fast on two threads as on one, at 1024 and 4096 tokens."""
    table = Table(
        "attention", "form", "tokens", Column("forward", justify="right"), Column("with backward", justify="right")
    )
    for name in options.attentions:
        attend = sq.MECHANISMS[name]().build(heads=8, head_dim=64)
        for form, length in (("causal", 1024), ("causal", 4096), ("bidirectional", 1024), ("bidirectional", 4096)):
            gains = [ratio_interval(*two_and_one(attend, form, length, options, back)) for back in (False, True)]
            cells = [f"{gain.value:.2f} ({gain.low:.2f} to {gain.high:.2f})" for gain in gains]
            table.add_row(name, form, str(length), *cells)
    return table


def two_and_one(attend: Any, form: str, length: int, options: Options, back: bool) -> tuple[list[float], list[float]]:
    """Seconds on one thread and on two, in turns."""
    q, k, v = (x.requires_grad_(back) for x in inputs(length))
    gradient = torch.randn(1, 8, length, 64)

    def with_threads(number: int) -> Callable[[], object]:
        def run() -> None:
            torch.set_num_threads(number)
            mixed = attend.causal(q, k, v)[0] if form == "causal" else attend(q, k, v)
            if back:
                torch.autograd.grad(mixed, (q, k, v), gradient)

        return run

    with torch.set_grad_enabled(back):
        times = interleave({"one": with_threads(1), "two": with_threads(2)}, seconds=options.seconds / 4)
    return times["one"], times["two"]


def growth(options: Options) -> Table:
    """Power of the length that the time of the causal forward grows with, and its peak beside inputs and result."""
    torch.set_num_threads(1)
    table = Table(
        "attention", Column("exponent", justify="right"), Column("peak at 4096", justify="right"), Column("longest")
    )
    lengths = [2**power for power in range(12, int(math.log2(options.longest)) + 1)]
    for name in options.attentions:
        attend: Any = sq.MECHANISMS[name]().build(heads=2, head_dim=64)
        seconds = []
        for length in lengths:
            q, k, v = inputs(length, heads=2)
            with torch.no_grad():
                times = interleave({"run": partial(attend.causal, q, k, v)}, seconds=2)
            seconds.append(min(times["run"]))
        slope = np.polyfit(np.log(lengths), np.log(seconds), 1)[0]
        peaks = [in_fresh_process(peak, name, length) / 1e6 for length in (lengths[0], lengths[-1])]
        table.add_row(name, f"{slope:.3f}", f"{peaks[0]:.1f} MB", f"{peaks[1]:.1f} MB")
    return table


def peak(name: str, length: int) -> float:
    """Peak bytes of the causal forward beside inputs and result."""
    attend: Any = sq.MECHANISMS[name]().build(heads=2, head_dim=64)
    q, k, v = inputs(length, heads=2)
    with torch.no_grad():
        attend.causal(*(x[:, :, :64] for x in (q, k, v)))
        return peak_extra_bytes(partial(attend.causal, q, k, v)) - q.numel() * 4


def main(options: Options) -> None:
    """Prints all measurements."""
    console = Console()
    reached, best = share(options.seconds)
    words = f"{reached.value:.0%} ({reached.low:.0%} to {reached.high:.0%}) of the rate of a matrix product"
    console.print(f"Causal linear attention at 4096 tokens: {words}, {best:.0f} GFLOP/s at best.")
    console.print(threads(options), growth(options))


if __name__ == "__main__":
    main(tyro.cli(Options))
