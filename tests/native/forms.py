"""The native form of linear attention beside PyTorch's, on inputs of any shape."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from subquad.feature_maps import Elu, Random, Relu, Taylor
from subquad.ops.linear import LinearState, attend_in_blocks, attend_in_chunks
from subquad.ops.linear import native as native_form
from subquad.types import Maps

MAPS: dict[str, Any] = {
    "elu": Elu(),
    "relu": Relu(),
    "positive": Random(features=13),
    "per-head": Random(features=16, per_head=True),
    "hyperbolic": Random(features=14, kernel="hyperbolic"),
    "taylor": Taylor(),  # features are computed by PyTorch
    "calibrated": Random(features=11, projections="calibrated"),  # the same, with exponents
}
QKV = tuple[Tensor, Tensor, Tensor]
TOLERANCES = {torch.float64: 1e-10, torch.float32: 2e-5}


def maps_of(name: str, d: int, heads: int = 2, dtype: torch.dtype = torch.float64) -> Maps:
    """Feature maps for queries and keys, the same at every call."""
    generator = torch.Generator().manual_seed(1)
    maps: Maps = MAPS[name].build(heads=heads, head_dim=d, generator=generator).to(dtype).sides()
    return maps


def inputs(
    queries: int, keys: int, d: int, e: int, dtype: torch.dtype = torch.float64, *, batch: int = 2, heads: int = 2
) -> QKV:
    """Standard normal q, k and v that need gradients, the same at every call."""
    generator = torch.Generator().manual_seed(queries + 1000 * d)
    sizes = ((queries, d), (keys, d), (keys, e))
    q, k, v = (torch.randn(batch, heads, *size, generator=generator, dtype=torch.float64) for size in sizes)
    return each(lambda x: x.to(dtype).requires_grad_(), (q, k, v))


def each(change: Callable[[Tensor], Tensor], x: QKV) -> QKV:
    """Changes q, k and v in the same way."""
    q, k, v = x
    return change(q), change(k), change(v)


def gradients(mixed: Tensor, of: Sequence[Tensor], *, more: list[Tensor] | None = None) -> list[Tensor]:
    """Gradients of a sum with fixed random weights, so that none cancels."""
    outputs = [mixed, *(more or [])]
    generator = torch.Generator().manual_seed(7)
    weights = [torch.randn(x.shape, generator=generator, dtype=torch.float64).to(x.dtype) for x in outputs]
    return list(torch.autograd.grad(outputs, of, weights, allow_unused=True, materialize_grads=True))


def bidirectional(x: QKV, maps: Maps, keep: Tensor | None = None, *, is_native: bool) -> list[Tensor]:
    """The mixed values and all gradients of the bidirectional form."""
    mixed = (native_form.attend if is_native else attend_in_blocks)(*x, maps, keep)
    return [mixed.detach(), *gradients(mixed, x)]


def causal(
    x: QKV, maps: Maps, keep: Tensor | None = None, state: LinearState | None = None, *, is_native: bool
) -> list[Tensor]:
    """The mixed values, the state after them, and all gradients, those of the state before included."""
    mixed, after = (native_form.attend_causal if is_native else attend_in_chunks)(*x, maps, state, keep)
    of = [*x, *([] if state is None else [state.sums, state.norms])]
    return [mixed.detach(), *(part.detach() for part in after), *gradients(mixed, of, more=[after.sums, after.norms])]


def some_keep(batch: int, keys: int) -> Tensor:
    """A mask with holes anywhere; the first keys of the first sequence are padding."""
    keep = torch.rand(batch, keys, generator=torch.Generator().manual_seed(3)) > 0.3
    keep[0, :3] = False
    return keep


def assert_as_close_as_rounding(results: list[Tensor], wanted: list[Tensor], tolerance: float) -> None:
    """Each tensor differs by no more than `tolerance`, relative to its largest number or to 1 if that is smaller."""
    assert len(results) == len(wanted)
    for index, (result, want) in enumerate(zip(results, wanted, strict=True)):
        assert result.shape == want.shape
        assert result.dtype == want.dtype
        if not want.numel():
            continue
        same = (result == want) | (result.isnan() & want.isnan())  # also infinities
        error = torch.where(same, 0.0, (result - want).abs().double()).max().item()
        size = max(1.0, torch.nan_to_num(want, posinf=0, neginf=0).abs().max().item())
        assert error <= tolerance * size, f"result {index} is off by {error / size:.1e} of its size"
