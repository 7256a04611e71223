"""The error of FAVOR+ beside exact attention: cells that are each measured on some queries and keys, and give rows."""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from subquad.attention import Favor, Softmax
from subquad.attention.looking import LayerOutputs
from subquad.capacity import require_memory
from subquad.checking import LARGEST_NUMBER, AtLeastTwo, Checked, Count, Moderate, Seed, Several
from subquad.compare.error_cell import Cell, score_cells, seeded
from subquad.feature_maps import Kernel, Random
from subquad.feature_maps.base import even
from subquad.feature_maps.random import PAIRED
from subquad.measure.error import FORMULAS, estimate_error, expected_error, orthogonal_error, pairs, relative_error
from subquad.ops.projections import Projection
from subquad.results import Row, Run
from subquad.statistics import Interval, geometric_mean, mean_over_seeds

HEADS, HEAD_DIM, LENGTH = 4, 64, 256
"""Heads of random inputs; their dimension and their length unless others are chosen."""
POSITIONS = 128
"""Largest number of queries and of keys whose pairs are used to measure the error of single estimates."""
ANGLES = tuple(range(0, 181, 15))
PAIR_DIM, PAIR_LENGTH, PAIR_FEATURES, PAIR_DRAWS = 16, math.sqrt(0.5), 16, 4000
"""Dimension, length, number of features, and number of draws for the estimates by angle: with longer vectors, most of the
expected error would consist of draws that are rarer than these."""
DRAW_SEEDS = 1000
"""Distance of the seeds of two draws of a whole model, whose layers have consecutive seeds."""
NOT_FINITE: Row = {"value": None, "failure": "not finite"}
"""Fields of a row whose error does not fit into a float."""
SMALLEST = 1e-12
"""Smallest relative error that is recorded: below it are rounding errors."""


@dataclass(frozen=True)
class ErrorGrid(Checked):
    """The numbers of features, kernels, projections and sizes of inputs for which the error is measured."""

    features: Several[Count] = (16, 64, 256, 1024, 4096)
    """Numbers of features."""
    kernels: Several[Kernel] = ("positive", "hyperbolic", "trigonometric", "relu")
    """Kernels of FAVOR+: positive, hyperbolic and trigonometric estimate softmax, relu does not."""
    projections: Several[Projection] = ("orthogonal", "independent", "hadamard", "givens")
    """How random directions are drawn."""
    sizes: Several[Moderate] = (0.25, 0.5, 1.0, 2.0)
    """Standard deviations of random queries and keys."""
    length: Count | None = None
    """Number of positions; by default 256, or as many as the model takes."""
    head_dim: Count | None = None
    """Dimension of random queries and keys; by default that of the model, or 64."""
    draws: AtLeastTwo = 5
    """Number of draws of the random directions, from which intervals are computed."""
    seed: Seed = 0
    """Random seed of inputs, sequences and directions."""

    def check(self) -> None:
        for kernel, features in product(self.kernels, self.features):
            if kernel in PAIRED:
                even(kernel, features)


class Sample(NamedTuple):
    """Queries, keys and values of one layer and one sequence."""

    layer: int
    q: Tensor
    k: Tensor
    v: Tensor
    keep: Tensor | None
    causal: bool


@dataclass(frozen=True)
class Inputs:
    """Queries, keys and values on which the error is measured."""

    name: str
    """random or model."""
    size: float
    """Standard deviation of random queries and keys; 1 for a model, whose queries and keys are used as they are."""
    samples: Sequence[Sample]

    @property
    def about(self) -> Row:
        """Fields that identify these inputs in rows."""
        return {"inputs": self.name, "size": self.size}

    @property
    def layers(self) -> list[int]:
        """Numbers of the layers, from 1."""
        return list(dict.fromkeys(sample.layer for sample in self.samples))

    @cached_property
    def exact(self) -> list[Tensor]:
        """Output of exact attention for each sample."""
        return [mixed(Softmax(), sample, None) for sample in self.samples]


