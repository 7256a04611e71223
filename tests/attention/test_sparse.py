"""What is particular to block-sparse attention: its patterns, its forms against each other, its cost, what it refuses."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.testing import assert_close

from subquad import Softmax, Sparse, SubquadError
from subquad.attention.sparse import SparseAttention
from subquad.ops import parts, sparse
from subquad.ops.packing import pack, unpack
from subquad.ops.sparse import flex, gathered, parallel, reference, sparse_parts
from subquad.ops.sparse.patterns import drawn
from subquad.ops.window import strips
from tests.attention.cases import HEAD_DIM, HEADS, gradients, inputs

OPTIONS = {
    "mixture": Sparse(block=4, random_blocks=2),
    "window": Sparse(block=4, near=2, global_blocks=0, random_blocks=0),
    "strided": Sparse("strided", block=4, stride=5),
    "fixed": Sparse("fixed", block=4, stride=5, summary=2),
    "given": Sparse("given", block=20, blocks="10001/01000/00000/11111/00011"),
}
every = pytest.mark.parametrize("name", OPTIONS)


def build(options: Sparse) -> SparseAttention:
    return options.build(heads=HEADS, head_dim=HEAD_DIM, generator=torch.Generator().manual_seed(1))


def padding(length: int) -> torch.Tensor:
    return torch.rand(2, length, generator=torch.Generator().manual_seed(3)) > 0.3


def seen(options: Sparse, count: int, *, causal: bool) -> set[tuple[int, int]]:
    layout = reference.layout(build(options).pattern, count, torch.device("cpu"), causal=causal)
    return {(int(row), int(column)) for row, column in layout.nonzero()}


def test_patterns_are_those_of_the_papers() -> None:
    strided = {(i, j) for i in range(12) for j in range(i + 1) if i - j < 3 or (i - j) % 3 == 0}
    assert seen(Sparse("strided", stride=3), 12, causal=True) == strided
    fixed = {(i, j) for i in range(12) for j in range(i + 1) if i // 4 == j // 4 or j % 4 == 3}
    assert seen(Sparse("fixed", stride=4), 12, causal=True) == fixed
    plain = {(i, j) for i in range(12) for j in range(12) if abs(i - j) <= 1 or min(i, j) < 2}
    mixture = seen(Sparse(random_blocks=3), 12, causal=False)
    assert plain < mixture
    assert all(sum(row == i for row, _ in mixture - plain) == 3 for i in range(3, 11))
    assert seen(OPTIONS["given"], 5, causal=True) == {(0, 0), (1, 1), (3, 0), (3, 1), (3, 2), (3, 3), (4, 3), (4, 4)}


def test_a_pattern_that_holds_everything_is_softmax() -> None:
    q, k, v = inputs(61)
    exact = Softmax().build(heads=HEADS, head_dim=HEAD_DIM)
    for options in (Sparse(), Sparse("strided", block=8), Sparse("given", block=31, blocks="11/11")):
        assert_close(build(options)(q, k, v), exact(q, k, v))
        assert_close(build(options).causal(q, k, v)[0], exact.causal(q, k, v)[0])


@every
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("length", [1, 23, 97])
def test_all_rows_at_once_are_gathered_rows(name: str, causal: bool, padded: bool, length: int) -> None:
    """The form for compilers gives the values and gradients of the one for CPUs."""
    attend, (q, k, v) = build(OPTIONS[name]), inputs(length)
    keep, block = padding(length) if padded else None, OPTIONS[name].block
    packed = pack(q, k, v, keep)
    at_once = unpack(packed, parallel.attend(*packed[:4], attend.pattern, block, causal=causal))
    packed = pack(q, k, v, keep)
    mixed = unpack(packed, sparse.attend(packed, attend.pattern, block, causal=causal)[0])
    assert_close(at_once, mixed)
    assert_close(gradients(at_once, q, k, v), gradients(mixed, q, k, v))


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")  # on a CPU it is a reference
@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize("name", ["mixture", "given"])
@pytest.mark.parametrize("causal", [False, True])
def test_flex_attention_gives_the_same_values(name: str, causal: bool) -> None:
    attend, keep, block = build(OPTIONS[name]), padding(45), OPTIONS[name].block
    q, k, v = (x.detach() for x in inputs(45))
    packed = pack(q, k, v, keep)
    mixed = unpack(packed, sparse.attend(packed, attend.pattern, block, causal=causal)[0])
    assert_close(unpack(packed, flex.attend(*packed[:4], attend.pattern, block, causal=causal)), mixed)


@every
@pytest.mark.parametrize("causal", [False, True])
def test_a_few_rows_at_a_time_are_all(name: str, causal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    attend, (q, k, v) = build(OPTIONS[name]), inputs(90)
    form = (lambda: attend.causal(q, k, v)[0]) if causal else (lambda: attend(q, k, v))
    mixed = form()
    wanted = gradients(mixed, q, k, v)
    for module in (gathered, strips):
        monkeypatch.setattr(module, "PIECE", 1)
    assert_close(form(), mixed)
    assert_close(gradients(form(), q, k, v), wanted)


@every
@pytest.mark.parametrize("causal", [False, True])
def test_only_blocks_that_count_are_computed(name: str, causal: bool) -> None:
    options, block = OPTIONS[name], OPTIONS[name].block
    length = 100 if name == "given" else 400
    pairs = len(seen(options, length // block, causal=causal)) * block**2
    listed: list[Any] = sparse_parts(build(options).pattern, length, block, torch.float32, causal=causal)
    x = torch.zeros(length, 1, 1)
    assert sum(len(part.queries(x)) * part.queries(x).shape[2] * part.keys(x).shape[2] for part in listed) == pairs


def test_the_work_of_a_mixture_grows_with_the_length() -> None:
    def pairs(length: int, *, causal: bool) -> int:
        listed: list[Any] = sparse_parts(build(Sparse()).pattern, length, 64, torch.float32, causal=causal)
        return sum(part.rows.shape[0] * part.columns.shape[1] for part in listed if isinstance(part, gathered.Gathered))

    for causal in (False, True):
        assert pairs(2**16, causal=causal) < 2.05 * pairs(2**15, causal=causal)


def test_what_is_saved_for_the_backward_is_one_number_for_each_query() -> None:
    q, k, v = inputs(96)
    sizes: list[int] = []
    plan = parts.Plan(slice(0, 2), sparse_parts(build(OPTIONS["mixture"]).pattern, 96, 4, q.dtype, causal=True))

    def noted(x: torch.Tensor) -> torch.Tensor:
        sizes.append(x.numel())
        return x

    with torch.autograd.graph.saved_tensors_hooks(noted, lambda x: x):
        parts.attend(q, k, v, [plan])
    assert sum(sizes) == 4 * q.numel() + q.numel() // HEAD_DIM


def test_draws_are_even_and_differ_between_layers() -> None:
    row, run = torch.arange(2000)[:, None], torch.arange(4)
    counts = torch.bincount((drawn(torch.tensor(5), row, run) % 10).flatten(), minlength=10)
    assert (counts - 800).abs().max() < 5 * 800**0.5  # five standard deviations
    generator = torch.Generator().manual_seed(0)
    first, second = (Sparse().build(heads=1, head_dim=4, generator=generator) for _ in range(2))
    assert first.pattern.seed != second.pattern.seed


def test_what_does_not_fit_is_refused_in_words() -> None:
    refused: list[tuple[Callable[[], Sparse], str]] = [
        (lambda: Sparse("given"), "blocks must be a square of 0 and 1, with a slash between its rows, .*, but is ''"),
        (lambda: Sparse("given", blocks="10/1"), "blocks must be a square"),
        (lambda: Sparse("given", blocks="12/11"), "blocks must be a square"),
        (lambda: Sparse(blocks="11/11"), "blocks goes with the pattern given only, but the pattern is mixture"),
        (lambda: Sparse("fixed", stride=2, summary=3), "summary must be at most the stride, 2, but is 3"),
    ]
    for options, words in refused:
        with pytest.raises(SubquadError, match=words):
            options()
    attend: Any = build(Sparse("given", block=8, blocks="11/11"))
    q, k, v = inputs(17)
    for form in (attend, attend.causal):
        with pytest.raises(SubquadError, match="k has 17 positions, but the given blocks cover 16: give more rows"):
            form(q, k, v)
    state = attend.causal(*inputs(16))[1]
    with pytest.raises(SubquadError, match="k has 17 positions, but the given blocks cover 16"):
        attend.step(*inputs(1), state)
