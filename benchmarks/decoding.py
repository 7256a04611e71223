"""How far a token of a whole decoder is from the time of reading the decoder's weights once. Run by `make bench-decoding`.

A decoder of 8 layers and width 512 writes one token at a time, on one thread, with native kernels and with PyTorch's. Every
token needs every weight once, so that reading them is what remains when all else is free. Reading is timed as the sum over
all weights, and the four candidates take turns.
"""

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

import torch
import tyro
from rich.console import Console
from rich.table import Column, Table

import subquad as sq
from subquad import native
from subquad.models import Decoder, ModelOptions
from subquad.statistics import median_interval, ratio_interval


@dataclass(frozen=True)
class Options:
    """The time of a token beside that of reading the weights."""

    attentions: tuple[str, ...] = ("linear", "favor", "hybrid", "softmax")
    layers: int = 8
    heads: int = 8
    head_dim: int = 64
    vocabulary: int = 256
    context: int = 256
    """Tokens before the first that is timed."""
    seconds: float = 10.0
    """Time for each attention."""


def writer(decoder: Decoder, context: int) -> Callable[[], None]:
    """Returns a function that writes one token after `context` others, and keeps the state."""
    with torch.no_grad():
        state = [decoder.causal(torch.randint(10, (1, context)))[1]]
    token = torch.zeros(1, 1, dtype=torch.long)

    @torch.no_grad()
    def write() -> None:
        logits, state[0] = decoder.step(token, state[0], reuse=True)
        logits[:, -1].argmax(-1, keepdim=True)

    return write


def alternate(candidates: dict[str, Callable[[], None]], seconds: float) -> dict[str, list[float]]:
    """Returns the seconds of each run of candidates that take turns."""
    times: dict[str, list[float]] = {name: [] for name in candidates}
    end = perf_counter() + seconds
    while perf_counter() < end:
        for name, run in candidates.items():
            start = perf_counter()
            run()
            times[name].append(perf_counter() - start)
    return times


def measure(name: str, options: Options) -> tuple[dict[str, list[float]], float]:
    """Seconds of reading all weights and of a token with native and with PyTorch's kernels; and the weights' megabytes."""
    torch.set_num_threads(1)
    size = ModelOptions(layers=options.layers, heads=options.heads, head_dim=options.head_dim)
    decoder = Decoder(options.vocabulary, sq.MECHANISMS[name](), size, generator=torch.Generator().manual_seed(0)).eval()
    weights = [parameter.detach() for parameter in decoder.parameters()]
    write = writer(decoder, options.context)

    def read() -> None:
        for weight in weights:
            weight.sum()

    def write_with_torch() -> None:
        with native.using("torch"):
            write()

    times = alternate({"read": read, "native": write, "torch": write_with_torch}, options.seconds)
    return times, sum(weight.numel() for weight in weights) * 4 / 1e6


def main(options: Options) -> None:
    """Prints a table with a row for each attention."""
    table = Table("attention", "kernels", Column("a token", justify="right"), Column("times reading", justify="right"))
    for name in options.attentions:
        times, megabytes = measure(name, options)
        for kernels in ("native", "torch"):
            ratio = ratio_interval(times[kernels], times["read"])
            milliseconds = median_interval(times[kernels]).value * 1e3
            table.add_row(
                name, kernels, f"{milliseconds:.2f} ms", f"{ratio.value:.2f} ({ratio.low:.2f} to {ratio.high:.2f})"
            )
    Console().print(table, f"Weights: {megabytes:.0f} MB.")


if __name__ == "__main__":
    main(tyro.cli(Options))
