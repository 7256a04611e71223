"""The mechanisms under contract: every entry of MECHANISMS as it is, and the variants of its options."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from subquad import MECHANISMS, Elu, Favor, Learned, Linear, Linformer, Random, Relu, Softmax, Taylor
from subquad.attention.linear import LinearAttention
from subquad.attention.linformer import ConvolutionSlots, LearnedSlots, LinformerAttention, MeanSlots
from subquad.attention.softmax import SoftmaxAttention
from subquad.ops import reference

HEADS, WIDTH = 3, 7  # small primes

small = Linformer(k=11, max_length=311)
VARIANTS: dict[str, Any] = {
    "softmax-materialised": Softmax(materialised=True),
    "linear-elu": Linear(Elu()),
    "linear-relu": Linear(Relu()),
    "linear-taylor": Linear(Taylor()),
    "linear-learned": Linear(Learned()),
    "linear-learned-wide": Linear(Learned(features=22)),
    "linear-random": Linear(Random(features=13)),
    "favor-hyperbolic": Favor(features=14, kernel="hyperbolic"),
    "favor-trigonometric": Favor(features=50, kernel="trigonometric"),
    "favor-relu": Favor(features=13, kernel="relu"),
    "favor-per-head": Favor(features=13, per_head=True),
    "linformer-none": replace(small, sharing="none"),
    "linformer-heads": replace(small, sharing="heads"),
    "linformer-mean": replace(small, method="mean"),
    "linformer-convolution": replace(small, method="convolution", sharing="none"),
    "linformer-convolution-shared": replace(small, method="convolution", sharing="keys-values"),
}
CASES: dict[str, Any] = {name: options() for name, options in MECHANISMS.items()} | VARIANTS


def build(name: str, dtype: torch.dtype = torch.float64) -> Any:
    """A mechanism, the same at every call."""
    module = CASES[name].build(heads=HEADS, width=WIDTH, generator=torch.Generator().manual_seed(1))
    return module.to(dtype)


def has_causal(name: str) -> bool:
    return hasattr(build(name), "causal")


CAUSAL = [name for name in CASES if has_causal(name)]


def inputs(
    *lengths: int, batch: int = 2, dtype: torch.dtype = torch.float64, scale: float = 1.0, seed: int = 0
) -> list[Tensor]:
    """q, k and v: one length for all three, or one for q and one for k and v. v is as wide as the rest."""
    generator = torch.Generator().manual_seed(seed)
    n, s = lengths[0], lengths[-1]
    drawn = [torch.randn(batch, HEADS, size, WIDTH, generator=generator, dtype=torch.float64) for size in (n, s, s)]
    return [(scale * x).to(dtype).requires_grad_() for x in drawn]


def equation(attend: nn.Module, q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None, causal: bool = False) -> Tensor:
    """The mechanism's reference equation. A new mechanism needs an entry here, and one in ops/reference.py."""
    return EQUATIONS[next(kind for kind in type(attend).__mro__ if kind in EQUATIONS)](attend, q, k, v, keep, causal)


def _softmax(attend: Any, q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None, causal: bool) -> Tensor:
    return reference.attend(reference.softmax_weights(q, k, keep, causal), v)


def _linear(attend: Any, q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None, causal: bool) -> Tensor:
    phi_q, phi_k = attend.feature_map.sides()
    return reference.attend(reference.linear_weights(phi_q(q), phi_k(k), keep, causal), v)


def _linformer(attend: Any, q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None, causal: bool) -> Tensor:
    """Sequence by sequence, with padding taken out for real."""
    rows = []
    for index in range(len(q)):
        real = slice(None) if keep is None else keep[index]
        slots = [_slots(attend.projection, x[index][:, real], side)[None] for side, x in ((0, k), (-1, v))]
        rows.append(reference.attend(reference.softmax_weights(q[index : index + 1], slots[0]), slots[1]))
    return torch.cat(rows)


def _slots(projection: Any, x: Tensor, side: int) -> Tensor:
    if isinstance(projection, LearnedSlots):
        return reference.learned_slots(x, projection.weight[side])
    if isinstance(projection, ConvolutionSlots):
        return reference.convolved_slots(x, projection.weight[side])
    assert isinstance(projection, MeanSlots)
    return reference.mean_slots(x, projection.options.k)


EQUATIONS: dict[type[nn.Module], Callable[..., Tensor]] = {
    SoftmaxAttention: _softmax,
    LinearAttention: _linear,
    LinformerAttention: _linformer,
}
