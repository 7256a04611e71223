"""The mechanisms under contract: every entry of MECHANISMS as it is, and the variants of its options."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from subquad import (
    MECHANISMS,
    Cosformer,
    Elu,
    Favor,
    Hybrid,
    Infinity,
    Learned,
    Linear,
    Linformer,
    Lsh,
    Nystrom,
    Random,
    Relu,
    Softmax,
    Sparse,
    Taylor,
    Window,
)
from subquad.attention import Mechanism
from tests.attention.equations import EQUATIONS

HEADS, HEAD_DIM = 3, 7  # small primes

small = Linformer(k=11, max_length=311)
brief = Infinity(segment=29, basis=14, points=17, widths=(0.05, 0.1))
# the fourth block of queries sees nothing
GIVEN = "001011110/010110110/010000101/000000000/101001011/011110101/101101001/110101100/000011111"
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
    "favor-calibrated": Favor(features=13, projections="calibrated"),
    "favor-learned": Favor(features=13, projections="learned"),
    "linformer-none": replace(small, sharing="none"),
    "linformer-heads": replace(small, sharing="heads"),
    "linformer-mean": replace(small, method="mean"),
    "linformer-convolution": replace(small, method="convolution", sharing="none"),
    "linformer-convolution-shared": replace(small, method="convolution", sharing="keys-values"),
    "infinity-brief": brief,
    "infinity-sticky": replace(brief, sticky=True),
    "infinity-previous": replace(brief, previous=True, both=True),
    "infinity-both": replace(brief, both=True, sticky=True, segment=31),
    "infinity-detached": replace(brief, detached=True),
    "infinity-forgetful": replace(brief, basis=0),
    "infinity-window": replace(brief, basis=0, previous=True),
    "hybrid-brief": Hybrid(block=23, log_gain=-0.5),
    "hybrid-random": Hybrid(block=29, rest=Random(features=13), log_gain=0.0),
    "hybrid-learned-projections": Hybrid(block=31, rest=Random(features=13, projections="learned"), log_gain=-1.0),
    "hybrid-none": Hybrid(block=19, rest="none"),
    "hybrid-elu": Hybrid(block=37, rest=Elu()),
    "window-narrow": Window(reach=17),
    "window-dilated": Window(reach=11, dilation=3),
    "window-global": Window(reach=23, global_tokens=5),
    "sparse-mixture": Sparse(block=11, near=1, global_blocks=1, random_blocks=2),
    "sparse-window": Sparse(block=13, near=2, global_blocks=0, random_blocks=0),
    "sparse-strided": Sparse("strided", block=10, stride=3),
    "sparse-fixed": Sparse("fixed", block=7, stride=4, summary=2),
    "sparse-given": Sparse("given", block=67, blocks=GIVEN),
    "window-dilated-global": Window(reach=7, dilation=2, global_tokens=3),
    "cosformer-short": Cosformer(max_length=617),
    "lsh-small": Lsh(rounds=3, buckets=4, chunk=5),
    "lsh-one-round": Lsh(rounds=1, buckets=2, chunk=3),
    "lsh-separate": Lsh(rounds=3, buckets=6, chunk=7, shared=False),
    "nystrom-few": Nystrom(landmarks=11),
    "nystrom-one": Nystrom(landmarks=1, iterations=2),
}
CASES: dict[str, Any] = {name: options() for name, options in MECHANISMS.items()} | VARIANTS


def build(name: str, dtype: torch.dtype = torch.float64) -> Any:
    """A mechanism, the same at every call."""
    module: Any = CASES[name].build(heads=HEADS, head_dim=HEAD_DIM, generator=torch.Generator().manual_seed(1))
    if CASES[name].traits.calibrates:
        calibrate(module)
    return module.to(dtype)


def calibrate(attend: Mechanism) -> None:
    """Fits a mechanism to means and covariances that are far from where it starts."""
    generator = torch.Generator().manual_seed(4)
    means, factors = (
        torch.randn(2, HEADS, HEAD_DIM, generator=generator),
        torch.randn(2, HEADS, HEAD_DIM, HEAD_DIM, generator=generator),
    )
    attend.calibrate(*(0.3 * means), *(factors @ factors.mT / HEAD_DIM))


def has_causal(name: str) -> bool:
    return bool(CASES[name].traits.causal)


CAUSAL = [name for name in CASES if has_causal(name)]


def variants_are_slow(names: Iterable[str]) -> list[Any]:
    """Parameters of a long test: mechanisms with their default options in the suite, others by `make test-slow`."""
    return [pytest.param(name, marks=[] if name in MECHANISMS else pytest.mark.slow) for name in names]


every = pytest.mark.parametrize("name", CASES)
every_causal = pytest.mark.parametrize("name", CAUSAL)
most = pytest.mark.parametrize("name", variants_are_slow(CASES))
most_causal = pytest.mark.parametrize("name", variants_are_slow(CAUSAL))


NEED_LONG = ("sparse-given", "cosformer-short")
"""Variants whose options are made for LONG: a pattern of nine blocks of 67, and a largest length of 617."""
LONG = 600
"""More than a segment of infinity, and five chunks of 128."""
MIDDLE = 307
"""Three chunks of 128, the first, one in the middle and a part: as many as a variant needs whose blocks are smaller."""


def with_longest(names: Iterable[str]) -> list[Any]:
    """Each name with its longest length: LONG with default options, MIDDLE for variants; theirs of LONG are slow."""
    needed = [name for name in names if name in MECHANISMS or name in NEED_LONG]
    others = [name for name in names if name not in needed]
    return [
        *((name, LONG) for name in needed),
        *((name, MIDDLE) for name in others),
        *(pytest.param(name, LONG, marks=pytest.mark.slow) for name in others),
    ]


def inputs(
    *lengths: int, batch: int = 2, dtype: torch.dtype = torch.float64, scale: float = 1.0, seed: int = 0
) -> list[Tensor]:
    """q, k and v: one length for all three, or one for q and one for k and v. v is as wide as the rest."""
    generator = torch.Generator().manual_seed(seed)
    n, s = lengths[0], lengths[-1]
    drawn = [torch.randn(batch, HEADS, size, HEAD_DIM, generator=generator, dtype=torch.float64) for size in (n, s, s)]
    return [(scale * x).to(dtype).requires_grad_() for x in drawn]


def some_keep(batch: int, keys: int) -> Tensor:
    """Holes anywhere, the first keys of the first sequence among them."""
    keep = torch.rand(batch, keys, generator=torch.Generator().manual_seed(3)) > 0.3
    keep[0, :3] = False
    keep[1, -2:] = False
    return keep


def gradients(mixed: Tensor, *of: Tensor) -> tuple[Tensor, ...]:
    """Of a sum with fixed random weights, so that no gradient cancels."""
    weights = torch.randn(mixed.shape, generator=torch.Generator().manual_seed(7), dtype=torch.float64).to(mixed.dtype)
    return torch.autograd.grad(mixed, of, weights, allow_unused=True, materialize_grads=True)


def equation(attend: Any, q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None, causal: bool = False) -> Tensor:
    """The mechanism's reference equation. A new mechanism needs an entry in `EQUATIONS`."""
    return EQUATIONS[attend.options.kind](attend, q, k, v, keep, causal)