SwapLayers = Callable[[Favor | None, int], Sequence[LayerOutputs]]
"""Runs a model with FAVOR+ drawn from a seed in all layers, or as it is for None, and returns its layers by sequence."""


def random_inputs(size: float, grid: ErrorGrid) -> Inputs:
    """Draws normally distributed queries and keys of a size, and standard normal values."""
    length, head_dim = grid.length or LENGTH, grid.head_dim or HEAD_DIM
    generator = seeded(grid.seed)
    q, k, v = (torch.randn(1, HEADS, length, head_dim, generator=generator) for _ in range(3))
    return Inputs("random", size, [Sample(1, size * q, size * k, v, None, causal=False)])


def plan(grid: ErrorGrid, all_inputs: Sequence[Inputs], swap_layers: SwapLayers | None = None) -> list[Cell]:
    """Returns all cells, each once: scores by dimension, estimates by angle, errors on each inputs, a model by layer."""
    return list({_identity(cell.about): cell for cell in _cells(grid, all_inputs, swap_layers)}.values())


def _cells(grid: ErrorGrid, all_inputs: Sequence[Inputs], swap_layers: SwapLayers | None) -> Iterator[Cell]:
    yield from score_cells(grid.seed, grid.draws)
    for kernel, angle in product([kernel for kernel in grid.kernels if kernel in FORMULAS], ANGLES):
        yield _angle_cell(kernel, angle, grid.seed)
    for inputs in all_inputs:
        yield _norm_cell(inputs)
        for projection, kernel, features in product(grid.projections, grid.kernels, grid.features):
            favor = Favor(features=features, kernel=kernel, projection=projection)
            yield _output_cell(inputs, favor, grid)
            if kernel in FORMULAS:
                yield _kernel_cell(inputs, favor, grid)
    if swap_layers is not None:
        original = swap_layers(None, 0)
        for features in grid.features:
            favor = Favor(features=features, kernel=grid.kernels[0], projection=grid.projections[0])
            yield _layer_cell(original, swap_layers, favor, grid)


def measure(cells: Sequence[Cell], run: Run, progress: Callable[[Cell], None]) -> None:
    """Measures the cells that a run lacks. Rows of a cell that was interrupted are measured again."""
    counts = Counter(_identity(row) for row in run.rows())
    complete = {identity for cell in cells if counts[identity := _identity(cell.about)] == cell.rows}
    run.keep_rows(lambda row: _identity(row) in complete)
    for cell in cells:
        if _identity(cell.about) not in complete:
            run.append(cell.measure())
        progress(cell)


def check_memory(grid: ErrorGrid) -> None:
    """Raises `SubquadError` for random inputs or features that do not fit into memory."""
    length, head_dim = grid.length or LENGTH, grid.head_dim or HEAD_DIM
    inputs, features = 3 * HEADS * length * head_dim, 4 * HEADS * min(length, POSITIONS) * max(grid.features)
    require_memory("this measurement", 4 * (inputs + features), "give a smaller --length, --head-dim or --features")


_IDENTITY = ("metric", "inputs", "size", "kernel", "projection", "features", "angle", "dim", "scaled")


