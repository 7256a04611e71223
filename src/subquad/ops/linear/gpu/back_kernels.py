"""Triton kernels of the backward of linear attention.

The gradient of a causal sum is a causal sum, reversed in time for k and v. With G and e the gradients of numerator and
denominator, and P_ij = G_i . v_j + e_i:

    dq'_i = sum over j <= i of P_ij k'_j, dk'_j = sum over i >= j of P_ij q'_i, dv_j = sum over i >= j of (q'_i . k'_j) G_i

Features are computed again. Sums over earlier chunks are those of the forward, and those over later chunks are sums of
q'_i G_i^T and q'_i e_i.
"""

import triton
import triton.language as tl

from subquad.ops.linear.gpu.kernels import (
    ELU,
    GIVEN,
    HYPERBOLIC,
    RELU,
    directions,
    features,
    key_factors,
    load_norms,
    load_sums,
    load_tile,
    real_rows,
    row_factors,
    store_tile,
    visible,
)


@triton.jit
def denominators(gradient, mixed, plan, inverse, scale):
    """Writes e_i = -(G_i . out_i), the gradients of the denominators."""
    bh, t = tl.program_id(0) // plan.chunks, tl.program_id(0) % plan.chunks
    rows = t * plan.chunk + tl.arange(0, plan.chunk)
    valid = rows < plan.n
    total = tl.zeros((plan.chunk,), plan.real)
    for first in range(0, plan.e, plan.value_tile):
        columns = first + tl.arange(0, plan.value_tile)
        product = load_tile(gradient, plan, bh, rows, valid, columns, plan.e)
        total += tl.sum(product * load_tile(mixed, plan, bh, rows, valid, columns, plan.e), 1)
    at = bh.to(tl.int64) * plan.n + rows
    tl.store(scale + at, -total * tl.load(inverse + at, mask=valid, other=0.0), mask=valid)


@triton.jit
def load_pairs(gradient, inverse, scale, v, real, peaks, plan, bh, t, rows):
    """Returns P_ij of a chunk "c c" with fades, and zeros for later keys."""
    valid = rows < plan.n
    pairs = tl.zeros((plan.chunk, plan.chunk), plan.real)
    for first in range(0, plan.e, plan.value_tile):
        columns = first + tl.arange(0, plan.value_tile)
        numbers = load_tile(v, plan, bh, rows, real, columns, plan.e)
        rows_of = load_tile(gradient, plan, bh, rows, valid, columns, plan.e)
        pairs += tl.dot(rows_of, tl.trans(numbers), input_precision=plan.precision)
    at = bh.to(tl.int64) * plan.n + rows
    pairs = pairs * tl.load(inverse + at, mask=valid, other=0.0)[:, None]
    return visible(pairs + tl.load(scale + at, mask=valid, other=0.0)[:, None], peaks, plan, bh, t, rows)


