"""How the time of each mechanism grows with the length: the exponent p of a straight line through log(time) by log(length).

Run by `python benchmarks/growth.py`. Lengths take turns, on one thread. CPU time of the thread is counted, so that other
processes on the machine matter less. Each call is made twice, and the second one is timed: a virtual machine may give free
memory back to its host, and the time to get it again is not that of the attention. The exponent is the median over rounds,
with its 95% interval.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import tyro

import subquad as sq
from subquad.statistics import Interval, median_interval

HEAD_DIM = 64


@dataclass(frozen=True)
class Options:
    """Growth of time with the length."""

    mechanisms: tuple[str, ...] = tuple(name for name in sq.MECHANISMS if name != "softmax")
    """Mechanisms to measure."""
    shortest: int = 2**12
    longest: int = 2**16
    heads: int = 8
    """Number of heads of 64."""
    rounds: int = 7
    """Number of times that each length is measured."""
    parts: tuple[str, ...] = ("forward", "with backward")
    bound: float = 1.05
    """Exponent beside which each one is judged."""


Call = Callable[[], None]


def calls(name: str, form: str, part: str, options: Options) -> dict[int, Call]:
    """One call for each length."""
    lengths = [2**power for power in range(int(math.log2(options.shortest)), int(math.log2(options.longest)) + 1)]
    attention: Any = sq.MECHANISMS[name]()
    return {length: call(attention, form, part, length, options.heads) for length in lengths}


def call(attention: Any, form: str, part: str, length: int, heads: int) -> Call:
    """Computes the attention of one sequence, and its gradients if wanted."""
    drawing = torch.Generator().manual_seed(0)
    attend = attention.for_length(length).build(heads=heads, head_dim=HEAD_DIM, generator=drawing)
    back = part == "with backward"
    q, k, v, gradient = (torch.randn(1, heads, length, HEAD_DIM, generator=drawing) for _ in range(4))
    inputs = [x.requires_grad_(back) for x in (q, k, v)]

    def run() -> None:
        with torch.set_grad_enabled(back):
            mixed = attend.causal(*inputs)[0] if form == "causal" else attend(*inputs)
            if back:
                torch.autograd.grad(mixed, inputs, gradient, allow_unused=True)

    return run


def exponent(by_length: dict[int, Call], rounds: int) -> tuple[Interval, dict[int, float]]:
    """The exponent over rounds, and the shortest CPU time at each length in seconds."""
    slopes, least = [], dict.fromkeys(by_length, math.inf)
    for _ in range(rounds):
        seconds = {}
        for length, run in by_length.items():
            run()  # so that the memory that the timed call asks for has just been used
            start = time.thread_time()
            run()
            seconds[length] = time.thread_time() - start
        slopes.append(float(np.polyfit(np.log(list(seconds)), np.log(list(seconds.values())), 1)[0]))
        least = {length: min(least[length], seconds[length]) for length in least}
    return median_interval(slopes), least


def main(options: Options) -> None:
    """Prints a row for each mechanism, form and part, as soon as it is measured."""
    torch.set_num_threads(1)
    print(f"heads {options.heads} of {HEAD_DIM}, one thread, {options.rounds} rounds, torch {torch.__version__}\n")
    print(
        f"| mechanism | form | part | exponent | at most {options.bound} | ms from {options.shortest} to {options.longest} |"
    )
    print("|---|---|---|---|---|---|")
    for name in options.mechanisms:
        forms = ("bidirectional", "causal") if sq.MECHANISMS[name]().traits.causal else ("bidirectional",)
        for form, part in ((form, part) for form in forms for part in options.parts):
            reached, seconds = exponent(calls(name, form, part, options), options.rounds)
            judged = "yes" if reached.high <= options.bound else "no" if reached.low > options.bound else "open"
            times = " ".join(f"{1e3 * each:.0f}" for each in seconds.values())
            between = f"{reached.value:.3f} ({reached.low:.3f} to {reached.high:.3f})"
            print(f"| {name} | {form} | {part} | {between} | {judged} | {times} |", flush=True)


if __name__ == "__main__":
    main(tyro.cli(Options))
