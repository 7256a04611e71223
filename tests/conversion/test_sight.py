"""What mechanisms weigh exactly, and what lies beyond it."""

import math
from typing import Any

import pytest
import torch

from subquad import Favor, Hybrid, Infinity, Learned, Linear, Linformer, Softmax
from subquad.conversion.sight import EVERYTHING, NOTHING, STRETCH, USUAL_REACH, Sight, change, far_tokens, sight_of
from subquad.ops.hybrid import reference
from subquad.tasks.mlm.masking import MaskedBatch


def batch(tokens: list[list[int]], chosen: list[list[int]]) -> MaskedBatch:
    """Texts without padding, of which some places are to be found."""
    right = torch.tensor(tokens)
    asked = torch.zeros_like(right, dtype=torch.bool)
    for row, places in enumerate(chosen):
        asked[row, places] = True
    return MaskedBatch(right, right, asked, torch.ones_like(asked))


def test_every_mechanism_says_what_it_weighs_exactly() -> None:
    assert sight_of(None) == sight_of(Softmax()) == EVERYTHING
    for attention in (Linear(Learned()), Favor(), Linformer()):
        assert sight_of(attention) == NOTHING
    assert sight_of(Hybrid(block=8)) == Sight(8, 1, 1)
    assert sight_of(Infinity(segment=16)) == Sight(16)
    assert sight_of(Infinity(segment=16, previous=True)) == Sight(16, 1)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("length", [1, 8, 13, 40])
def test_the_share_outside_is_that_of_the_matrix(length: int, causal: bool) -> None:
    near = reference.neighbours(torch.ones(1, length, dtype=torch.bool), 4)[0, 0]
    pairs = torch.ones(length, length, dtype=torch.bool)
    pairs = pairs.tril() if causal else pairs
    wanted = float((pairs & ~near).sum() / pairs.sum())
    assert Sight(4, 1, 1).outside(length, causal=causal) == pytest.approx(wanted)
    assert EVERYTHING.outside(length, causal=causal) == 0
    assert NOTHING.outside(length, causal=causal) == 1


def test_the_reach_is_the_largest_distance_within_the_window() -> None:
    near = reference.neighbours(torch.ones(1, 64, dtype=torch.bool), 4)[0, 0]
    places = torch.arange(64)
    assert Sight(4, 1, 1).reach == int((places[:, None] - places).abs()[near].max())
    assert NOTHING.reach == USUAL_REACH
    assert math.isinf(EVERYTHING.reach)


def test_far_tokens_of_a_masked_model_stand_far_away_only() -> None:
    text = [7, 1, 2, 3, 4, 5, 6, 7, 1, 9, 2]
    found = far_tokens(batch([text, text], [[7, 8, 9], [1, 8]]), 3, causal=False)
    assert found.nonzero().tolist() == [[0, 7], [0, 8]]  # 9 stands nowhere else; in the second text, both 1 are taken out
    near = [1, 5, 1, 6, 7, 8, 9, 1]
    assert not bool(far_tokens(batch([near], [[0]]), 3, causal=False).any())  # it stands within the reach, too


def test_far_tokens_of_a_causal_model_came_long_ago() -> None:
    text = torch.tensor([[7, 1, 2, 3, 4, 7, 5, 1]])
    asked = torch.ones_like(text, dtype=torch.bool)
    asked[:, -1] = False
    given = MaskedBatch(text, text.roll(-1, 1), asked, torch.ones_like(asked))
    assert far_tokens(given, 3, causal=True).nonzero().tolist() == [[0, 4], [0, 6]]  # asked there for 7 and for 1
    assert not bool(far_tokens(given, 7, causal=True).any())


def test_many_queries_are_looked_at_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = torch.randint(12, (3, 50), generator=torch.Generator().manual_seed(0)).tolist()
    given = batch(tokens, [list(range(0, 50, 3))] * 3)
    wanted = far_tokens(given, 5, causal=False)
    monkeypatch.setattr("subquad.conversion.sight.QUERIES", 7)
    assert torch.equal(far_tokens(given, 5, causal=False), wanted)
    assert bool(wanted.any())


def test_a_stretch_is_replaced_far_from_what_is_compared() -> None:
    given = batch([list(range(100, 140)), list(range(200, 240)), list(range(300, 340))], [[]] * 3)
    given.keep[2, 14:] = False  # too short
    made = change(given, 5, torch.Generator().manual_seed(0))
    assert made is not None
    assert made.before.tokens.shape == (2, 40)
    for before, after, far in zip(made.before.tokens, made.after.tokens, made.far, strict=True):
        changed = (before != after).nonzero()[:, 0]
        assert int(changed.min()) > 5
        assert int(changed.max()) < 39  # the last token ends the text
        assert STRETCH // 2 < len(changed) <= STRETCH
        places = far.nonzero()[:, 0]
        assert bool(far[0])
        assert int((places[:, None] - changed).abs().min()) > 5
    assert change(given, 40, torch.Generator()) is None


def test_padding_is_not_compared() -> None:
    given: Any = batch([list(range(30)), list(range(30))], [[], []])
    given.keep[0, 20:] = False
    made = change(given, 3, torch.Generator().manual_seed(1))
    assert made is not None
    assert not bool(made.far[0, 20:].any())
    assert torch.equal(made.after.tokens[0, 20:], given.tokens[0, 20:])
