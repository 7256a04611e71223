"""Calls in any order are one sequence: steps, pieces of any length, and a state that is continued in two ways."""

from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from subquad.attention import Linear
from subquad.feature_maps import FEATURE_MAPS
from tests.attention.cases import CASES, CAUSAL, build, equation, gradients, inputs, variants_are_slow


class Piece(NamedTuple):
    """Consecutive positions: read by one call of `causal`, or by `step` one after the other."""

    form: str
    length: int
    padded: bool

    def keep(self, generator: torch.Generator) -> Tensor:
        """Which keys are real, for a batch of two."""
        drawn = torch.rand(2, self.length, generator=generator) > 0.4
        return drawn if self.padded else torch.ones_like(drawn)


CAUSAL_PIECES = st.builds(Piece, st.just("causal"), st.integers(0, 3) | st.integers(4, 90), st.booleans())
STEPS = st.builds(Piece, st.just("step"), st.integers(1, 20), st.just(False))
PLANS = st.lists(STEPS | CAUSAL_PIECES, max_size=3)


class Stream(NamedTuple):
    """What a plan reads, and which keys of it are real."""

    q: Tensor
    k: Tensor
    v: Tensor
    keep: Tensor

    def then(self, other: "Stream") -> "Stream":
        """This and the other, one behind the other."""
        return Stream(*(torch.cat(parts, dim=1 if parts[0].ndim == 2 else 2) for parts in zip(self, other, strict=True)))


def stream(plan: list[Piece], seed: int) -> Stream:
    generator = torch.Generator().manual_seed(seed)
    keep = [piece.keep(generator) for piece in plan]
    q, k, v = inputs(sum(piece.length for piece in plan), seed=seed)
    return Stream(q, k, v, torch.cat([torch.ones(2, 0, dtype=torch.bool), *keep], dim=1))


def follow(attend: Any, plan: list[Piece], given: Stream, state: Any) -> tuple[Tensor, Any]:
    """All that the calls of a plan give, and the state after them."""
    parts, start = [given.v[:, :, :0]], 0
    for piece in plan:
        for length in [1] * piece.length if piece.form == "step" else [piece.length]:
            q, k, v = (x[:, :, start : start + length] for x in given[:3])
            if piece.form == "step":
                mixed, state = attend.step(q, k, v, state)
            else:
                keep = given.keep[:, start : start + length] if piece.padded else None
                mixed, state = attend.causal(q, k, v, state, keep=keep)
            parts.append(mixed)
            start += length
    return torch.cat(parts, dim=2), state


@pytest.mark.parametrize("name", variants_are_slow(CAUSAL))
@settings(max_examples=10)
@given(trunk=PLANS, branches=st.tuples(PLANS, PLANS))
@example(
    trunk=[Piece("step", 3, False)],
    branches=([Piece("causal", 70, True), Piece("step", 5, False)], [Piece("step", 2, False)]),
)
def test_calls_in_any_order_are_one_sequence(
    name: str, trunk: list[Piece], branches: tuple[list[Piece], list[Piece]]
) -> None:
    """In values, and in the gradients of queries, keys, values and weights, against the equation over the whole."""
    attend = build(name)
    root = stream(trunk, seed=1)
    begun, state = follow(attend, trunk, root, None)
    found, of = [begun], [*root[:3], *attend.parameters()]
    wanted: list[Tensor] = []
    for seed, plan in enumerate(branches, start=2):
        branch = stream(plan, seed)
        found.append(follow(attend, plan, branch, state)[0])
        head, tail = equation(attend, *root.then(branch), causal=True).tensor_split([begun.shape[2]], dim=2)
        wanted += [tail] if wanted else [head, tail]
        of += branch[:3]
    tight = 1e-6 if "trigonometric" in name else 1e-8  # its denominators come close to zero
    assert_close(found, wanted, rtol=tight, atol=tight)
    got, right = (gradients(torch.cat(parts, dim=2), *of) for parts in (found, wanted))
    assert_close(got, right, rtol=1e-5, atol=10 * tight)


def test_every_feature_map_has_plans() -> None:
    tested = {options.feature_map.kind for name, options in CASES.items() if name in CAUSAL and isinstance(options, Linear)}
    assert tested == set(FEATURE_MAPS)
