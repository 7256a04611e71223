"""Attention within buckets of a hash, beyond the contract: the hash as a statistic, and what more rounds find."""

from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal, norm
from torch import Tensor
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

from subquad import Lsh, Softmax, SubquadError
from subquad.ops import lsh
from subquad.ops.lsh import dense, grouped
from subquad.ops.lsh.layout import Sizes, arrange
from tests.attention.cases import HEAD_DIM, HEADS, inputs


def collision_probability(similarity: float, buckets: int) -> float:
    """Probability that two unit vectors with this inner product are in the same bucket.

    It is `buckets` times that of both being closest to the first direction: a double integral over the two inner products
    with it, of the density times the probability that all others are smaller for both vectors.
    """
    nodes, weights = np.polynomial.legendre.leggauss(48)
    nodes, weights = 3.5 * (nodes + 1), 3.5 * weights
    a, b = np.meshgrid(nodes, nodes)
    pairs = multivariate_normal(cov=[[1, similarity], [similarity, 1]])
    below = [sign * pairs.cdf(np.stack([x, y], -1)) for x, y, sign in ((a, b, 1), (-a, b, -1), (a, -b, -1), (-a, -b, 1))]
    density = pairs.pdf(np.stack([a, b], -1)) * sum(below) ** (buckets // 2 - 1)
    return float(buckets * (weights[:, None] * weights * density).sum())


@pytest.mark.parametrize("buckets", [2, 8, 32])
@pytest.mark.parametrize("similarity", [-0.5, 0.0, 0.6, 0.9])
def test_vectors_collide_as_often_as_their_angle_says(similarity: float, buckets: int) -> None:
    draws, generator = 20_000, torch.Generator().manual_seed(buckets)
    x = torch.zeros(1, 1, 2, HEAD_DIM)
    x[..., 0, 0], x[..., 1, 0], x[..., 1, 1] = 3.0, 0.5 * similarity, 0.5 * (1 - similarity**2) ** 0.5
    rotations = torch.randn(1, draws, HEAD_DIM, buckets // 2, generator=generator)
    first, second = lsh.buckets_of(x, rotations)[0, 0].unbind(-1)
    wanted = collision_probability(similarity, buckets)
    share = float((first == second).double().mean())
    assert abs(share - wanted) < norm.isf(1e-5) * (wanted * (1 - wanted) / draws) ** 0.5 + 1e-5
    if buckets == 2:
        assert wanted == pytest.approx(1 - np.arccos(similarity) / np.pi, abs=1e-6)
    if similarity == 0:
        assert wanted == pytest.approx(1 / buckets, abs=1e-6)


def test_more_rounds_come_closer_to_softmax() -> None:
    """As a key counts once however many rounds find it, the limit is softmax attention itself."""
    q, k, v = (x.detach() for x in inputs(96))
    exact = Softmax().build(heads=HEADS, head_dim=HEAD_DIM)(q, k, v)
    errors = []
    for rounds in (1, 4, 16, 200):
        options = Lsh(rounds=rounds, buckets=4, chunk=96, shared=False)
        attend = options.build(heads=HEADS, head_dim=HEAD_DIM, generator=torch.Generator().manual_seed(0)).double()
        errors.append(float((attend(q, k, v) - exact).norm() / exact.norm()))
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 0.02


def test_shared_positions_ask_with_their_keys_and_see_themselves_last() -> None:
    generator = torch.Generator().manual_seed(0)
    attend = Lsh(rounds=2, buckets=2, chunk=64).build(heads=HEADS, head_dim=HEAD_DIM, generator=generator).double()
    q, k, v = (x.detach() for x in inputs(40))
    assert_close(attend(q, k, v), attend(7 * q.flip(2), k, v), rtol=0, atol=0)
    first = attend.causal(q, k, v)[0]
    assert_close(first[:, :, 0], v[:, :, 0], rtol=0, atol=0)  # nothing else is there to see
    louder = v.clone()
    louder[:, :, 20] *= 100
    changed = (attend.causal(q, k, louder)[0] != first).any(-1)
    lonely = (first[:, :, 20] == v[:, :, 20]).all(-1)
    assert torch.equal(changed[:, :, 20], lonely)
    assert changed[:, :, 21:].any()


def test_work_grows_with_the_length() -> None:
    """Pieces are at most n / piece + s / chunk + buckets for each row, however the keys are spread."""
    sizes = Sizes(buckets=8, chunk=16, piece=8, by_key=False, exact=True)
    for spread in (1, 3, 8):
        keys, queries = (torch.randint(spread, (3, 1000)) for _ in range(2))
        table = arrange(queries, keys, torch.arange(1000), sizes)
        assert len(table.chunk) <= 3 * (1000 // 8 + 1000 // 16 + 8)
        real = table.query_at[table.query_at < 3000]
        assert torch.equal(real.sort().values, torch.arange(3000, dtype=torch.int32))


def test_redrawing_changes_the_hash() -> None:
    attend = Lsh().build(heads=HEADS, head_dim=HEAD_DIM, generator=torch.Generator().manual_seed(0))
    before = attend.rotations.clone()
    attend.redraw(torch.Generator().manual_seed(1))
    assert not torch.equal(attend.rotations, before)


def test_an_odd_number_of_buckets_is_refused() -> None:
    with pytest.raises(SubquadError, match="buckets must be even, as they are directions and their opposites, but is 5"):
        Lsh(buckets=5)


@pytest.mark.parametrize(("rounds", "chunk"), [(2, 32), (3, 5)])
def test_later_positions_change_no_bit_of_earlier_results(rounds: int, chunk: int) -> None:
    """They change how many pieces there are, and with it which numbers are left over from loops over several at once."""
    attend = Lsh(rounds=rounds, buckets=8, chunk=chunk).build(
        heads=3, head_dim=8, generator=torch.Generator().manual_seed(0)
    )
    for seed in range(12):
        generator = torch.Generator().manual_seed(seed)
        q, k, v = torch.randn(3, 2, 3, 157, 8, generator=generator)
        before = attend.causal(q, k, v)[0][:, :, :90]
        for x in (q, k, v):
            x[:, :, 90:] = torch.randn(2, 3, 67, 8, generator=generator)
        assert torch.equal(attend.causal(q, k, v)[0][:, :, :90], before)


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize(("n", "s", "causal"), [(61, 61, True), (61, 61, False), (17, 61, True), (17, 61, False)])
def test_the_form_for_short_sequences_and_the_one_in_blocks_agree(
    monkeypatch: pytest.MonkeyPatch, n: int, s: int, causal: bool, shared: bool
) -> None:
    """Buckets of more than two chunks, padding, a key of zeros, heads in several groups, values of another width."""
    generator = torch.Generator().manual_seed(3)
    b, h, d, e, rounds, buckets = 2, 3, 8, 5, 2, 4
    k, v = (torch.randn(b, h, s, size, generator=generator, dtype=torch.float64) for size in (d, e))
    k[0, 0, 7] = 0.0
    aligned = causal or n == s
    q = k[:, :, s - n :] if shared and aligned else torch.randn(b, h, n, d, generator=generator, dtype=torch.float64)
    keep = torch.arange(s) < torch.tensor([[s], [s - 9]])
    gradient = torch.randn(b, h, n, e, generator=generator, dtype=torch.float64)
    rotations = torch.randn(h, rounds, d, buckets // 2, generator=generator, dtype=torch.float64)
    hashes = (lsh.buckets_of(q, rotations), lsh.buckets_of(k, rotations), keep)
    found = []
    for pairs in (2**20, 0):
        monkeypatch.setattr(dense, "PAIRS", pairs)
        monkeypatch.setattr(grouped, "GROUP", 2 * s)
        queries, keys, values = leaves = [x.clone().requires_grad_() for x in (q, k, v)]
        mixed = lsh.attend(
            queries, keys, values, *hashes, buckets=buckets, chunk=5, causal=causal, aligned=aligned, shared=shared
        )
        found.append((mixed, *torch.autograd.grad(mixed, leaves, gradient)))
    for short, in_blocks in zip(*found, strict=True):
        assert_close(short, in_blocks, rtol=1e-9, atol=1e-11)
    if shared:  # a key of zeros has no direction that a small step would change a little
        assert not found[0][2][0, 0, 7].any()


@pytest.mark.parametrize("causal", [True, False])
def test_keys_that_are_the_queries_too_get_both_gradients(monkeypatch: pytest.MonkeyPatch, causal: bool) -> None:
    """In blocks, where the sums of the queries' and the keys' gradients share their memory; in several groups of heads."""
    generator = torch.Generator().manual_seed(5)
    monkeypatch.setattr(dense, "PAIRS", 0)
    monkeypatch.setattr(grouped, "GROUP", 2 * 61)
    k, v = (torch.randn(2, 3, 61, size, generator=generator, dtype=torch.float64, requires_grad=True) for size in (8, 5))
    buckets = lsh.buckets_of(k.detach(), torch.randn(3, 2, 8, 2, generator=generator, dtype=torch.float64))
    q = k.detach().clone().requires_grad_()
    given = torch.randn(2, 3, 61, 5, generator=generator, dtype=torch.float64)

    def attend(queries: Tensor | None) -> Tensor:
        return lsh.attend(
            queries, k, v, buckets, buckets, None, buckets=4, chunk=5, causal=causal, aligned=True, shared=True
        )

    apart, together = attend(q), attend(None)
    for_q, for_k, for_v = torch.autograd.grad(apart, (q, k, v), given)
    for_both, for_values = torch.autograd.grad(together, (k, v), given)
    assert_close(together, apart)
    assert_close(for_both, for_q + for_k)
    assert_close(for_values, for_v)


class LargestTensor(TorchDispatchMode):
    """Notes the largest number of elements of a tensor that an operation returns."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.elements = 0

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = operation(*args, **(kwargs or {}))
        for x in result if isinstance(result, (tuple, list)) else [result]:
            self.elements = max(self.elements, x.numel() if isinstance(x, Tensor) else 0)
        return result


def test_few_queries_of_many_keys_need_no_count_of_every_bucket() -> None:
    attend = Lsh(buckets=256, rounds=4).build(heads=1, head_dim=16, generator=torch.Generator().manual_seed(0))
    k = torch.randn(1, 1, 4096, 16, generator=torch.Generator().manual_seed(1))
    with LargestTensor() as largest:
        attend(k[:, :, :2], k, k)
    # hashing scores half of the buckets in each round; counting keys in all of them would take twice as much
    assert largest.elements <= 4 * 4096 * 128
