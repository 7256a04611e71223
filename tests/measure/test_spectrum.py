"""Singular values of attention matrices."""

import math

import pytest
import torch

from subquad.errors import SubquadError
from subquad.measure.spectrum import (
    cumulative,
    effective_rank,
    index_for,
    rank,
    share_of_first,
    singular_values,
    spectrum_rows,
)


def with_values(values: torch.Tensor) -> torch.Tensor:
    """A matrix that has these singular values."""
    n = len(values)
    left, right = (torch.linalg.qr(torch.randn(n, n, dtype=torch.float64))[0] for _ in range(2))
    return left @ torch.diag(values) @ right


def test_values_come_back_from_a_batch_of_matrices() -> None:
    values = torch.stack([torch.linspace(5, 1, 8), torch.linspace(1, 1e-9, 8)]).double()
    matrices = torch.stack([with_values(one) for one in values]).view(1, 2, 8, 8)
    torch.testing.assert_close(singular_values(matrices)[0], values, rtol=1e-6, atol=1e-12)
    assert singular_values(torch.randn(3, 4, 7)).shape == (3, 4)
    with pytest.raises(SubquadError, match="not finite"):
        singular_values(torch.tensor([[math.nan]]))


def test_curves_end_with_all() -> None:
    values = torch.tensor([[4.0, 3.0, 2.0, 1.0], [1.0, 0.0, 0.0, 0.0]], dtype=torch.float64)
    assert cumulative(values)[0].tolist() == pytest.approx([0.4, 0.7, 0.9, 1.0])
    assert cumulative(values)[1].tolist() == [1.0] * 4
    assert share_of_first(values, 0).tolist() == [0.0, 0.0]
    assert share_of_first(values, 2).tolist() == pytest.approx([0.7, 1.0])
    assert share_of_first(values, 99).tolist() == pytest.approx([1.0, 1.0])


def test_effective_rank_of_what_is_known() -> None:
    equal, one = torch.ones(6, dtype=torch.float64), torch.tensor([1.0, 0, 0], dtype=torch.float64)
    assert float(effective_rank(equal)) == pytest.approx(6)
    assert float(effective_rank(one)) == pytest.approx(1)
    assert float(effective_rank(7 * equal)) == pytest.approx(6)  # whatever the size
    halves = torch.tensor([2.0, 1.0, 1.0], dtype=torch.float64)
    assert float(effective_rank(halves)) == pytest.approx(math.exp(0.5 * math.log(2) + 0.5 * math.log(4)))


def test_the_rank_does_not_count_rounding_errors() -> None:
    low = (torch.randn(30, 4) @ torch.randn(4, 30)).softmax(-1)
    product = (torch.rand(50, 4) @ torch.rand(4, 50)).float()
    assert int(rank(singular_values(product))) == 4
    assert int(rank(singular_values(torch.eye(9)))) == 9
    assert 4 < int(rank(singular_values(low))) <= 30  # the exponential of a low rank is not low


def test_where_curves_are_read() -> None:
    assert [index_for(length) for length in (1, 3, 8, 100, 511, 512, 4096)] == [1, 1, 2, 25, 127, 128, 128]


def test_rows_are_means_over_sequences() -> None:
    torch.manual_seed(0)
    matrices = torch.rand(2, 3, 4, 16, 16, dtype=torch.float64).softmax(-1)  # layers, sequences, heads
    layers = [[singular_values(one) for one in layer] for layer in matrices]
    rows = spectrum_rows(layers, {"model": "trained"}, {"linear": 5, "wide": 99})
    shares = [row for row in rows if row["metric"] == "share_at_index"]
    assert [(row["layer"], row["head"]) for row in shares] == [(layer, head) for layer in (1, 2) for head in (1, 2, 3, 4)]
    wanted = torch.stack([share_of_first(values, 4) for values in layers[1]])[:, 2]
    row = shares[6]
    assert (row["value"], row["low"], row["high"]) == pytest.approx(
        (float(wanted.mean()), float(wanted.min()), float(wanted.max()))
    )
    assert (row["index"], row["length"], row["sequences"], row["model"]) == (4, 16, 3, "trained")
    within = [row for row in rows if row["metric"] == "share_within_rank" and row["layer"] == 1 and row["head"] == 1]
    assert [(row["mechanism"], row["rank"]) for row in within] == [("linear", 5), ("wide", 99)]
    assert within[1]["value"] == pytest.approx(1.0)
    curve = [row for row in rows if row["metric"] == "cumulative" and row["layer"] == 1 and row["head"] == 1]
    assert [row["index"] for row in curve] == list(range(17))
    assert [row["value"] for row in curve] == sorted(row["value"] for row in curve)
    assert (curve[0]["value"], curve[-1]["value"]) == pytest.approx((0.0, 1.0))
    assert curve[5]["value"] == pytest.approx(within[0]["value"])


def test_sequences_may_differ_in_length() -> None:
    layers = [[singular_values(torch.eye(n).expand(1, n, n)) for n in (8, 12)]]
    rows = spectrum_rows(layers, {}, {})
    share = next(row for row in rows if row["metric"] == "share_at_index")
    assert share["value"] == pytest.approx(0.25)
    assert (share["index"], share["length"]) == (2.5, 10)
    assert next(row for row in rows if row["metric"] == "effective_rank")["value"] == pytest.approx(10)
