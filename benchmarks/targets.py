"""Every target that the native kernels were given, beside what is reached on this machine. Run by `make bench-targets`.

Times are ratios to PyTorch's fused softmax attention on one thread (batch 1, 8 heads of 64, float32), whose runs take turns
with those of the candidate. The targets hold for processors with AVX-512. The machine should have nothing else to do.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Any

import torch
import torch.nn.functional as F
import tyro
from rich.console import Console
from rich.table import Column, Table
from torch import Tensor

import decoding
import kernels
import subquad as sq
from subquad.measure.timing import interleave
from subquad.statistics import Interval, median_interval, ratio_interval

Pair = tuple[float, float | None]  # asked of the forward, and of forward and backward


@dataclass(frozen=True)
class Options:
    """Targets of native kernels, and what is reached."""

    seconds: float = 6.0
    """Time for each measurement."""
    parts: tuple[str, ...] = ("ratios", "steps", "decoder", "rate", "threads", "growth")
    """What to measure."""


@dataclass(frozen=True)
class Target:
    """What is asked of an attention, as times as fast as fused softmax at some lengths."""

    options: Any
    causal: bool
    asked: dict[int, Pair]
    pays_from: int


TARGETS = {
    "linear, causal": Target(sq.Linear(), True, {128: (1.5, 1.5), 1024: (13, 12), 4096: (22, 20)}, 64),
    "linear, bidirectional": Target(sq.Linear(), False, {128: (2, 2), 1024: (14, 14), 4096: (55, 55)}, 64),
    "favor 256, causal": Target(sq.Favor(features=256), True, {128: (0.4, 0.4), 1024: (1.5, 1.5), 4096: (4, 3.5)}, 600),
    "favor 256, bidirectional": Target(
        sq.Favor(features=256), False, {128: (0.5, 0.5), 1024: (2.3, 2.5), 4096: (9, 9)}, 400
    ),
    "hybrid of 32, causal": Target(sq.Hybrid(block=32), True, {128: (0.6, 0.6), 1024: (3, 3), 4096: (10, 9)}, 256),
    "linformer 256": Target(sq.Linformer(k=256), False, {1024: (2.2, None), 4096: (9, None)}, 450),
}
STEPS = {("linear", 1): 12.0, ("favor", 1): 30.0, ("hybrid", 1): None, ("linear", 32): 150.0}  # microseconds, at most
TOKEN = 1.3  # times reading all weights of a decoder, at most
SHARE = 0.7  # of the rate of a matrix product
TWO_THREADS = 1.7  # times as fast as one


def cell(asked: float | None, reached: Interval, least: bool = True, unit: str = "x") -> str:
    """Says what is reached and whether that is enough."""
    words = f"{reached.value:.3g}{unit} ({reached.low:.3g} to {reached.high:.3g})"
    if asked is None:
        return words
    enough = reached.value >= asked if least else reached.value <= asked
    return f"{words} of {asked:g} [{'green]yes' if enough else 'red]no'}[/]"


def table(title: str, *columns: str) -> Table:
    """Returns an empty table whose columns except the first hold figures."""
    return Table(columns[0], *(Column(name, justify="right") for name in columns[1:]), title=title)


def run(attend: Callable[..., Tensor], inputs: tuple[Tensor, ...], gradient: Tensor | None) -> None:
    """Runs an attention, and its backward if there is a gradient."""
    mixed = attend(*inputs)
    if gradient is not None:
        torch.autograd.grad(mixed, inputs, gradient)


def ratio(target: Target, length: int, back: bool, seconds: float) -> Interval:
    """Times as fast as fused softmax."""
    attend = target.options.build(heads=8, head_dim=64)
    q, k, v = (torch.randn(1, 8, length, 64, requires_grad=back) for _ in range(3))
    gradient = torch.randn(1, 8, length, 64) if back else None
    forms: dict[str, Callable[..., Tensor]] = {
        "softmax": partial(F.scaled_dot_product_attention, is_causal=target.causal),
        "other": (lambda *x: attend.causal(*x)[0]) if target.causal else attend,
    }
    with torch.set_grad_enabled(back):
        candidates = {name: partial(run, form, (q, k, v), gradient) for name, form in forms.items()}
        times = interleave(candidates, seconds=seconds, at_least=5, at_most=400)
    return ratio_interval(times["softmax"], times["other"])


def ratios(seconds: float) -> Table:
    """Times as fast as fused softmax at all lengths."""
    result = table("Times as fast as fused softmax", "attention", "tokens", "forward", "forward and backward")
    for name, target in TARGETS.items():
        asked: dict[int, Pair] = {target.pays_from: (1.0, None), **target.asked}
        for length, (forward, both) in asked.items():
            cells = [cell(forward, ratio(target, length, False, seconds))]
            cells += ["" if both is None else cell(both, ratio(target, length, True, seconds))]
            result.add_row(name, str(length), *cells)
    return result


def step_microseconds(name: str, batch: int, seconds: float) -> Interval:
    """Time of one decoding step that overwrites its state."""
    attend: Any = sq.MECHANISMS[name]().build(heads=8, head_dim=64)
    past = [torch.randn(batch, 8, 128, 64) for _ in range(3)]
    q, k, v = (torch.randn(batch, 8, 1, 64) for _ in range(3))
    times, end = [], perf_counter() + seconds / 3
    with torch.no_grad():
        state = attend.causal(*past)[1]
        while perf_counter() < end:
            start = perf_counter()
            for _ in range(20):
                state = attend.step(q, k, v, state, reuse=True)[1]
            times.append((perf_counter() - start) / 20 * 1e6)
    return median_interval(times)


def steps(seconds: float) -> Table:
    """Times of a decoding step."""
    result = table("A decoding step", "attention", "batch", "time")
    for (name, batch), most in STEPS.items():
        result.add_row(name, str(batch), cell(most, step_microseconds(name, batch, seconds), False, " us"))
    return result


def tokens(seconds: float) -> Table:
    """Times of a token beside those of reading the decoder's weights."""
    result = table("A token of a decoder (8 layers, width 512)", "attention", "times reading all weights")
    for name in ("linear", "favor", "hybrid"):
        times, _ = decoding.measure(name, decoding.Options(seconds=seconds))
        result.add_row(name, cell(TOKEN, ratio_interval(times["native"], times["read"]), False))
    return result


