"""Blocks of a sequence for causal linear attention, each cut into chunks.

In shapes such as "t b h c d", t is the chunk of a block and c the position in the chunk; "tbh" is their product.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor

from subquad.ops.autocast import precise
from subquad.ops.linear.sums import add_block, block_length, blocks, empty_state, finite, flat_keys, kept, kept_features
from subquad.ops.scratch import Scratch
from subquad.types import FeatureFunction, Features, Maps

CHUNK = 64  # positions of a chunk, within which attention is computed by the equation
BLOCK = 256  # largest number of positions in a block; more would need more memory
WHOLE = slice(None)


class FlatState(NamedTuple):
    """A `LinearState` with batch and heads in one dimension."""

    sums: Float[Tensor, "bh m e"]
    norms: Float[Tensor, "bh m"]
    peak: Float[Tensor, "bh 1 1"]


class Fade(NamedTuple):
    """Relative factors of the parts of a chunk: powers of 2 of differences of exponents, at most 1."""

    pairs: Float[Tensor, "tbh c c"]  # factor of key j for query i; zero for j > i
    rows: Float[Tensor, "tbh c 1"]  # factor of the state before the chunk for query i
    keys: Float[Tensor, "tbh c 1"]  # factor of key j in the state after the chunk
    state: Float[Tensor, "t bh 1 1"]  # factor of the state before the chunk in the state after it


class Block(NamedTuple):
    """The chunks of a block: queries and keys, their features, values, and fades."""

    x_q: Float[Tensor, "tb h c d"]
    x_k: Float[Tensor, "tb h c d"]
    features_q: Features
    features_k: Features
    values: Float[Tensor, "tbh c e"]
    fade: Fade | None
    seen: Bool[Tensor, "tb c"] | None
    batch: int

    @property
    def queries(self) -> Float[Tensor, "tbh c m"]:
        return self.features_q.values.flatten(0, 1)

    @property
    def keys(self) -> Float[Tensor, "tbh c m"]:
        return self.features_k.values.flatten(0, 1)

    @property
    def faded_values(self) -> Float[Tensor, "tbh c e"]:
        """The values with the factors that they have in the sums."""
        return self.values if self.fade is None else self.values * self.fade.keys

    def split(self, x: Float[Tensor, "tbh c x"]) -> Float[Tensor, "t b h c x"]:
        return x.view(-1, self.batch, self.x_q.shape[1], *x.shape[1:])

    def apart(self, x: Float[Tensor, "tbh *x"]) -> Float[Tensor, "t bh *x"]:
        """Splits the chunks off as the first dimension."""
        return x.view(-1, self.batch * self.x_q.shape[1], *x.shape[1:])

    def visible(self, scores: Float[Tensor, "tbh c c"]) -> Float[Tensor, "tbh c c"]:
        """Sets the scores of future keys to zero and applies the fades, in place."""
        return scores.tril_() if self.fade is None else scores.mul_(self.fade.pairs)


def cut(x: Shaped[Tensor, "b h n d"], position: slice) -> Shaped[Tensor, "t b h c d"]:
    """Returns a view of a block, cut into chunks."""
    b, h, _, d = x.shape
    n = position.stop - position.start
    return x[:, :, position].view(b, h, -1, min(CHUNK, n), d).permute(2, 0, 1, 3, 4)


def _gather(x: Float[Tensor, "b h n d"], position: slice, scratch: Scratch) -> Float[Tensor, "tb h c d"]:
    """Returns a block cut into chunks, in the precise dtype; a view if possible."""
    part = cut(x, position)
    if len(x) == 1 and x.dtype == precise(x.dtype):
        return part[:, 0]
    return scratch.take(*part.shape).copy_(part).flatten(0, 1)


def multiply(x: Float[Tensor, "tbh c x"], y: Float[Tensor, "tbh x y"], scratch: Scratch) -> Float[Tensor, "tbh c y"]:
    """Returns the product x y in scratch memory."""
    return torch.bmm(x, y, out=scratch.take(*x.shape[:2], y.shape[2]))


def place(x: Float[Tensor, "b h n d"], position: slice, written: Tensor) -> None:
    """Writes a block that is cut into chunks into x."""
    part = cut(x, position)
    part.copy_(written.reshape(part.shape))


def runs_of(q: Float[Tensor, "b h n d"], v: Float[Tensor, "b h n e"], features: int) -> list[list[slice]]:
    """Returns the blocks of a sequence in runs; a state is saved between runs, in total half a number for each position.

    An empty batch has no blocks. Every block consists of whole chunks, except the last one, which has the remainder.
    """
    n, numbers = q.shape[2] if len(q) else 0, features * (v.shape[-1] + 1)
    whole = n - n % CHUNK
    positions = [*blocks(whole, block_length(q, features, BLOCK)), *([slice(whole, n)] if whole < n else [])]
    length = math.ceil(len(positions) / max(1, n // (2 * numbers)))
    return [positions[part] for part in blocks(len(positions), max(1, length))]


def first_state(k: Tensor, v: Tensor, phi_k: FeatureFunction, before: Sequence[Any]) -> FlatState:
    """Returns a state with batch and heads in one dimension; the empty state if `before` holds None."""
    sums, norms, peak = empty_state(k, v, phi_k) if before[0] is None else before
    return FlatState(sums.flatten(0, 1), norms.flatten(0, 1), peak.reshape(-1, 1, 1))


def states_before(
    k: Tensor, v: Tensor, phi_k: FeatureFunction, start: FlatState, keep: Tensor | None, run: list[slice], scratch: Scratch
) -> list[FlatState]:
    """Recomputes the states before each block of a run from the saved first one."""
    states = [start._replace(sums=start.sums.clone())]
    for position in run[:-1]:
        scratch.start()
        sums, norms, peak = states[-1]
        read = flat_keys(k, v, phi_k, keep, position, scratch)
        states.append(FlatState(*add_block(sums.clone(), norms.clone(), peak, *read)))
    return states


def read_block(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    maps: Maps,
    peak: Tensor,
    keep: Tensor | None,
    position: slice,
    scratch: Scratch,
) -> tuple[Block, Tensor]:
    """Returns a block and the peak after it."""
    seen = None if keep is None else cut(keep[:, None, :, None], position).flatten(0, 1)[:, 0, :, 0]
    x_q, x_k = _gather(q, position, scratch), kept(_gather(k, position, scratch), seen, WHOLE)
    features_q, features_k = maps.queries(x_q, scratch), kept_features(maps.keys, x_k, seen, WHOLE, scratch)
    values = kept(_gather(v, position, scratch), seen, WHOLE).flatten(0, 1)
    block = Block(x_q, x_k, features_q, features_k, values, None, seen, q.shape[0])
    if features_k.exponent is None:
        return block, peak
    fade, peak = _fades(block.apart(features_k.exponent.flatten(0, 1)), peak, scratch)
    return block._replace(fade=fade), peak


def _fades(exponent: Float[Tensor, "t bh c 1"], peak: Float[Tensor, "bh 1 1"], scratch: Scratch) -> tuple[Fade, Tensor]:
    """Returns the fades of the chunks in a block, and the peak after it."""
    t, heads, c, _ = exponent.shape
    running = torch.maximum(exponent.transpose(0, 1).flatten(1).cummax(1).values, peak[..., 0])
    highest = running.view(heads, t, c, 1).transpose(0, 1)
    after = highest[:, :, -1:]
    before = torch.cat([peak[None], after[:-1]])
    pairs = torch.sub(exponent.mT, finite(highest), out=scratch.take(t, heads, c, c))
    fade = Fade(
        pairs.exp2_().tril_().flatten(0, 1),  # the factor of a later key may be infinite
        torch.exp2(before - finite(highest)).flatten(0, 1),
        torch.exp2(exponent - finite(after)).flatten(0, 1),
        torch.exp2(before - finite(after)),
    )
    return fade, after[-1].clone()
