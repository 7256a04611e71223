"""The classifier."""

import pytest
import torch

from subquad import Linear, ModelOptions
from subquad.attention import MECHANISMS
from subquad.tasks.transactions.features import FIELDS, IDS, Layout
from subquad.tasks.transactions.model import Classifier, EventEmbedding

SIZES = (5, 4, 6, 7)


def events(batch: int, length: int) -> torch.Tensor:
    drawn = torch.randn(batch, length, len(FIELDS))
    for field, size in enumerate(SIZES):
        drawn[..., field] = torch.randint(size, (batch, length)).float()
    return drawn


@pytest.mark.parametrize("pooling", ["mean", "last", "attention"])
@pytest.mark.parametrize("name", ["softmax", "linear", "favor"])
def test_padding_changes_nothing(name: str, pooling: str) -> None:
    options = ModelOptions(layers=2, heads=2, head_dim=8)
    model = Classifier(Layout(SIZES), MECHANISMS[name](), options, pooling=pooling).eval()  # type: ignore[arg-type]
    if model.weigh is not None:
        torch.nn.init.normal_(model.weigh.weight)
    short = events(3, 7)
    padded = torch.cat([short, 50 * events(3, 4).abs().clamp(max=3)], dim=1)
    keep = torch.arange(11) < torch.tensor([[7], [7], [7]])
    alone = model(short, keep=torch.ones(3, 7, dtype=torch.bool))
    assert alone.std() > 1e-4
    padded[:, 7:, : len(IDS)] = 1.0
    assert torch.allclose(model(padded, keep=keep), alone, atol=1e-5)


@pytest.mark.parametrize("pooling", ["mean", "last", "attention"])
def test_the_pooled_positions_are_the_kept_ones(pooling: str) -> None:
    model = Classifier(Layout(SIZES), Linear(), ModelOptions(layers=1, heads=1, head_dim=2), pooling=pooling)  # type: ignore[arg-type]
    x = torch.tensor([[[1.0, 2.0], [3.0, 6.0], [9.0, 9.0]]])
    keep = torch.tensor([[True, True, False]])
    wanted = [3.0, 6.0] if pooling == "last" else [2.0 * 2**0.5, 4.0 * 2**0.5]  # of two events, where one is typical
    assert model._pool(x, keep).tolist() == [pytest.approx(wanted)]


@pytest.mark.parametrize(("growth", "wanted"), [(0.0, [2.0, 4.0]), (1.0, [4.0, 8.0])])
def test_growth_is_between_a_mean_and_a_sum(growth: float, wanted: list[float]) -> None:
    model = Classifier(Layout(SIZES), Linear(), ModelOptions(layers=1, heads=1, head_dim=2), pooling="mean")
    torch.nn.init.constant_(model.growth, growth)  # type: ignore[arg-type]
    x = torch.tensor([[[1.0, 2.0], [3.0, 6.0], [9.0, 9.0]]])
    assert model._pool(x, torch.tensor([[True, True, False]])).tolist() == [pytest.approx(wanted)]


def test_an_unknown_symbol_adds_nothing() -> None:
    embed = EventEmbedding(Layout(SIZES), 16)
    assert (embed.symbols[0][0] == 0).all()
    assert (embed.symbols[1][0] == 0).all()
    assert (embed.symbols[0][1:].std(1) > 0).all()
    assert (embed.symbols[3][0] != 0).all()  # of weekdays all are known


def test_every_field_is_heard() -> None:
    embed = EventEmbedding(Layout(SIZES), 16)
    one = events(1, 1)
    for field in range(len(FIELDS)):
        other = one.clone()
        other[..., field] = 1.0 + (one[..., field] == 1.0)
        assert not torch.allclose(embed(one), embed(other), atol=1e-4), FIELDS[field]
