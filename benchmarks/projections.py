"""Whether the factors of Hadamard and Givens projections multiply faster than their dense matrix: `python
benchmarks/projections.py`.

The two forms take turns on one thread, forward alone and with the gradient of the vectors; what is compared is the
processor's time, which other load changes less. A ratio above 1 says that the factors are faster; `FAST_FROM` of
subquad.ops.projections holds the dimensions from which on they are.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from time import thread_time

import torch
import tyro
from rich.console import Console
from rich.table import Table
from torch import Tensor

from subquad.ops.projections import Directions, draw_directions
from subquad.statistics import Interval, ratio_interval
from subquad.words import between


@dataclass(frozen=True)
class Options:
    """The time of a product with random directions, dense and by factors."""

    dims: tuple[int, ...] = (32, 64, 128, 256, 512, 1024, 2048)  # dimensions of a head
    features: int = 256  # number of directions; as many as the dimension where that is larger
    positions: int = 512  # positions times heads of one product
    rounds: int = 15  # turns of each form


def work(multiply: Callable[[Tensor], Tensor], x: Tensor, gradient: Tensor | None) -> Callable[[], object]:
    """A product, or a product and its gradient."""
    if gradient is None:
        return lambda: multiply(x)
    leaf = x.detach().requires_grad_()
    return lambda: torch.autograd.grad(multiply(leaf), leaf, gradient)


def processor_seconds(run: Callable[[], object]) -> float:
    """The time that the processor spends on one run."""
    before = thread_time()
    run()
    return thread_time() - before


def compare(directions: Directions, positions: int, rounds: int) -> Iterator[Interval]:
    """How many times as fast as the dense product the factors are, forward and with the gradient."""
    matrix = directions.matrix()
    dim, columns = matrix.shape
    x, gradient = torch.randn(positions, dim), torch.randn(positions, columns)
    for wanted in (None, gradient):
        candidates = {
            "dense": work(lambda vectors: vectors @ matrix, x, wanted),
            "factors": work(directions.multiply, x, wanted),
        }
        turns = [{name: processor_seconds(run) for name, run in candidates.items()} for _ in range(rounds + 1)][1:]
        yield ratio_interval([turn["dense"] for turn in turns], [turn["factors"] for turn in turns])


def main(options: Options) -> None:
    """Prints a row for each dimension."""
    torch.set_num_threads(1)
    table = Table(title="Times as fast as the dense product (95% interval)")
    for column in ("dim", "features", "hadamard", "with gradient", "givens", "with gradient"):
        table.add_column(column, justify="right")
    for dim in options.dims:
        features = max(options.features, dim)
        cells = []
        for projection in ("hadamard", "givens"):
            directions = draw_directions(dim, features, projection, "chi", torch.Generator().manual_seed(0))
            cells += [between(ratio) for ratio in compare(directions, options.positions, options.rounds)]
        table.add_row(str(dim), str(features), *cells)
    Console().print(table)


if __name__ == "__main__":
    main(tyro.cli(Options))
