"""Linformer (Wang et al. 2020): softmax attention over k slots, into which the keys and values are projected."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from subquad.attention.base import Mechanism
from subquad.attention.checks import check_inputs, check_result
from subquad.checking import Count
from subquad.errors import SubquadError
from subquad.ops import exact, slots
from subquad.ops.autocast import precise, product, without_autocast
from subquad.types import AttentionOptions, Keep, Keys, MechanismSize, Mixed, Queries, RankBound, Traits, Values, up_to

Method = Literal["learned", "mean", "convolution"]
Sharing = Literal["none", "heads", "keys-values", "layerwise"]
_NO_MATRIX = "linformer by convolution has no attention matrix: its slots mix the coordinates of values"


@dataclass(frozen=True)
class Linformer(AttentionOptions):
    """Exact attention over a summary of `k` slots, in linear time. Bidirectional only: a slot mixes positions."""

    k: Count = 256  # number of slots; it may differ between layers
    max_length: Count = 16384  # longest sequence, which sets the size of the weights of learned and convolution
    method: Method = "learned"  # mean has no weights and takes any length; the stride of convolution is max_length / k
    sharing: Sharing = "keys-values"  # none: by head; heads: one each for k and v; keys-values: one; layerwise: one for all
    kind: str = field(default="linformer", init=False)

    @property
    def traits(self) -> Traits:
        return Traits(
            exact=False,
            time="L k d",
            space="L k",
            gives_up="it sees k mixtures of positions, has no causal form, and takes no sequence longer than it was built "
            "for",
            causal=False,
            constant_state=False,
            max_length=None if self.method == "mean" else self.max_length,
            no_matrix=_NO_MATRIX if self.method == "convolution" else None,
            shares_layers=self.sharing == "layerwise",
        )

    def choices(self, length: int) -> Mapping[str, Sequence[Any]]:
        return {"k": up_to(length // 2, (8, 16, 32, 64, 128, 256))}

    def size(self, *, heads: int, head_dim: int) -> MechanismSize:
        groups, sets = self.groups(heads)
        weights = {
            "learned": self.k * self.max_length,
            "mean": 0,
            "convolution": -(-self.max_length // self.k) * head_dim * head_dim,
        }
        return MechanismSize(
            groups * sets * weights[self.method], heads * head_dim * (self.k if self.method != "convolution" else 1)
        )

    def groups(self, heads: int) -> tuple[int, int]:
        """Returns the number of heads with separate weights, and of weight sets (2 if keys and values have their own)."""
        return heads if self.sharing == "none" else 1, 2 if self.sharing in ("none", "heads") else 1

    def build(
        self,
        *,
        heads: int,
        head_dim: int,
        generator: torch.Generator | None = None,
        projection: "SlotProjection | None" = None,
    ) -> "LinformerAttention":
        """Builds the mechanism with a new projection, or with the `projection` that layers share."""
        projection = projection or self.build_projection(heads=heads, head_dim=head_dim, generator=generator)
        return LinformerAttention(self, projection, heads, head_dim)

    def layer_builder(
        self, *, heads: int, head_dim: int, generator: torch.Generator | None = None
    ) -> Callable[[], nn.Module]:
        if self.sharing != "layerwise":
            return super().layer_builder(heads=heads, head_dim=head_dim, generator=generator)
        projection = self.build_projection(heads=heads, head_dim=head_dim, generator=generator)
        return partial(self.build, heads=heads, head_dim=head_dim, projection=projection)

    def build_projection(self, *, heads: int, head_dim: int, generator: torch.Generator | None = None) -> "SlotProjection":
        """Builds a projection for one layer, or for several layers to share."""
        return _METHODS[self.method](self, heads, head_dim, generator)

    def rank_bound(self, head_dim: int) -> RankBound:
        """softmax(q (E k)^T) F is a product through k slots, so its rank is at most k."""
        return RankBound(self.k, f"{self.k} slots")

    def for_length(self, length: int) -> "Linformer":
        return replace(self, max_length=length)


class LinformerAttention(Mechanism):
    """softmax(q (E k)^T / sqrt d) F v."""

    options: Linformer

    def __init__(self, options: Linformer, projection: "SlotProjection", heads: int, head_dim: int) -> None:
        super().__init__(options, heads, head_dim)
        self.projection = projection

    def forward(self, q: Queries, k: Keys, v: Values, *, keep: Keep | None = None) -> Mixed:
        check_inputs(q, k, v, keep, heads=self.heads, head_dim=self.head_dim)
        quick = self.projection.quick_attend(q, k, v, keep)
        if quick is not None:
            return quick
        with without_autocast(q):
            slots_k, slots_v, used = self.projection(k, v, keep)
            mask = None if used is None else used[:, None, None, :]
            # slots are sums and would lose too much in half precision
            mixed = exact.attend(q.to(slots_k.dtype), slots_k, slots_v, mask)
        return check_result(mixed.to(v.dtype), q, k, v, q, slots_k, slots_v)


class SlotProjection(nn.Module):
    """Projects keys and values to k slots each, and returns the mask of slots in use (None for all)."""

    def __init__(self, options: Linformer, heads: int, head_dim: int, generator: torch.Generator | None) -> None:
        super().__init__()
        self.options = options

    def forward(self, k: Keys, v: Values, keep: Keep | None) -> tuple[Tensor, Tensor, Tensor | None]:
        raise NotImplementedError

    def quick_attend(self, q: Queries, k: Keys, v: Values, keep: Keep | None) -> Tensor | None:
        """Returns the attention's result if one kernel computes projection and attention; else None."""
        return None

    def _check_length(self, k: Tensor) -> None:
        if k.shape[2] > self.options.max_length:
            raise SubquadError(
                f"k has {k.shape[2]} positions, but linformer was built for max_length={self.options.max_length}: "
                "build it with a larger max_length, or with method='mean', which takes any length"
            )

    def _weights(self, heads: int, *shape: int) -> nn.ParameterList:
        """Creates weights for keys and values, separate or shared, for each head or for all."""
        groups, sets = self.options.groups(heads)
        return nn.ParameterList(nn.Parameter(torch.empty(groups, *shape)) for _ in range(sets))


