"""Triton kernels of linear attention: features, sums of chunks, their running sums, and mixed values.

Positions are cut into chunks. Within a chunk the equation is used, across chunks sums S of phi(k_j) v_j^T and z of phi(k_j):

    out_i = rows_i phi(q_i) S + sum over j <= i in the chunk of fade_ij (phi(q_i) . phi(k_j)) v_j, over the same with 1 for v

Features with exponents are relative to peaks, the largest exponents so far, so that no power of 2 overflows: rows_i is 2 to
the peak before the chunk minus the peak at i, and fade_ij is 2 to the exponent of j minus the peak at i. A program computes
a tile of features itself, and features of elu+1, ReLU and FAVOR+ are never written to memory.

In docstrings, c is the number of positions of a chunk, and tiles have `feature_tile` columns of m, or `value_tile` of e.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl

GIVEN = tl.constexpr(0)
ELU = tl.constexpr(1)
RELU = tl.constexpr(2)
HYPERBOLIC = tl.constexpr(4)  # 3 is positive; the numbers are those of native/feature_maps.h


class View(NamedTuple):
    """A tensor "b h n x" whose last dimension is contiguous: its address and strides."""

    start: Any
    batch: int
    head: int
    row: int


class Side(NamedTuple):
    """Queries or keys: their numbers or features, and what computes features from them."""

    x: View
    omega: Any  # directions "h d r" or "d r", with factors for powers of 2
    turned: Any  # directions with factors for gradients
    omega_head: int  # stride of heads in both
    largest: Any  # largest product with a direction, "bh n"
    keep: Any  # bytes "b n", zero for padding
    keep_batch: int
    kind: tl.constexpr
    padded: tl.constexpr  # whether there is `keep`


class Peaks(NamedTuple):
    """Exponents of keys and the largest ones so far."""

    exponent: Any  # "bh n"
    before: Any  # peak before each chunk and after the last one "bh t+1", or one of all keys "bh 1"
    fading: tl.constexpr  # whether features have exponents


class Plan(NamedTuple):
    """Sizes of a call and of its tiles."""

    heads: int
    n: int  # positions of the side that programs are launched for
    d: int
    e: int
    m: int
    r: int  # directions
    chunks: int
    causal: tl.constexpr
    chunk: tl.constexpr
    width: tl.constexpr  # power of 2 from d on
    feature_tile: tl.constexpr
    value_tile: tl.constexpr
    real: tl.constexpr
    precision: tl.constexpr
    nothing: tl.constexpr  # totals below are zero


@triton.jit
def base(view, plan, bh):
    """Returns the address of the first position of a head."""
    b, h = (bh // plan.heads).to(tl.int64), (bh % plan.heads).to(tl.int64)
    return view.start + b * view.batch + h * view.head


@triton.jit
def load_tile(view, plan, bh, rows, valid, columns, width):
    """Loads a tile of positions and columns in the type of sums, with zeros outside."""
    at = base(view, plan, bh) + rows.to(tl.int64)[:, None] * view.row + columns[None, :]
    return tl.load(at, mask=valid[:, None] & (columns < width)[None, :], other=0.0).to(plan.real)


@triton.jit
def store_tile(view, plan, bh, rows, columns, width, tile):
    """Stores a tile of positions and columns."""
    at = base(view, plan, bh) + rows.to(tl.int64)[:, None] * view.row + columns[None, :]
    inside = (rows < plan.n)[:, None] & (columns < width)[None, :]
    tl.store(at, tile.to(view.start.dtype.element_ty), mask=inside)


@triton.jit
def directions(omega, side, plan, bh, columns):
    """Loads a tile "width features" of directions; the second half of hyperbolic features has the same ones as the first."""
    inner = tl.arange(0, plan.width)
    source = columns
    if side.kind == HYPERBOLIC:
        source = tl.where(columns < plan.r, columns, columns - plan.r)
    at = omega + (bh % plan.heads) * side.omega_head + inner[:, None] * plan.r + source[None, :]
    return tl.load(at, mask=(inner < plan.d)[:, None] & (columns < plan.m)[None, :], other=0.0)


@triton.jit
def real_rows(side, plan, bh, rows):
    """Whether positions are inside of the sequence and not padding."""
    valid = rows < plan.n
    if side.padded:
        at = side.keep + (bh // plan.heads).to(tl.int64) * side.keep_batch + rows
        valid = valid & (tl.load(at, mask=valid, other=0) != 0)
    return valid


@triton.jit
def features(side, plan, bh, rows, valid, columns):
    """Returns a tile of features relative to 2^exponent, with zeros outside."""
    if side.kind <= RELU:
        x = load_tile(side.x, plan, bh, rows, valid, columns, plan.m)
        if side.kind == ELU:
            x = tl.exp(tl.minimum(x, 0.0)) + tl.maximum(x, 0.0)
        elif side.kind == RELU:
            x = tl.maximum(x, 0.0)
    else:
        inner = load_tile(side.x, plan, bh, rows, valid, tl.arange(0, plan.width), plan.d)
        x = tl.dot(inner, directions(side.omega, side, plan, bh, columns), input_precision=plan.precision)
        if side.kind == HYPERBOLIC:
            x = tl.where((columns < plan.r)[None, :], x, -x)
        largest = tl.load(side.largest + bh.to(tl.int64) * plan.n + rows, mask=valid, other=0.0)
        x = tl.exp2(tl.where(valid[:, None] & (columns < plan.m)[None, :], x - largest[:, None], 0.0))
    return tl.where(valid[:, None] & (columns < plan.m)[None, :], x, 0.0)


@triton.jit
def exponents(peaks, plan, bh, rows):
    """Loads the exponents of keys; -inf outside of the sequence."""
    return tl.load(peaks.exponent + bh.to(tl.int64) * plan.n + rows, mask=rows < plan.n, other=-float("inf"))


@triton.jit
def finite(peak):
    """Replaces -inf, which stands for no key yet, by 0, so that it can be subtracted."""
    return tl.where(peak == -float("inf"), 0.0, peak)


@triton.jit
def peak_before(peaks, plan, bh, t):
    """Loads the peak before a chunk; that of all keys in the bidirectional form."""
    at = bh.to(tl.int64) * (plan.chunks + 1) + t if plan.causal else bh.to(tl.int64)
    return tl.load(peaks.before + at)


@triton.jit
def row_peaks(peaks, plan, bh, t, rows):
    """Returns the largest exponent that each position sees: before its chunk, and in the chunk up to itself."""
    order = tl.arange(0, plan.chunk)
    seen = tl.where(order[None, :] <= order[:, None], exponents(peaks, plan, bh, rows)[None, :], -float("inf"))
    return tl.maximum(tl.max(seen, 1), peak_before(peaks, plan, bh, t))


@triton.jit
def row_factors(peaks, plan, bh, t, rows):
    """Returns the factors of the state before a chunk for its positions."""
    return tl.exp2(peak_before(peaks, plan, bh, t) - finite(row_peaks(peaks, plan, bh, t, rows)))


@triton.jit
def key_factors(peaks, plan, bh, t, rows):
    """Returns the factors of keys in the state after their chunk, or in the sums over all keys."""
    after = peak_before(peaks, plan, bh, t + 1)
    return tl.exp2(exponents(peaks, plan, bh, rows) - finite(after))


@triton.jit
def visible(pairs, peaks, plan, bh, t, rows):
    """Applies fade_ij to pairs "c c" of a chunk, and sets those of later keys to zero."""
    order = tl.arange(0, plan.chunk)
    earlier = order[None, :] <= order[:, None]
    if peaks.fading:
        peak = finite(row_peaks(peaks, plan, bh, t, rows))
        apart = exponents(peaks, plan, bh, rows)[None, :] - peak[:, None]
        pairs = pairs * tl.exp2(tl.where(earlier, apart, -float("inf")))
    return tl.where(earlier, pairs, 0.0)


@triton.jit
def load_sums(sums, plan, place, rows, columns):
    """Loads a tile "features values" of sums "m e" number `place`."""
    at = sums + place.to(tl.int64) * plan.m * plan.e + rows[:, None] * plan.e + columns[None, :]
    return tl.load(at, mask=(rows < plan.m)[:, None] & (columns < plan.e)[None, :], other=0.0)


@triton.jit
def load_norms(norms, plan, place, columns):
    """Loads a tile of norms "m" number `place`."""
    return tl.load(norms + place.to(tl.int64) * plan.m + columns, mask=columns < plan.m, other=0.0)


@triton.jit
def largest_products(side, plan, largest, squared):
    """Writes the largest product of each position with a direction, and its squared norm."""
    bh, t = tl.program_id(0) // plan.chunks, tl.program_id(0) % plan.chunks
    rows = t * plan.chunk + tl.arange(0, plan.chunk)
    x = load_tile(side.x, plan, bh, rows, real_rows(side, plan, bh, rows), tl.arange(0, plan.width), plan.d)
    best = tl.full((plan.chunk,), -float("inf"), plan.real)
    for first in range(0, plan.r, plan.feature_tile):
        columns = first + tl.arange(0, plan.feature_tile)
        products = tl.dot(x, directions(side.omega, side, plan, bh, columns), input_precision=plan.precision)
        if side.kind == HYPERBOLIC:
            products = tl.abs(products)
        best = tl.maximum(best, tl.max(tl.where((columns < plan.r)[None, :], products, -float("inf")), 1))
    at = bh.to(tl.int64) * plan.n + rows
    tl.store(largest + at, best, mask=rows < plan.n)
    tl.store(squared + at, tl.sum(x * x, 1), mask=rows < plan.n)


@triton.jit
def sum_chunks(side, right, inverse, scale, peaks, plan, sums, norms, spans, chunks_each, of_keys: tl.constexpr):
    """Writes the sums of a span of chunks: of phi(k_j) v_j^T and phi(k_j), or of phi(q_i) G_i^T and phi(q_i) e_i.

    G_i, the gradient of a numerator, is that of the result times `inverse`; e_i, that of a denominator, is `scale`.
    """
    bh, span = tl.program_id(0) // spans, tl.program_id(0) % spans
    columns = tl.program_id(1) * plan.feature_tile + tl.arange(0, plan.feature_tile)
    outputs = tl.program_id(2) * plan.value_tile + tl.arange(0, plan.value_tile)
    total = tl.zeros((plan.feature_tile, plan.value_tile), plan.real)
    norm = tl.zeros((plan.feature_tile,), plan.real)
    for t in range(span * chunks_each, tl.minimum((span + 1) * chunks_each, plan.chunks)):
        rows = t * plan.chunk + tl.arange(0, plan.chunk)
        valid = real_rows(side, plan, bh, rows)
        tile = features(side, plan, bh, rows, valid, columns)
        numbers = load_tile(right, plan, bh, rows, valid, outputs, plan.e)
        if of_keys:
            if peaks.fading:
                tile = tile * key_factors(peaks, plan, bh, t, rows)[:, None]
            norm += tl.sum(tile, 0)
        else:
            at = bh.to(tl.int64) * plan.n + rows
            numbers = numbers * tl.load(inverse + at, mask=valid, other=0.0)[:, None]
            if peaks.fading and plan.causal:
                tile = tile * row_factors(peaks, plan, bh, t, rows)[:, None]
            norm += tl.sum(tile * tl.load(scale + at, mask=valid, other=0.0)[:, None], 0)
        total += tl.dot(tl.trans(tile), numbers, input_precision=plan.precision)
    place = tl.program_id(0).to(tl.int64)
    at = sums + place * plan.m * plan.e + columns[:, None] * plan.e + outputs[None, :]
    tl.store(at, total, mask=(columns < plan.m)[:, None] & (outputs < plan.e)[None, :])
    if tl.program_id(2) == 0:
        tl.store(norms + place * plan.m + columns, norm, mask=columns < plan.m)


@triton.jit
def scan(terms, fades, start, end, steps, size, reverse: tl.constexpr, fading: tl.constexpr, block: tl.constexpr):
    """Replaces each term by the sum of those before it (after it, if reversed), faded; writes the sum over all."""
    bh = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * block + tl.arange(0, block)
    inside = columns < size
    total = tl.load(start + bh * size + columns, mask=inside, other=0.0)
    for i in range(steps):
        t = steps - 1 - i if reverse else i
        at = terms + (bh * steps + t) * size + columns
        term = tl.load(at, mask=inside, other=0.0)
        tl.store(at, total, mask=inside)
        if fading:
            total = total * tl.load(fades + bh * steps + t)
        total += term
    tl.store(end + bh * size + columns, total, mask=inside)


@triton.jit
def mix(queries, keys, v, peaks, plan, sums, norms, mixed, inverse):
    """Writes the mixed values of a chunk of queries, and 1 / denominators."""
    bh, t = tl.program_id(0) // plan.chunks, tl.program_id(0) % plan.chunks
    place = tl.program_id(0) if plan.causal else bh
    rows = t * plan.chunk + tl.arange(0, plan.chunk)
    outputs = tl.program_id(1) * plan.value_tile + tl.arange(0, plan.value_tile)
    valid = rows < plan.n
    real = real_rows(keys, plan, bh, rows) if plan.causal else valid
    out = tl.zeros((plan.chunk, plan.value_tile), plan.real)
    scores = tl.zeros((plan.chunk, plan.chunk), plan.real)
    total = tl.zeros((plan.chunk,), plan.real)
    for first in range(0, plan.m, plan.feature_tile):
        columns = first + tl.arange(0, plan.feature_tile)
        tile = features(queries, plan, bh, rows, valid, columns)
        out += tl.dot(tile, load_sums(sums, plan, place, columns, outputs), input_precision=plan.precision)
        total += tl.sum(tile * load_norms(norms, plan, place, columns)[None, :], 1)
        if plan.causal:
            others = features(keys, plan, bh, rows, real, columns)
            scores += tl.dot(tile, tl.trans(others), input_precision=plan.precision)
    if plan.causal:
        if peaks.fading:
            factors = row_factors(peaks, plan, bh, t, rows)
            out, total = out * factors[:, None], total * factors
        scores = visible(scores, peaks, plan, bh, t, rows)
        total += tl.sum(scores, 1)
        out += tl.dot(scores, load_tile(v, plan, bh, rows, real, outputs, plan.e), input_precision=plan.precision)
    zero = (tl.abs(total) < plan.nothing) | (total == 0.0)
    factor = tl.where(zero, 0.0, 1.0 / tl.where(zero, 1.0, total))
    store_tile(mixed, plan, bh, rows, outputs, plan.e, out * factor[:, None])
    if tl.program_id(1) == 0:
        tl.store(inverse + bh.to(tl.int64) * plan.n + rows, factor, mask=valid)
