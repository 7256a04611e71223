"""Linformer's kernel: values and errors as with PyTorch's operations."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

import subquad as sq
from subquad import native
from subquad.attention.linformer import Sharing
from subquad.errors import NotFiniteError
from subquad.ops import slots

SIZES = {torch.float64: 1e-10, torch.float32: 2e-4, torch.bfloat16: 2e-2}  # largest error of a result


def inputs(n: int, s: int, d: int, e: int, dtype: torch.dtype) -> list[Tensor]:
    generator = torch.Generator().manual_seed(n + s)
    sizes = ((n, d), (s, d), (s, e))
    return [torch.randn(2, 3, rows, columns, generator=generator).to(dtype) for rows, columns in sizes]


def build(d: int, k: int = 19, sharing: Sharing = "keys-values") -> Any:
    generator = torch.Generator().manual_seed(0)
    return sq.Linformer(k=k, max_length=300, sharing=sharing).build(heads=3, head_dim=d, generator=generator)


def in_float64(attend: Any, x: list[Tensor], keep: Tensor | None = None) -> Tensor:
    with native.using("torch"):
        mixed: Tensor = attend(*(part.double() for part in x), keep=keep)
    return mixed


def quick(attend: Any, x: list[Tensor]) -> Tensor | None:
    mixed: Tensor | None = attend.projection.quick_attend(*x, None)
    return mixed


@torch.no_grad()
@pytest.mark.parametrize("dtype", SIZES)
@pytest.mark.parametrize("lengths", [(0, 5), (1, 1), (5, 0), (33, 130), (64, 128), (100, 300)])
@pytest.mark.parametrize(("d", "e", "k"), [(16, 16, 32), (7, 5, 19), (64, 80, 1)])
def test_values(dtype: torch.dtype, lengths: tuple[int, int], d: int, e: int, k: int) -> None:
    x, attend = inputs(*lengths, d, e, dtype), build(d, k)
    mixed = quick(attend, x)
    assert mixed is not None
    assert mixed.dtype == dtype
    assert_close(mixed.double(), in_float64(attend, x), rtol=SIZES[dtype], atol=SIZES[dtype])


@torch.no_grad()
@pytest.mark.parametrize("sharing", ["none", "heads", "keys-values"])
def test_every_sharing_of_weights_with_padding_and_strides(sharing: Sharing) -> None:
    attend = build(16, sharing=sharing)
    x = [part.transpose(1, 2).contiguous().transpose(1, 2) for part in inputs(40, 40, 16, 16, torch.float32)]
    keep = torch.rand(2, 40, generator=torch.Generator().manual_seed(0)) < 0.7
    for kept in (None, keep):
        assert attend.projection.quick_attend(*x, kept) is not None
        assert_close(attend(*x, keep=kept).double(), in_float64(attend, x, kept), rtol=2e-4, atol=2e-4)


@torch.no_grad()
@pytest.mark.parametrize("name", ["q", "k", "v"])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_an_input_that_is_not_finite_is_named(name: str, bad: float) -> None:
    x = inputs(20, 20, 16, 16, torch.float32)
    x["qkv".index(name)][1, 2, 7, 3] = bad
    attend = build(16)
    assert quick(attend, x) is None
    with pytest.raises(NotFiniteError, match=f"^{name} holds"):
        attend(*x)


@torch.no_grad()
def test_threads_give_the_same_numbers() -> None:
    attend, x = build(16), inputs(60, 60, 16, 16, torch.float32)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = attend(*x)
        torch.set_num_threads(3)
        assert torch.equal(attend(*x), alone)
    finally:
        torch.set_num_threads(before)


def test_gradients_are_left_to_pytorch() -> None:
    attend, x = build(16), inputs(20, 20, 16, 16, torch.float32)
    assert not slots.serves(*x, *attend.projection.weight)
    with torch.no_grad():
        assert slots.serves(*x, *attend.projection.weight)
        with native.using("torch"):
            assert not slots.serves(*x, *attend.projection.weight)
        values = attend(*x)
    assert_close(attend(*x), values, rtol=2e-4, atol=2e-4)
