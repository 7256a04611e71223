"""Low-rank attention: errors against a truncated decomposition written out, and shares of projections that are known."""

import math

import pytest
import torch

from subquad.measure import lowrank


def random_matrices(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_the_best_error_is_that_of_the_truncated_decomposition() -> None:
    matrices, values = random_matrices(2, 3, 7, 7).softmax(-1), random_matrices(2, 3, 7, 4)
    ranks = (0, 1, 3, 6, 7, 9)
    errors = lowrank.best_rank_errors(matrices, values, ranks)
    u, sigma, v = torch.linalg.svd(matrices)
    for at, rank in enumerate(ranks):
        cut = u[..., :rank] * sigma[..., None, :rank] @ v[..., :rank, :]
        torch.testing.assert_close(errors[..., at], lowrank.relative_errors(cut @ values, matrices @ values))
    assert errors[..., 0].tolist() == [[1.0] * 3] * 2
    assert errors[..., -1].abs().max() == 0.0


def test_no_matrix_of_the_same_rank_is_closer() -> None:
    """With the identity as values the output is the matrix itself, for which the decomposition is the best."""
    matrix = random_matrices(1, 8, 8).softmax(-1)
    identity = torch.eye(8, dtype=torch.float64)[None]
    best = lowrank.best_rank_errors(matrix, identity, (3,))[..., 0]
    fixed = lowrank.leading_vectors(lowrank.gram(matrix[None]), 3)
    drawn = lowrank.random_projection(3, 8, torch.Generator().manual_seed(0)).double()
    torch.testing.assert_close(lowrank.relative_errors(lowrank.projected(matrix, identity, fixed), matrix), best)
    assert bool((lowrank.relative_errors(lowrank.projected(matrix, identity, drawn), matrix) > best).all())


def test_random_projections_keep_the_output_on_average() -> None:
    matrix, values = random_matrices(6, 6).softmax(-1), random_matrices(6, 2)
    drawing = torch.Generator().manual_seed(0)
    draws = [lowrank.projected(matrix, values, lowrank.random_projection(64, 6, drawing).double()) for _ in range(400)]
    torch.testing.assert_close(torch.stack(draws).mean(0), matrix @ values, atol=0.05, rtol=0)


def test_means_of_neighbours_are_even() -> None:
    means = lowrank.neighbour_means(3, 7)
    assert means.tolist() == [
        pytest.approx(row) for row in ([1 / 3] * 3 + [0] * 4, [0] * 3 + [0.5] * 2 + [0] * 2, [0] * 5 + [0.5] * 2)
    ]
    torch.testing.assert_close(lowrank.neighbour_means(5, 5), torch.eye(5))


@pytest.mark.parametrize(
    ("projection", "average", "positions", "neighbours"),
    [
        (torch.ones(2, 8), 1.0, 0.25, 1.0),
        (torch.eye(8)[[1, 6]], 1 / 8, 1.0, 1 / 4),
        (lowrank.neighbour_means(2, 8), 0.5, 0.25, 1.0),
        (torch.tensor([[1.0, -1.0] * 4]), 0.0, 1 / 8, 0.0),
    ],
    ids=("one mean", "two positions", "two means", "differences"),
)
def test_shares_are_those_of_known_projections(
    projection: torch.Tensor, average: float, positions: float, neighbours: float
) -> None:
    assert float(lowrank.share_of_average(projection)) == pytest.approx(average)
    assert float(lowrank.share_of_positions(projection)) == pytest.approx(positions)
    k = len(projection)
    assert float(lowrank.share_within(projection, lowrank.neighbour_means(k, 8))) == pytest.approx(neighbours)
    assert float(lowrank.share_within(projection, torch.eye(8))) == pytest.approx(1.0)


def test_a_random_projection_is_in_a_span_by_chance() -> None:
    drawn = torch.stack([lowrank.random_projection(8, 64, torch.Generator().manual_seed(seed)) for seed in range(50)])
    basis = lowrank.leading_vectors(random_matrices(64, 64).square(), 8).float()
    assert float(lowrank.share_within(drawn, torch.linalg.qr(basis.mT)[0].mT).mean()) == pytest.approx(8 / 64, abs=0.01)


def test_the_theorem_promises_as_published() -> None:
    assert lowrank.theorem_slots(math.e, 0.5) == pytest.approx(5 / (0.25 - 0.125))


def test_slots_are_ordered_by_their_largest_weight() -> None:
    assert lowrank.by_centre(torch.tensor([[0.0, 0.1, -2.0], [0.5, 0.0, 0.0], [0.0, 1.0, 0.9]])).tolist() == [1, 2, 0]