def rate(seconds: float) -> Table:
    """Share of the machine's rate of matrix products."""
    result = table("Causal linear attention at 4096 tokens", "", "share of the rate of a matrix product")
    result.add_row("forward", cell(SHARE, kernels.share(seconds)[0], unit=""))
    return result


def threads(seconds: float) -> Table:
    """Two threads beside one."""
    result = table("Times as fast on two threads as on one", "attention", "tokens", "forward", "forward and backward")
    for name, target in TARGETS.items():
        attend, form = target.options.build(heads=8, head_dim=64), "causal" if target.causal else "bidirectional"
        options = kernels.Options(seconds=seconds * 2)
        for length in (1024, 4096):
            gains = [ratio_interval(*kernels.two_and_one(attend, form, length, options, back)) for back in (False, True)]
            result.add_row(name, str(length), *(cell(TWO_THREADS, gain) for gain in gains))
    torch.set_num_threads(1)
    return result


def growth(seconds: float) -> Table:
    """Exponents of time against length up to a million tokens, which should be within .03 of 1."""
    return kernels.growth(kernels.Options(seconds=seconds))


PARTS = {"ratios": ratios, "steps": steps, "decoder": tokens, "rate": rate, "threads": threads, "growth": growth}


def main(options: Options) -> None:
    """Prints a table for each part as soon as it is measured."""
    torch.set_num_threads(1)
    console = Console()
    for part in options.parts:
        console.print(PARTS[part](options.seconds))


if __name__ == "__main__":
    main(tyro.cli(Options))