class LearnedSlots(SlotProjection):
    """Slots are learned combinations of positions, E x with E of k x max_length entries, initially N(0, 1/k)."""

    def __init__(self, options: Linformer, heads: int, head_dim: int, generator: torch.Generator | None) -> None:
        super().__init__(options, heads, head_dim, generator)
        self.weight = self._weights(heads, options.k, options.max_length)
        for weight in self.weight:
            nn.init.normal_(weight, std=options.k**-0.5, generator=generator)

    def forward(self, k: Keys, v: Values, keep: Keep | None) -> tuple[Tensor, Tensor, Tensor | None]:
        self._check_length(k)
        k, v = without_padding(k, keep), without_padding(v, keep)
        return self.project(k, self.weight[0]), self.project(v, self.weight[-1]), None

    def quick_attend(self, q: Queries, k: Keys, v: Values, keep: Keep | None) -> Tensor | None:
        if not slots.serves(q, k, v, *self.weight):
            return None
        self._check_length(k)
        dtype = precise(q.dtype)
        mixed = slots.attend(
            q.to(dtype),
            without_padding(k, keep),
            without_padding(v, keep),
            self.weight[0].to(dtype),
            self.weight[-1].to(dtype),
        )
        return None if mixed is None else mixed.to(v.dtype)

    def project(self, x: Tensor, weight: Tensor) -> Tensor:
        """Computes E x with one product for each group of heads, so that the weights are read once for the whole batch."""
        b, h, n, d = x.shape
        g = len(weight)
        grouped = x.unflatten(1, (g, h // g)).permute(1, 3, 0, 2, 4)  # g n b h/g d
        slots = product(weight[..., :n].to(x.dtype), grouped.reshape(g, n, b * h // g * d))
        return slots.view(g, self.options.k, b, h // g, d).permute(2, 0, 3, 1, 4).flatten(1, 2)


class MeanSlots(SlotProjection):
    """Slots are means of runs of positions. A sequence of at most k positions is attended to exactly."""

    def forward(self, k: Keys, v: Values, keep: Keep | None) -> tuple[Tensor, Tensor, Tensor | None]:
        b, _, n, _ = k.shape
        real = torch.ones(b, n, dtype=torch.bool, device=k.device) if keep is None else keep
        length = real.sum(1, keepdim=True)
        used = length.clamp(max=self.options.k)
        order = real.cumsum(1) - 1
        slot = (order.clamp(min=0) * used).div(length.clamp(min=1), rounding_mode="floor")
        count = torch.zeros(b, self.options.k, device=k.device).scatter_add_(1, slot, real.float())
        in_use = torch.arange(self.options.k, device=k.device) < used
        return self._mean(k, slot, real, count), self._mean(v, slot, real, count), in_use

    def _mean(self, x: Tensor, slot: Tensor, real: Tensor, count: Tensor) -> Tensor:
        b, h, _, d = x.shape
        x = x.to(precise(x.dtype)).masked_fill(~real[:, None, :, None], 0.0)
        total = x.new_zeros(b, h, self.options.k, d).scatter_add(2, slot[:, None, :, None].expand(x.shape), x)
        return total / count.clamp(min=1).to(x.dtype)[:, None, :, None]


class ConvolutionSlots(SlotProjection):
    """Slots are learned combinations of the coordinates in a run of max_length / k positions, initially their mean."""

    def __init__(self, options: Linformer, heads: int, head_dim: int, generator: torch.Generator | None) -> None:
        super().__init__(options, heads, head_dim, generator)
        self.stride = -(-options.max_length // options.k)
        self.weight = self._weights(heads, self.stride * head_dim, head_dim)
        mean = torch.eye(head_dim).repeat(self.stride, 1) / self.stride
        for weight in self.weight:
            nn.init.normal_(weight, std=0.1 * (self.stride * head_dim) ** -0.5, generator=generator)
            weight.data += mean

    def forward(self, k: Keys, v: Values, keep: Keep | None) -> tuple[Tensor, Tensor, Tensor | None]:
        self._check_length(k)
        if v.shape[3] != k.shape[3]:
            raise SubquadError(
                f"v is {v.shape[3]} wide and k is {k.shape[3]}: linformer by convolution mixes coordinates, so both must be "
                "as wide; take method='learned' or 'mean' for values of another size"
            )
        used = None
        if keep is not None:
            runs = -(-k.shape[2] // self.stride)
            used = torch.arange(runs, device=k.device) * self.stride < keep.sum(1, keepdim=True)
        k, v = without_padding(k, keep), without_padding(v, keep)
        return self._project(k, self.weight[0]), self._project(v, self.weight[-1]), used

    def _project(self, x: Tensor, weight: Tensor) -> Tensor:
        """Computes the convolution as a product with each run of positions, since its stride is the kernel's length."""
        filled = F.pad(x, (0, 0, 0, -x.shape[2] % self.stride))
        runs = filled.unflatten(2, (filled.shape[2] // self.stride, self.stride)).flatten(3)
        return product(runs, weight.to(x.dtype))


_METHODS: dict[str, type[SlotProjection]] = {
    "learned": LearnedSlots,
    "mean": MeanSlots,
    "convolution": ConvolutionSlots,
}


def without_padding(x: Tensor, keep: Tensor | None) -> Tensor:
    """Moves real positions to the front, in order, followed by zeros, so that padding has no effect."""
    x = x.to(precise(x.dtype))
    if keep is None:
        return x
    order = keep.int().argsort(dim=1, descending=True, stable=True)
    moved = x.gather(2, order[:, None, :, None].expand(x.shape))
    return moved.masked_fill(~keep.gather(1, order)[:, None, :, None], 0.0)