@triton.jit
def back_to_rows(own, other, right, v, gradient, inverse, scale, peaks, plan, sums, norms, result, of_keys: tl.constexpr):
    """Writes the gradients of a chunk of queries, or of keys: of features that are given, else of the numbers themselves.

    `right` is the gradient of the result for queries, and v for keys; `sums` and `norms` are those of earlier keys for
    queries, and those of later queries for keys.
    """
    bh, t = tl.program_id(0) // plan.chunks, tl.program_id(0) % plan.chunks
    place = tl.program_id(0) if plan.causal else bh
    rows = t * plan.chunk + tl.arange(0, plan.chunk)
    valid = real_rows(own, plan, bh, rows)
    if plan.causal:
        other_valid = real_rows(other, plan, bh, rows)
        pairs = load_pairs(gradient, inverse, scale, v, valid if of_keys else other_valid, peaks, plan, bh, t, rows)
        pairs = tl.trans(pairs) if of_keys else pairs
    at = bh.to(tl.int64) * plan.n + rows
    total = tl.zeros((plan.chunk,), plan.real)
    moved = tl.zeros((plan.chunk, plan.width), plan.real)
    for first in range(0, plan.m, plan.feature_tile):
        columns = first + tl.arange(0, plan.feature_tile)
        slopes = tl.zeros((plan.chunk, plan.feature_tile), plan.real)
        for start in range(0, plan.e, plan.value_tile):
            outputs = start + tl.arange(0, plan.value_tile)
            numbers = load_tile(right, plan, bh, rows, valid, outputs, plan.e)
            tile = load_sums(sums, plan, place, columns, outputs)
            slopes += tl.dot(numbers, tl.trans(tile), input_precision=plan.precision)
        norm = load_norms(norms, plan, place, columns)[None, :]
        if of_keys:
            slopes += norm
            if peaks.fading:
                slopes = slopes * key_factors(peaks, plan, bh, t, rows)[:, None]
        else:
            slopes = slopes * tl.load(inverse + at, mask=valid, other=0.0)[:, None]
            slopes += norm * tl.load(scale + at, mask=valid, other=0.0)[:, None]
            if peaks.fading and plan.causal:
                slopes = slopes * row_factors(peaks, plan, bh, t, rows)[:, None]
        if plan.causal:
            others = features(other, plan, bh, rows, other_valid, columns)
            slopes += tl.dot(pairs, others, input_precision=plan.precision)
        slopes = tl.where(valid[:, None], slopes, 0.0)
        if own.kind <= RELU:
            store_tile(result, plan, bh, rows, columns, plan.m, pulled_back(slopes, own, plan, bh, rows, valid, columns))
        else:
            slopes = slopes * features(own, plan, bh, rows, valid, columns)
            total += tl.sum(slopes, 1)
            if own.kind == HYPERBOLIC:
                slopes = tl.where((columns < plan.r)[None, :], slopes, -slopes)
            along = tl.trans(directions(own.turned, own, plan, bh, columns))
            moved += tl.dot(slopes, along, input_precision=plan.precision)
    if own.kind > RELU:
        inner = tl.arange(0, plan.width)
        x = load_tile(own.x, plan, bh, rows, valid, inner, plan.d)
        share = total / tl.sqrt(tl.full((plan.chunk,), plan.d, plan.real))
        store_tile(result, plan, bh, rows, inner, plan.d, moved - x * share[:, None])


@triton.jit
def pulled_back(slopes, own, plan, bh, rows, valid, columns):
    """Returns the gradients of numbers from those of features that are computed number by number."""
    if own.kind != GIVEN:
        tile = features(own, plan, bh, rows, valid, columns)
        slopes = slopes * tl.minimum(tile, 1.0) if own.kind == ELU else tl.where(tile > 0.0, slopes, 0.0)
    return slopes


@triton.jit
def back_to_values(queries, keys, gradient, inverse, peaks, plan, sums, result):
    """Writes the gradients of a chunk of values; `sums` are those of later queries."""
    bh, t = tl.program_id(0) // plan.chunks, tl.program_id(0) % plan.chunks
    place = tl.program_id(0) if plan.causal else bh
    rows = t * plan.chunk + tl.arange(0, plan.chunk)
    outputs = tl.program_id(1) * plan.value_tile + tl.arange(0, plan.value_tile)
    valid, real = rows < plan.n, real_rows(keys, plan, bh, rows)
    out = tl.zeros((plan.chunk, plan.value_tile), plan.real)
    scores = tl.zeros((plan.chunk, plan.chunk), plan.real)
    for first in range(0, plan.m, plan.feature_tile):
        columns = first + tl.arange(0, plan.feature_tile)
        tile = features(keys, plan, bh, rows, real, columns)
        out += tl.dot(tile, load_sums(sums, plan, place, columns, outputs), input_precision=plan.precision)
        if plan.causal:
            others = features(queries, plan, bh, rows, valid, columns)
            scores += tl.dot(others, tl.trans(tile), input_precision=plan.precision)
    if peaks.fading:
        out = out * key_factors(peaks, plan, bh, t, rows)[:, None]
    if plan.causal:
        scores = tl.trans(visible(scores, peaks, plan, bh, t, rows))
        numbers = load_tile(gradient, plan, bh, rows, valid, outputs, plan.e)
        numbers = numbers * tl.load(inverse + bh.to(tl.int64) * plan.n + rows, mask=valid, other=0.0)[:, None]
        out += tl.dot(scores, numbers, input_precision=plan.precision)
    store_tile(result, plan, bh, rows, outputs, plan.e, tl.where(real[:, None], out, 0.0))
