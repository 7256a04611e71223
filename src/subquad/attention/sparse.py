"""Exact attention over a sparse pattern of blocks: neighbouring, global and random blocks, strides, or any block mask."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from subquad.attention.base import Mechanism
from subquad.attention.checks import COUNTS, Part, as_state, check_inputs, check_result, check_state, held_like, reusable
from subquad.attention.patterns import BlockPattern, Fixed, Given, Mixture, Strided
from subquad.attention.window import attend_everywhere, checked_as_well
from subquad.checking import Count, Whole, Words, excerpt
from subquad.errors import OptionError, SubquadError
from subquad.ops import reference, sparse
from subquad.ops.autocast import without_autocast
from subquad.ops.packing import Packed, pack, unpack
from subquad.ops.sparse import reference as sparse_reference
from subquad.types import AttentionOptions, Keep, Keys, MechanismSize, Mixed, Queries, Traits, Values, up_to

PatternName = Literal["mixture", "strided", "fixed", "given"]
_TIMES = {"mixture": "L c B d", "strided": "L^2 d / s + L s B d", "fixed": "L^2 d / s + L s B d", "given": "L c B d"}


@dataclass(frozen=True)
class Sparse(AttentionOptions):
    """Exact attention to some blocks of keys, chosen by a pattern; blocks that do not count cost nothing."""

    pattern: PatternName = "mixture"  # mixture: as in BigBird; strided, fixed: as in Sparse Transformer; given: `blocks`
    block: Count = 64  # block length in positions
    near: Whole = 1  # mixture: blocks on each side of a query's own that it sees; the causal form has those before it
    global_blocks: Whole = 2  # mixture: the first blocks, which all others see and which see all others
    random_blocks: Whole = 3  # mixture: further blocks that each block sees, drawn when the mechanism is built
    stride: Count = 8  # strided, fixed: blocks in a stride
    summary: Count = 1  # fixed: blocks at the end of each stride that all see
    blocks: Words = ""  # given: a row of 0 and 1 for each block of queries, such as 100/110/011, where 1 is a block it sees
    kind: str = field(default="sparse", init=False)

    def check(self) -> None:
        if self.summary > self.stride:
            raise OptionError("summary", f"must be at most the stride, {self.stride}, but is {self.summary}")
        if self.pattern != "given":
            if self.blocks:
                raise OptionError("blocks", f"goes with the pattern given only, but the pattern is {self.pattern}")
            return
        rows = self.blocks.split("/")
        if any(len(row) != len(rows) or set(row) - {"0", "1"} for row in rows):
            raise OptionError(
                "blocks",
                "must be a square of 0 and 1, with a slash between its rows, such as 100/110/011, but is "
                f"{excerpt(self.blocks)}",
            )

    @property
    def traits(self) -> Traits:
        return Traits(
            exact=False,
            time=_TIMES[self.pattern],
            space="L d",
            gives_up="pairs of blocks outside of its pattern are not seen, except through further layers; its decoding "
            "state grows with the length",
            constant_state=False,
            max_length=self.block * (self.blocks.count("/") + 1) if self.pattern == "given" else None,
            aligned=True,
            has_weights=True,
        )

    def choices(self, length: int) -> Mapping[str, Sequence[Any]]:
        return {"block": up_to(length // 4, (4, 8, 16, 32, 64))}

    def size(self, *, heads: int, head_dim: int) -> MechanismSize:
        drawn = self.pattern == "mixture" and self.random_blocks > 0
        rows = self.blocks.split("/") if self.pattern == "given" else []
        table = len(rows) * max([1, *(row.count("1") for row in rows)])
        return MechanismSize(int(drawn) + table, 0, derived=table)

    def build(self, *, heads: int, head_dim: int, generator: torch.Generator | None = None) -> "SparseAttention":
        return SparseAttention(self, self._built_pattern(generator), heads, head_dim)

    def _built_pattern(self, generator: torch.Generator | None) -> BlockPattern:
        match self.pattern:
            case "mixture":
                return Mixture(self.near, self.global_blocks, self.random_blocks, generator)
            case "strided":
                return Strided(self.stride)
            case "fixed":
                return Fixed(self.stride, self.summary)
            case "given":
                return Given([[at for at, mark in enumerate(row) if mark == "1"] for row in self.blocks.split("/")])


class SparseState(NamedTuple):
    """All keys and values so far; it grows with every position."""

    keys: Tensor  # b h s d, real positions first, then zeros
    values: Tensor  # b h s e
    seen: Tensor  # b, number of real positions


class SparseAttention(Mechanism):
    """softmax(q k^T / sqrt d) v over the keys of the blocks that a query's block sees."""

    options: Sparse

    def __init__(self, options: Sparse, pattern: BlockPattern, heads: int, head_dim: int) -> None:
        super().__init__(options, heads, head_dim)
        self.pattern = pattern

    def forward(self, q: Queries, k: Keys, v: Values, *, keep: Keep | None = None) -> Mixed:
        """Attends in both directions. With as many queries as keys, positions correspond; otherwise every key is seen."""
        check_inputs(q, k, v, keep, heads=self.heads, head_dim=self.head_dim)
        with without_autocast(q):
            if q.shape[2] != k.shape[2]:
                return attend_everywhere(q, k, v, keep)
            self._check_length(k.shape[2])
            packed = pack(q, k, v, keep)
            mixed, normaliser = sparse.attend(packed, self.pattern, self.options.block, causal=False)
            mixed = unpack(packed, mixed)
        return check_result(mixed.to(v.dtype), q, k, v, *checked_as_well(normaliser, q, (k, v)))

    def causal(
        self, q: Queries, k: Keys, v: Values, state: SparseState | None = None, *, keep: Keep | None = None
    ) -> tuple[Mixed, SparseState]:
        check_inputs(q, k, v, keep, heads=self.heads, head_dim=self.head_dim, causal=True)
        before = None if state is None else self._checked(state, v)
        with without_autocast(q):
            packed, skipped, first = pack(q, k, v, keep), 0, None
            if before is not None:
                packed, skipped = self._continued(q, k, v, before, keep), before.keys.shape[2]
                first = None if torch.compiler.is_compiling() else before.seen.tolist()
            self._check_length(packed.k.shape[2])
            mixed, normaliser = sparse.attend(packed, self.pattern, self.options.block, causal=True, first=first)
            mixed = unpack(packed, mixed)[:, :, skipped:]
        also = checked_as_well(normaliser, q, (packed.k, packed.v))
        return check_result(mixed.to(v.dtype), q, k, v, *also, state=before), SparseState(packed.k, packed.v, packed.total)

    def step(
        self, q: Queries, k: Keys, v: Values, state: SparseState | None = None, *, reuse: bool = False
    ) -> tuple[Mixed, SparseState]:
        """Attends from one position, to the blocks that it sees. The state grows, so `reuse` has no effect."""
        check_inputs(q, k, v, None, heads=self.heads, head_dim=self.head_dim, causal=True)
        state = None if state is None else self._checked(state, v)
        if reuse:
            reusable(self, state, q, k, v)
        if state is None or q.shape[2] != 1:
            return self.causal(q, k, v, state)
        self._check_length(state.keys.shape[2] + 1)
        with without_autocast(q):
            packed = self._continued(q, k, v, state, None)
            mixed = sparse.attend_one(q, packed.k, packed.v, state.seen, self.pattern, self.options.block)
        after = SparseState(packed.k, packed.v, packed.total)
        return check_result(mixed.to(v.dtype), q, k, v, *checked_as_well(None, q, after), state=state), after

    def remember(self, k: Keys, v: Values, *, keep: Keep | None = None) -> SparseState:
        """Returns the keys and values as a state, without computing attention."""
        packed = pack(k, k, v, keep)
        return SparseState(packed.k, packed.v, packed.total)

    def weights(
        self, q: Queries, k: Keys, *, keep: Keep | None = None, causal: bool = False, places: Tensor | None = None
    ) -> Tensor:
        """Returns the attention matrix for analysis, or only the rows of the queries at `places`."""
        check_inputs(q, k, k, keep, heads=self.heads, head_dim=self.head_dim, causal=causal)
        if keep is not None:
            k = k.masked_fill(~keep[:, None, :, None], 0.0)
        if q.shape[2] != k.shape[2]:
            return reference.softmax_weights(q, k, keep, causal, places)
        self._check_length(k.shape[2])
        kept = torch.ones(1, k.shape[2], dtype=torch.bool, device=k.device) if keep is None else keep
        seen = sparse_reference.visible(self.pattern, kept, self.options.block, causal=causal)
        return reference.masked_weights(q, k, seen, places)

    def _continued(self, q: Tensor, k: Tensor, v: Tensor, state: SparseState, keep: Tensor | None) -> Packed:
        """Packs the positions of a state together with new ones."""
        held = state.keys.shape[2]
        q = F.pad(q, (0, 0, held, 0))
        k, v = (torch.cat([old.to(x.dtype), x], dim=2) for old, x in ((state.keys, k), (state.values, v)))
        if keep is None and not torch.compiler.is_compiling() and bool((state.seen == held).all()):
            return pack(q, k, v, None)
        new = torch.ones(len(q), q.shape[2] - held, dtype=torch.bool, device=q.device) if keep is None else keep
        old = torch.arange(held, device=q.device) < state.seen[:, None]
        return pack(q, k, v, torch.cat([old, new], dim=1))

    def _check_length(self, length: int) -> None:
        longest = self.traits.max_length
        if longest is None:
            return
        advice = "give more rows of blocks, or longer blocks"
        if torch.compiler.is_compiling():  # a graph for any length checks it at each call
            is_short = torch.scalar_tensor(length, dtype=torch.int64) <= longest
            torch._assert_async(is_short, f"k has more positions than the {longest} that the given blocks cover: {advice}")
        elif length > longest:
            raise SubquadError(f"k has {length} positions, but the given blocks cover {longest}: {advice}")

    def _checked(self, state: SparseState, v: Tensor) -> SparseState:
        state = as_state(SparseState, state)
        s, types = state.keys.shape[2] if state.keys.ndim == 4 else 0, held_like(v)
        shape = (len(v), self.heads, s)
        held = {"keys": Part((*shape, self.head_dim), types), "values": Part((*shape, v.shape[3]), types)}
        check_state(state, v, {**held, "seen": Part((len(v),), COUNTS)})
        return state