def _identity(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(row.get(name) for name in _IDENTITY)


def mixed(options: Favor | Softmax, sample: Sample, generator: torch.Generator | None) -> Tensor:
    """Returns the output of an attention that is built for a sample."""
    attend: Any = options.build(heads=sample.q.shape[1], head_dim=sample.q.shape[3], generator=generator)
    with torch.no_grad():
        if sample.causal:
            return attend.causal(sample.q, sample.k, sample.v, keep=sample.keep)[0]
        return attend(sample.q, sample.k, sample.v, keep=sample.keep)


def _about(metric: str, inputs: Inputs, favor: Favor) -> Row:
    chosen = {"kernel": favor.kernel, "projection": favor.projection, "features": favor.features}
    return {"metric": metric, **inputs.about, **chosen}


def _output_cell(inputs: Inputs, favor: Favor, grid: ErrorGrid) -> Cell:
    """Relative error of attention's output, for each layer the mean over sequences."""
    about = _about("output error", inputs, favor)

    def rows() -> list[Row]:
        errors: dict[int, list[list[float]]] = {layer: [[] for _ in range(grid.draws)] for layer in inputs.layers}
        for draw in range(grid.draws):
            for sample, exact in zip(inputs.samples, inputs.exact, strict=True):
                output = mixed(favor, sample, seeded(grid.seed, draw, sample.layer))
                errors[sample.layer][draw].append(relative_error(output, exact))
        return [
            {**about, **_relative([float(np.mean(sequences)) for sequences in draws]), **_shape(inputs, layer, grid)}
            for layer, draws in errors.items()
        ]

    return Cell(about, len(inputs.layers), rows)


def _kernel_cell(inputs: Inputs, favor: Favor, grid: ErrorGrid) -> Cell:
    """Squared error of single estimates over the mean square of what is estimated, with the published formula."""
    about = _about("kernel error", inputs, favor)

    def rows() -> list[Row]:
        return [_kernel_row(inputs, layer, favor, grid) | about for layer in inputs.layers]

    return Cell(about, len(inputs.layers), rows)


def _kernel_row(inputs: Inputs, layer: int, favor: Favor, grid: ErrorGrid) -> Row:
    samples = [(_some(sample.q), _some(sample.k)) for sample in inputs.samples if sample.layer == layer]
    heads, head_dim = samples[0][0].shape[1], samples[0][0].shape[3]
    errors = []
    for draw in range(grid.draws):
        generator = seeded(grid.seed, draw, layer)
        phi = favor.feature_map.build(heads=heads, head_dim=head_dim, generator=generator).double()
        with torch.no_grad():
            errors.append(_mean([estimate_error(phi(q), phi(k), q, k) for q, k in samples]))
    directions = favor.features // 2 if favor.kernel in PAIRED else favor.features
    formulas: Row = {}
    if favor.projection == "independent":
        formulas["formula"] = _mean([expected_error(favor.kernel, q, k, directions) for q, k in samples])
    elif favor.projection == "orthogonal" and favor.kernel == "positive":
        formulas["at_most"] = _mean([orthogonal_error(q, k, directions) for q, k in samples])
    known = {name: value for name, value in formulas.items() if value <= LARGEST_NUMBER}
    measured = _interval(mean_over_seeds(errors)) if all(map(math.isfinite, errors)) else NOT_FINITE
    return {**measured, "unit": "share", **known, **_shape(inputs, layer, grid)}


def _norm_cell(inputs: Inputs) -> Cell:
    """Largest norm of a query or key in each layer, which Performer's theorem asks for."""
    about = {"metric": "largest norm", **inputs.about}

    def rows() -> list[Row]:
        norms: dict[int, list[float]] = {layer: [] for layer in inputs.layers}
        for sample in inputs.samples:
            norms[sample.layer] += [float(part.double().norm(dim=-1).max()) for part in (sample.q, sample.k)]
        return [
            {**about, "value": max(values), "unit": "norm", **_shape(inputs, layer, None)} for layer, values in norms.items()
        ]

    return Cell(about, len(inputs.layers), rows)


def _angle_cell(kernel: Kernel, angle: int, seed: int) -> Cell:
    """Estimates of exp(x . y) for vectors x and y at an angle, over the exponential itself, in many draws."""
    about = {"metric": "estimate", "kernel": kernel, "features": PAIR_FEATURES, "angle": angle}

    def rows() -> list[Row]:
        turn = math.radians(angle)
        q, k = torch.zeros(2, 1, 1, 1, PAIR_DIM, dtype=torch.float64)
        q[..., 0], k[..., 0], k[..., 1] = 1.0, math.cos(turn), math.sin(turn)
        q, k = (part * PAIR_LENGTH * PAIR_DIM**0.25 for part in (q, k))
        ratios = _estimates(kernel, q, k, seeded(seed)) / pairs(q, k).score.exp().flatten()
        squares = mean_over_seeds((ratios - 1).square().tolist())
        formula = float(expected_error(kernel, q, k, PAIR_FEATURES // 2 if kernel in PAIRED else PAIR_FEATURES))
        low, high = ratios.quantile(torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
        deviations = {
            "deviation": math.sqrt(squares.value),
            "deviation_low": math.sqrt(max(0.0, squares.low)),
            "deviation_high": math.sqrt(squares.high),
            "formula": math.sqrt(formula),
            "negative": float((ratios <= 0).double().mean()),
        }
        return [{**about, "value": float(ratios.mean()), "low": low, "high": high, "unit": "ratio", **deviations}]

    return Cell(about, 1, rows)


def _estimates(kernel: Kernel, q: Tensor, k: Tensor, generator: torch.Generator) -> Tensor:
    """Returns estimates of exp(q . k / sqrt d) for one query and one key, each from a group of the features of one map."""
    features = Random(PAIR_FEATURES * PAIR_DRAWS, kernel, "independent")
    phi = features.build(heads=1, head_dim=PAIR_DIM, generator=generator).double()
    phi_q, phi_k = phi(q), phi(k)
    assert phi_q.exponent is not None  # the features of every kernel of softmax have one
    assert phi_k.exponent is not None
    groups = (phi_q.values * phi_k.values).view(2 if kernel in PAIRED else 1, PAIR_DRAWS, -1).sum((0, 2))
    return groups * PAIR_DRAWS * (phi_q.exponent + phi_k.exponent).exp2().flatten()


def _layer_cell(original: Sequence[LayerOutputs], swap_layers: SwapLayers, favor: Favor, grid: ErrorGrid) -> Cell:
    """Relative errors of each layer's attention output and hidden state when all layers are swapped."""
    about = _about("layer error", Inputs("model", 1.0, []), favor)

    def rows() -> list[Row]:
        swapped = [swap_layers(favor, grid.seed + DRAW_SEEDS * draw) for draw in range(grid.draws)]
        found = []
        for part, outputs in original[0]._asdict().items():
            for layer in range(len(outputs)):
                errors = [_layer_error(original, sequences, part, layer) for sequences in swapped]
                found.append({**about, "what": part, "layer": layer + 1, **_relative(errors), "draws": grid.draws})
        return found

    return Cell(about, sum(map(len, original[0])), rows)


def _layer_error(original: Sequence[LayerOutputs], swapped: Sequence[LayerOutputs], part: str, layer: int) -> float:
    """Relative error of one layer, the mean over sequences."""
    errors = [
        relative_error(getattr(ours, part)[layer], getattr(exact, part)[layer])
        for exact, ours in zip(original, swapped, strict=True)
    ]
    return float(np.mean(errors))


def _some(x: Tensor) -> Tensor:
    """Returns evenly spaced positions of queries or keys, at most `POSITIONS`, in float64."""
    return x[:, :, :: -(-x.shape[2] // POSITIONS)].double()


def _mean(errors: Sequence[Tensor]) -> float:
    """Mean over samples and heads."""
    return float(torch.stack([error.mean() for error in errors]).mean())


def _shape(inputs: Inputs, layer: int, grid: ErrorGrid | None) -> Row:
    """Fields that describe the inputs of a layer."""
    q = next(sample.q for sample in inputs.samples if sample.layer == layer)
    drawn = {} if grid is None else {"draws": grid.draws}
    return {"layer": layer, "length": q.shape[2], "heads": q.shape[1], "head_dim": q.shape[3], **drawn}


def _relative(errors: Sequence[float]) -> Row:
    """Geometric mean of relative errors over draws, with its interval."""
    if not all(map(math.isfinite, errors)):
        return {**NOT_FINITE, "unit": "share"}
    interval = geometric_mean({draw: math.log(max(error, SMALLEST)) for draw, error in enumerate(errors)})
    assert interval is not None  # there are at least two draws
    return {**_interval(interval), "unit": "share"}


def _interval(interval: Interval) -> Row:
    """The fields of an interval; a row without a value if one of its ends does not fit into a float."""
    return dict(interval._asdict()) if all(map(math.isfinite, interval)) else NOT_FINITE
