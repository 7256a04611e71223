"""What is taken out."""

import numpy as np
import pytest
import torch

from subquad.errors import SubquadError
from subquad.tasks.mlm.corpus import Windows
from subquad.tasks.mlm.masking import MaskedBatch, Masking, choose
from subquad.tasks.mlm.task import Mlm
from subquad.tasks.mlm.vocabulary import FIRST, MASK

SIZE = 50


def windows(rows: int = 200, length: int = 40, word: int = 4) -> Windows:
    """Words of so many tokens; rows end anywhere."""
    rng = np.random.default_rng(0)
    keep = np.arange(length) < rng.integers(length // 2, length + 1, size=(rows, 1))
    tokens = np.where(keep, rng.integers(FIRST, SIZE, size=(rows, length)), 0)
    starts = np.tile(np.arange(length) % word == 0, (rows, 1)) | ~keep
    return Windows(*(torch.from_numpy(part) for part in (tokens, starts, keep)))


def masked(masking: Masking, seed: int = 0) -> MaskedBatch:
    return masking.mask(windows(), SIZE, torch.Generator().manual_seed(seed))


def test_the_share_of_each_row_is_found_and_nothing_else_changes() -> None:
    batch = masked(Masking(0.15, 0.8, 0.1, whole_words=False))
    lengths = batch.keep.sum(1)
    assert torch.equal(batch.chosen.sum(1), (0.15 * lengths).round().long())
    assert not (batch.chosen & ~batch.keep).any()
    assert torch.equal(batch.tokens[~batch.chosen], batch.right[~batch.chosen])
    seen, right = batch.tokens[batch.chosen], batch.right[batch.chosen]
    assert float((seen == MASK).float().mean()) == pytest.approx(0.8, abs=0.04)
    others = seen[(seen != MASK) & (seen != right)]
    assert len(others) / len(seen) == pytest.approx(0.1, abs=0.03)
    assert others.min() >= FIRST
    where = batch.chosen.float().sum(0)[:20]  # every position alike
    assert where.min() > 0.4 * where.mean()


def test_the_same_generator_takes_out_the_same() -> None:
    masking = Masking(0.15, 0.8, 0.1, whole_words=True)
    one, same, other = masked(masking), masked(masking), masked(masking, seed=1)
    assert all(torch.equal(first, second) for first, second in zip(one, same, strict=True))
    assert not torch.equal(one.chosen, other.chosen)


def test_whole_words_go_together() -> None:
    given = windows()
    batch = masked(Masking(0.15, 1.0, 0.0, whole_words=True))
    words = given.starts.cumsum(1)
    for row in range(len(words)):
        for word in words[row][batch.chosen[row]].unique():
            assert batch.chosen[row][(words[row] == word) & batch.keep[row]].all()
    share = float(batch.chosen.sum() / batch.keep.sum())
    assert share == pytest.approx(0.15, abs=0.02)
    assert (batch.tokens[batch.chosen] == MASK).all()


def test_one_word_at_least() -> None:
    words = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 2, 3, 4, 5, 6]])
    keep = torch.tensor([[True] * 6, [True, True, False, False, False, False]])
    chosen = choose(words, keep, 0.01, torch.Generator().manual_seed(0))
    assert chosen.sum(1).tolist() == [6, 1]
    assert not chosen[1, 2:].any()


@pytest.mark.parametrize(
    ("shares", "message"),
    [
        ({"mask_share": 0.0}, "mask_share must be positive, but is 0.0"),
        ({"mask_share": 1.0}, "mask_share must be below 1, but is 1.0"),
        ({"blank_share": 0.8, "random_share": 0.3}, "must add up to at most 1, but are 0.8 and 0.3"),
        ({"blank_share": -0.1}, "blank_share must be 0 or more, but is -0.1"),
    ],
)
def test_shares_out_of_range_are_refused(shares: dict[str, float], message: str) -> None:
    with pytest.raises(SubquadError, match=message):
        Mlm(**shares)  # type: ignore[arg-type]
