"""Triton kernel of a decoding step of linear attention: a program for each head updates the state and reads it once."""

import triton
import triton.language as tl

from subquad.ops.linear.gpu.kernels import ELU, HYPERBOLIC, RELU, base, directions, finite


@triton.jit
def load_row(view, plan, bh, columns, width):
    """Loads columns of the one position in the type of sums, with zeros outside."""
    return tl.load(base(view, plan, bh) + columns, mask=columns < width, other=0.0).to(plan.real)


@triton.jit
def products(side, plan, bh, columns):
    """Returns the products of the position with directions; negated ones for the second half of hyperbolic features."""
    x = load_row(side.x, plan, bh, tl.arange(0, plan.width), plan.d)
    along = tl.sum(x[:, None] * directions(side.omega, side, plan, bh, columns), 0)
    if side.kind == HYPERBOLIC:
        along = tl.where(columns < plan.r, along, -along)
    return along


@triton.jit
def largest_product(side, plan, bh):
    """Returns the logarithm of the largest feature of the position, without the part of its norm."""
    best = tl.full((plan.feature_tile,), -float("inf"), plan.real)
    for first in range(0, plan.m, plan.feature_tile):
        columns = first + tl.arange(0, plan.feature_tile)
        best = tl.maximum(best, tl.where(columns < plan.m, products(side, plan, bh, columns), -float("inf")))
    return tl.max(best, 0)


@triton.jit
def row_features(side, plan, bh, columns, largest):
    """Returns features of the position, with zeros outside."""
    if side.kind <= RELU:
        x = load_row(side.x, plan, bh, columns, plan.m)
        if side.kind == ELU:
            x = tl.exp(tl.minimum(x, 0.0)) + tl.maximum(x, 0.0)
        elif side.kind == RELU:
            x = tl.maximum(x, 0.0)
    else:
        x = tl.exp2(products(side, plan, bh, columns) - largest)
    return tl.where(columns < plan.m, x, 0.0)


@triton.jit
def key_exponent(keys, peaks, plan, bh, largest, norm_factor, level):
    """Returns the exponent of the key: that of FAVOR+, or the one that is given with its features."""
    if keys.kind > RELU:
        x = load_row(keys.x, plan, bh, tl.arange(0, plan.width), plan.d)
        exponent = largest - tl.sum(x * x, 0) * norm_factor - level
    else:
        exponent = tl.load(peaks.exponent + bh)
    return exponent


@triton.jit
def step(queries, keys, v, peaks, plan, before, after, mixed, norm_factor, level):
    """Adds the position's key to the state `before`, writes the state `after`, and reads it with the position's query."""
    bh = tl.program_id(0).to(tl.int64)
    outputs = tl.arange(0, plan.value_tile)
    value = load_row(v, plan, bh, outputs, plan.e)
    largest_q = largest_product(queries, plan, bh) if queries.kind > RELU else 0.0
    largest_k = largest_product(keys, plan, bh) if keys.kind > RELU else 0.0
    old = tl.load(before.peak + bh)
    higher = old
    if peaks.fading:
        exponent = key_exponent(keys, peaks, plan, bh, largest_k, norm_factor, level)
        higher = tl.maximum(old, exponent)
        fade, share = tl.exp2(old - finite(higher)), tl.exp2(exponent - finite(higher))
    tl.store(after.peak + bh, higher)
    out = tl.zeros((plan.value_tile,), plan.real)
    total = tl.zeros((plan.feature_tile,), plan.real)
    for first in range(0, plan.m, plan.feature_tile):
        columns = first + tl.arange(0, plan.feature_tile)
        key = row_features(keys, plan, bh, columns, largest_k)
        inside = columns < plan.m
        at, norm_at = (bh * plan.m + columns)[:, None] * plan.e + outputs[None, :], bh * plan.m + columns
        tile = tl.load(before.sums + at, mask=inside[:, None] & (outputs < plan.e)[None, :], other=0.0)
        norm = tl.load(before.norms + norm_at, mask=inside, other=0.0)
        if peaks.fading:
            tile, norm, key = tile * fade, norm * fade, key * share
        tile, norm = tile + key[:, None] * value[None, :], norm + key
        tl.store(after.sums + at, tile, mask=inside[:, None] & (outputs < plan.e)[None, :])
        tl.store(after.norms + norm_at, norm, mask=inside)
        query = row_features(queries, plan, bh, columns, largest_q)
        out += tl.sum(query[:, None] * tile, 0)
        total += query * norm
    whole = tl.sum(total, 0)
    zero = (tl.abs(whole) < plan.nothing) | (whole == 0.0)
    out = out * tl.where(zero, 0.0, 1.0 / tl.where(zero, 1.0, whole))
    tl.store(base(mixed, plan, bh) + outputs, out.to(mixed.start.dtype.element_ty), mask=outputs < plan.e)
