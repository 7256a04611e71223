"""Nyström attention beyond the contract: where it is exact, what its iteration converges to, whom it depends on."""

import pytest
import torch
from torch.testing import assert_close

from subquad import Nystrom, Softmax
from subquad.ops.nystrom import pseudo_inverse
from tests.attention.cases import HEAD_DIM, HEADS, inputs


def build(landmarks: int, iterations: int = 6) -> torch.nn.Module:
    return Nystrom(landmarks, iterations).build(heads=HEADS, head_dim=HEAD_DIM)


@pytest.mark.parametrize(("queries", "keys"), [(11, 11), (200, 11), (11, 200)])
def test_few_queries_or_keys_are_attended_to_exactly(queries: int, keys: int) -> None:
    q, k, v = (x.detach() for x in inputs(queries, keys))
    exact = Softmax().build(heads=HEADS, head_dim=HEAD_DIM)
    assert_close(build(11)(q, k, v), exact(q, k, v), rtol=1e-12, atol=1e-12)
    keep = torch.ones(2, keys, dtype=torch.bool)
    keep[0, ::2] = False
    assert_close(build(11)(q, k, v, keep=keep)[0], exact(q, k, v, keep=keep)[0], rtol=1e-12, atol=1e-12)
    assert (build(10)(q, k, v) - exact(q, k, v)).abs().max() > 1e-3


def test_the_iteration_converges_to_the_pseudo_inverse() -> None:
    generator = torch.Generator().manual_seed(0)
    a = torch.randn(2, 3, 17, 17, dtype=torch.float64, generator=generator).mul(3).softmax(-1)
    a[0, 0, :, 5] = 0.0  # without a column and a row it has no inverse
    a[0, 0, 9] = 0.0
    errors = [(pseudo_inverse(a, count) - torch.linalg.pinv(a)).abs().max() for count in (4, 8, 30)]
    assert errors[0] > errors[1] > errors[2]
    assert errors[2] < 1e-9


def test_a_sequence_does_not_depend_on_others_in_its_batch() -> None:
    """The paper's code starts the iteration from the largest norm in the batch."""
    q, k, v = (x.detach() for x in inputs(157))
    alone = build(11)(q[:1], k[:1], v[:1])
    q[1], k[1] = 50 * q[1], 50 * k[1]
    assert_close(build(11)(q, k, v)[:1], alone, rtol=1e-12, atol=1e-12)


def test_more_landmarks_are_closer_to_softmax() -> None:
    q, k, v = (x.detach() for x in inputs(512))
    q, k = (x.cumsum(2) / 20 for x in (q, k))  # neighbours are alike, as the means of runs suppose
    exact = Softmax().build(heads=HEADS, head_dim=HEAD_DIM)(q, k, v)
    errors = [float((build(landmarks)(q, k, v) - exact).norm() / exact.norm()) for landmarks in (4, 16, 64, 512)]
    assert errors == sorted(errors, reverse=True)
    assert errors[2] < 0.1
    assert errors[3] < 1e-12
