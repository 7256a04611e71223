"""The sorting task: what is drawn, what is right, what it costs to be wrong."""

import itertools

import pytest
import torch
from torch import Tensor, nn

from subquad import SubquadError
from subquad.tasks import Sorting

TASK = Sorting(length=400, symbols=5)


class Saying(nn.Module):
    """A model that gives each symbol a fixed score."""

    def __init__(self, scores: Tensor) -> None:
        super().__init__()
        self.scores = nn.Parameter(scores)

    def forward(self, tokens: Tensor, last: int) -> Tensor:
        assert last == 1
        assert (tokens[:, -1] == len(self.scores) - 1).all()  # the token that asks stands at the end
        return self.scores.expand(len(tokens), 1, -1)


def test_orders_are_those_of_the_counts() -> None:
    batch = TASK.batch(20, torch.Generator().manual_seed(0))
    assert batch.symbols.shape == (20, 399)
    for symbols, order in zip(*batch, strict=True):
        counts = [int((symbols == symbol).sum()) for symbol in range(5)]
        assert order.tolist() == sorted(range(5), key=lambda symbol: (-counts[symbol], symbol))


def test_probabilities_drift_so_that_the_end_misleads() -> None:
    """The last tenth gives an order that is wrong far more often than that of a tenth from everywhere."""
    batch = Sorting(length=4096).batch(50, torch.Generator().manual_seed(0))
    ends = Sorting()._order(batch.symbols[:, -410:])
    spread = Sorting()._order(batch.symbols[:, ::10])
    assert (ends == batch.order).float().mean() < 0.6 * (spread == batch.order).float().mean()


def test_the_loss_is_the_likelihood_of_naming_them_in_turn() -> None:
    scores = torch.tensor([0.3, -1.0, 2.0, 0.0, 0.5, 9.0])
    model, batch = Saying(scores), TASK.batch(1, torch.Generator().manual_seed(3))
    total = 0.0
    for orders in itertools.permutations(range(5)):  # a distribution over orders: it sums to one
        given = batch._replace(order=torch.tensor([orders]))
        total += float(torch.exp(-TASK.loss(model, given).total.detach()))
    assert total == pytest.approx(1.0, abs=1e-5)
    left, wanted = list(range(5)), 0.0
    for symbol in batch.order[0].tolist():
        wanted -= float(scores[symbol] - torch.logsumexp(scores[left], 0))
        left.remove(symbol)
    assert float(TASK.loss(model, batch).total.detach()) == pytest.approx(wanted, rel=1e-5)


def test_a_model_that_knows_is_right() -> None:
    batch = TASK.batch(1, torch.Generator().manual_seed(3))
    model = Saying(torch.cat([-batch.order[0].argsort().float(), torch.tensor([9.0])]))
    assert torch.equal(TASK.answer(model, batch.symbols), batch.order)
    backwards = Saying(torch.cat([batch.order[0].argsort().float(), torch.tensor([9.0])]))
    assert torch.equal(TASK.answer(backwards, batch.symbols), batch.order.flip(1))


def test_accuracy_counts_places() -> None:
    generator = torch.Generator().manual_seed(1)
    found = Sorting(length=400, symbols=5, held_out=40).evaluate(Saying(torch.zeros(6)), generator)
    assert 0.1 < found["token_accuracy"] < 0.3  # one in five by chance
    assert 1.2 < found["places_off"] < 2.0  # (n^2 - 1) / 3n = 1.6 by chance


def test_a_user_can_ask() -> None:
    model = Saying(torch.tensor([1.0, 3.0, 2.0, 0.0, -1.0, 9.0]))
    assert TASK.reply(model, ["1", "1", "2"]) == "1 2 0 3 4"
    for words in (["5"], ["x"], []):
        with pytest.raises(SubquadError, match="symbols from 0 to 4"):
            TASK.reply(model, words)


def test_impossible_options_are_refused() -> None:
    with pytest.raises(SubquadError, match="symbols must be at least 2, but is 1"):
        Sorting(symbols=1)
