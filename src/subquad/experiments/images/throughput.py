"""Images a second: linear attention with its state, softmax with cached keys and values, and softmax recomputed.

The time of one value is measured at several places of an image, for a whole batch, with everything that a value takes:
embedding, layers, head and the draw. The time of an image is the integral over its places. All methods take turns.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from numpy import ndarray

from subquad.attention import Linear, Softmax
from subquad.attention.softmax import SoftmaxState
from subquad.experiments.base import open_part
from subquad.experiments.images.grid import SCALES, Written
from subquad.measure.timing import interleave
from subquad.models import DecoderState
from subquad.results import Row
from subquad.statistics import median_interval, ratio_interval
from subquad.tasks.images.heads import LEVELS, Logistics
from subquad.tasks.images.model import PixelDecoder
from subquad.types import AttentionOptions

RECOMPUTED, CACHED, LINEAR = "recomputed", "cached", "linear"
METHODS = {RECOMPUTED: "softmax, recomputed", CACHED: "softmax, keys and values cached", LINEAR: "linear"}
BATCHES = {RECOMPUTED: (1, 4), CACHED: (1, 4, 16, 64), LINEAR: (1, 4, 16, 64, 256)}
"""Numbers of images that are written at a time."""
RECOMPUTED_VALUES = 4096
"""Largest number of values in a batch of softmax recomputed: beyond, a batch takes proportionally longer."""
STATE_BYTES = 2**30
"""Largest number of bytes of the cached keys and values, or of the states, of a batch."""
SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Places of an image at which the time of a value is measured, as shares of all values."""
SECONDS = 30.0
"""Time after which no further round of measurements begins."""


class Case(NamedTuple):
    """A method, the number of images that it writes at a time, and the place of the value that is timed."""

    method: str
    batch: int
    place: int


def measure(folder: Path, scale: str) -> None:
    """Measures the models of a scale, unless they were measured before."""
    run = open_part(folder / "throughput", "throughput", f"subquad reproduce images --scale {scale}")
    done = {row["values"] for row in run.rows()}
    for written in SCALES[scale].written:
        if written.values not in done:
            run.append(list(throughput(written)))


def throughput(written: Written, *, seconds: float = SECONDS, rounds: int = 3) -> Iterator[Row]:
    """Yields rows of images a second for each method and batch, and of the best batch's ratio to softmax recomputed."""
    cases = list(_cases(written))
    taken = interleave(
        {json.dumps(case): work for case, work in _works(written, cases)}, seconds=seconds, at_least=rounds, at_most=30
    )
    about = {"values": written.values, "layers": written.model.layers, "threads": torch.get_num_threads()}
    best: dict[str, list[float]] = {}
    for method, batch in dict.fromkeys((case.method, case.batch) for case in cases):
        places = {case.place: taken[json.dumps(case)] for case in cases if (case.method, case.batch) == (method, batch)}
        rates = batch / seconds_of_images(places, written.values)
        row = {"metric": "images_per_second", "unit": "1/s", "method": method, "batch": batch, **about}
        yield {**row, **median_interval(rates)._asdict()}
        if method not in best or np.median(rates) > np.median(best[method]):
            best[method] = rates.tolist()
    for method in (CACHED, LINEAR):
        for other in (RECOMPUTED, CACHED):
            if method != other:
                row = {"metric": f"times_{other}", "unit": "", "method": method, **about}
                yield {**row, **ratio_interval(best[method], best[other])._asdict()}


def seconds_of_images(places: Mapping[int, Sequence[float]], values: int) -> Float[ndarray, "rounds"]:
    """Seconds of all values of a batch of images in each round, from the seconds of one value at some places."""
    at = sorted(places)
    seconds = np.array([places[place] for place in at])
    if len(at) == 1:
        return seconds[0] * values
    return np.trapezoid(seconds, np.array(at), axis=0) * values / (at[-1] - at[0])


def _cases(written: Written) -> Iterator[Case]:
    """All measurements of a model: batches whose state fits, and several places where the time depends on the place."""
    heads, head_dim, layers = written.model.attention_heads, written.model.head_dim, written.model.layers
    held = {
        RECOMPUTED: 0,
        CACHED: 4 * layers * heads * 2 * written.values * head_dim,
        LINEAR: 4 * layers * heads * head_dim * (head_dim + 1),
    }
    for method, batches in BATCHES.items():
        for batch in batches:
            is_long = method == RECOMPUTED and batch > 1 and batch * written.values > RECOMPUTED_VALUES
            if is_long or batch * held[method] > STATE_BYTES:
                continue
            shares = (0.5,) if method == LINEAR else SHARES
            yield from (Case(method, batch, max(1, int(share * written.values))) for share in shares)


def _works(written: Written, cases: Sequence[Case]) -> Iterator[tuple[Case, Callable[[], object]]]:
    head = Logistics(10)
    attentions: dict[str, AttentionOptions] = {"softmax": Softmax(), "linear": Linear()}
    models = {
        name: PixelDecoder(written.shape, head.outputs, attention, written.model, torch.Generator().manual_seed(0)).eval()
        for name, attention in attentions.items()
    }
    for case in cases:
        model = models["linear" if case.method == LINEAR else "softmax"]
        drawing = torch.Generator().manual_seed(0)
        numbers = _recompute(model, case) if case.method == RECOMPUTED else _step(model, case, written)
        yield case, partial(_value, numbers, head, drawing)


@torch.inference_mode()
def _value(numbers: Callable[[], Any], head: Logistics, generator: torch.Generator) -> None:
    """Writes one value of each image: the model, then the draw."""
    head.draw(numbers()[:, -1], 1.0, generator)


def _recompute(model: PixelDecoder, case: Case) -> Callable[[], Any]:
    tokens = torch.randint(LEVELS, (case.batch, case.place), generator=torch.Generator().manual_seed(0))
    return lambda: model(tokens, last=1)


def _step(model: PixelDecoder, case: Case, written: Written) -> Callable[[], Any]:
    """One step from a state at the case's place. Cached keys and values are random: time does not depend on them."""
    token = torch.randint(LEVELS, (case.batch, 1), generator=torch.Generator().manual_seed(0))
    place = torch.tensor(min(case.place, written.values - 1))
    if case.method == LINEAR:
        with torch.inference_mode():
            _, state = model.causal(token)
    else:
        shape = (case.batch, written.model.attention_heads, int(place), written.model.head_dim)
        keep = torch.ones(case.batch, int(place), dtype=torch.bool)
        layers = [SoftmaxState(torch.randn(shape), torch.randn(shape), keep) for _ in range(written.model.layers)]
        state = DecoderState(place, tuple(layers))
    current = [state._replace(position=place)]

    def step() -> Any:
        numbers, after = model.step(token, current[0], reuse=True)
        if case.method == LINEAR:  # its memory was used again
            current[0] = after._replace(position=place)
        return numbers

    return step
