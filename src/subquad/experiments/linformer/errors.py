"""Errors of softmax's output with k slots instead of all positions, by length: ways to choose the slots, side by side.

All ways replace the attention of one trained softmax model, on the same held-out texts. So only the length differs.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from subquad.attention import Linformer
from subquad.attention.looking import Call, watched
from subquad.errors import SubquadError
from subquad.experiments.linformer.grid import Effort
from subquad.measure.lowrank import (
    best_rank_errors,
    gram,
    leading_vectors,
    neighbour_means,
    projected,
    random_projection,
    relative_errors,
)
from subquad.models import mechanisms_of
from subquad.results import Row
from subquad.runs import TrainedModel
from subquad.tasks.mlm.masking import MaskedBatch

BEST = "softmax, best rank k of each text"
FIXED = "softmax, k singular vectors for all texts"
RANDOM = "softmax, k random vectors (theorem 1)"
FITTED = "linformer, E and F fitted"
MEANS = "linformer, means of neighbours"
WAYS = (BEST, FIXED, FITTED, MEANS, RANDOM)
"""The ways to choose k slots, as they are called in legends."""
OUTPUT_ERROR = "output_error"
FIT_RATE = 1e-3
"""Learning rate with which E and F are fitted."""


class Recorded(NamedTuple):
    """Queries, keys and values of a layer on training and on held-out sequences."""

    training: Call
    held_out: Call


def error_rows(model: TrainedModel, length: int, effort: Effort, seed: int) -> Iterator[Row]:
    """Yields the errors of all ways by layer and number of slots, as means over heads and held-out sequences."""
    drawing = torch.Generator().manual_seed(seed)
    for layer, recorded in enumerate(record(model, length, effort, drawing), start=1):
        about = {"metric": OUTPUT_ERROR, "unit": "share", "seed": seed, "length": length, "layer": layer}
        for k, by_way in layer_errors(recorded, effort, drawing).items():
            yield from ({**about, "k": k, "way": way, "value": error} for way, error in by_way.items())


def slot_counts(length: int) -> list[int]:
    """Powers of two up to a length, the numbers of slots at which errors are measured."""
    return [2**power for power in range(length.bit_length()) if 2**power <= length]


def record(model: TrainedModel, length: int, effort: Effort, drawing: torch.Generator) -> list[Recorded]:
    """Records the attention of each layer on training and on held-out texts."""
    splits: Any = model.task.splits  # type: ignore[attr-defined]
    training = record_calls(model, splits.train, length, effort.fit_sequences, drawing)
    held_out = record_calls(model, [*splits.development, *splits.test], length, effort.test_sequences, drawing)
    return [Recorded(*pair) for pair in zip(training, held_out, strict=True)]


def record_calls(model: TrainedModel, texts: Sequence[str], length: int, count: int, drawing: torch.Generator) -> list[Call]:
    """Records the attention of each layer on up to `count` sequences of the whole length."""
    task: Any = model.task
    tokens = task.stretches(texts, count, length, drawing)
    if not len(tokens):
        raise SubquadError(f"the texts have no stretch of {length} tokens: give --data with longer texts")
    keep = torch.ones_like(tokens, dtype=torch.bool)
    with torch.no_grad(), watched(mechanisms_of(model)) as calls:
        task.loss(model.model, MaskedBatch(tokens, tokens, ~keep, keep))
    return calls


def layer_errors(recorded: Recorded, effort: Effort, drawing: torch.Generator) -> dict[int, dict[str, float]]:
    """Errors of all ways in one layer, by number of slots."""
    held_out, counts = recorded.held_out, slot_counts(recorded.held_out.k.shape[2])
    matrices, v = held_out.matrix(), held_out.v
    exact = matrices @ v
    best = best_rank_errors(matrices, v, counts).mean((0, 1)).tolist()
    grams = gram(recorded.training.matrix())
    errors: dict[int, dict[str, float]] = {}
    for k, best_error in zip(counts, best, strict=True):
        projections = {FIXED: leading_vectors(grams, k), RANDOM: random_projection(k, v.shape[2], drawing)}
        results = {way: projected(matrices, v, projection) for way, projection in projections.items()}
        for way, attend in _linformers(k, recorded.training, effort, drawing).items():
            with torch.no_grad():
                results[way] = attend(held_out.q, held_out.k, v)
        errors[k] = {BEST: best_error} | {
            way: float(relative_errors(result, exact).mean()) for way, result in results.items()
        }
    return errors


def _linformers(k: int, call: Call, effort: Effort, drawing: torch.Generator) -> Mapping[str, Any]:
    """Linformer with means of neighbours, and with projections that start there and are fitted."""
    heads, length, head_dim = call.k.shape[1:]
    means = Linformer(k=k, max_length=length, method="mean").build(heads=heads, head_dim=head_dim)
    fitted = Linformer(k=k, max_length=length, sharing="none").build(heads=heads, head_dim=head_dim)
    with torch.no_grad():
        for weight in fitted.parameters():
            weight.copy_(neighbour_means(k, length))
    if k < length:  # with a slot for each position the means are the positions themselves
        fit(fitted, call, effort, drawing)
    return {FITTED: fitted, MEANS: means}


def fit(attend: Any, call: Call, effort: Effort, drawing: torch.Generator) -> None:
    """Fits a mechanism's weights to the output of softmax attention, by the mean square of relative errors."""
    with torch.no_grad():
        exact = call.attend(call.q, call.k, call.v)
    optimizer = torch.optim.Adam(attend.parameters(), lr=FIT_RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, effort.fit_steps)
    for _ in range(effort.fit_steps):
        chosen = torch.randint(len(exact), (effort.fit_batch,), generator=drawing)
        loss = relative_errors(attend(call.q[chosen], call.k[chosen], call.v[chosen]), exact[chosen]).square().mean()
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
        schedule.step()
