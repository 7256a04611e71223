"""Reversible layers (Gomez et al. 2017; Kitaev et al. 2020), whose inputs follow from their outputs.

A layer has two vectors for each position, x and y:

    x' = x + attention(y),   y' = y + feed(x')      and back:      y = y' - feed(x'),   x = x' - attention(y)

The backward computes each layer's inputs from its outputs, so that training keeps the last layer's outputs only, however
many layers there are.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from subquad.errors import SubquadError
from subquad.models.block import Block
from subquad.models.positions import Rotation
from subquad.types import AttentionOptions

Pair = Float[Tensor, "b n pair"]
"""Both vectors of each position, one after the other."""


class ReversibleBlock(Block):
    """A pre-norm block without cross-attention whose residual connections can be inverted. Vectors are `Pair`s."""

    def forward(  # type: ignore[override]
        self, x: Pair, *, keep: Bool[Tensor, "b n"] | None = None, rotation: Rotation | None = None
    ) -> Pair:
        """Applies the block; every position sees every kept position."""
        first, second = x.chunk(2, dim=-1)
        first = first + self.mixed(second, keep=keep, rotation=rotation)
        return torch.cat([first, second + self.fed(first)], dim=-1)

    def mixed(
        self,
        y: Float[Tensor, "b n w"],
        *,
        keep: Bool[Tensor, "b n"] | None = None,
        rotation: Rotation | None = None,
        causal: bool = False,
    ) -> Float[Tensor, "b n w"]:
        """Returns what attention adds to the first vectors."""
        normed = self.norm_attention(y)
        if causal:
            mixed = self.attention.causal(normed, keep=keep, rotation=rotation)[0]
        else:
            mixed = self.attention(normed, keep=keep, rotation=rotation)
        dropped: Tensor = self.dropout(mixed)
        return dropped

    def fed(self, x: Float[Tensor, "b n w"]) -> Float[Tensor, "b n w"]:
        """Returns what the feed-forward part adds to the second vectors."""
        dropped: Tensor = self.dropout(self.feed(self.norm_feed(x)))
        return dropped

    def _remembering(self, x: Pair, attend: Callable[[Tensor], tuple[Tensor, Any]]) -> tuple[Pair, Any]:
        """Adds self-attention with a state to the first vectors; returns both and the new state."""
        first, second = x.chunk(2, dim=-1)
        mixed, state = attend(self.norm_attention(second))
        return torch.cat([first + self.dropout(mixed), second], dim=-1), state

    def _rest(self, x: Pair, context: Any, keep: Tensor | None) -> Pair:
        """Adds the feed-forward part to the second vectors."""
        first, second = x.chunk(2, dim=-1)
        return torch.cat([first, second + self.fed(first)], dim=-1)


def require_reversible(attention: AttentionOptions, *, cross: bool) -> None:
    """Raises `SubquadError` for layers that cannot be reversible."""
    if cross:
        raise SubquadError("reversible layers have no cross-attention: leave reversible out, or choose a decoder without it")
    if attention.traits.adds_to_loss:
        raise SubquadError(f"{attention.kind} adds to the loss, which reversible layers cannot do: leave one of them out")


def merged(x: Pair) -> Float[Tensor, "b n w"]:
    """Returns the mean of both vectors of each position."""
    first, second = x.chunk(2, dim=-1)
    return (first + second) / 2


class Part(NamedTuple):
    """A function that is added to one of the vectors, and the parameters that it is differentiable in."""

    run: Callable[[Tensor], Tensor]
    weights: Sequence[Tensor]


def parts_of(block: ReversibleBlock, *, keep: Tensor | None, rotation: Rotation | None, causal: bool) -> tuple[Part, Part]:
    """Returns the attention and the feed-forward part of a block."""

    def mixed(y: Tensor) -> Tensor:
        return block.mixed(y, keep=keep, rotation=rotation, causal=causal)

    attention, feed = (
        [weight for module in modules for weight in module.parameters() if weight.requires_grad]
        for modules in ((block.norm_attention, block.attention), (block.norm_feed, block.feed))
    )
    return Part(mixed, attention), Part(block.fed, feed)


def through(blocks: Sequence[tuple[Part, Part]], x: Pair) -> Pair:
    """Applies blocks one after the other, and saves their last outputs only."""
    weights = list(dict.fromkeys(weight for parts in blocks for part in parts for weight in part.weights))
    first, second = x.chunk(2, dim=-1)
    pair = _Through.apply(first, second, blocks, *weights)  # type: ignore[no-untyped-call]
    return torch.cat(pair, dim=-1)


class _Through(torch.autograd.Function):
    """All blocks in one. With G and H the gradients of x' and y', that of x is I = G + feed'(x')^T H.

    That of y is H + attention'(y)^T I.
    """

    @staticmethod
    def forward(
        ctx: Any, first: Tensor, second: Tensor, blocks: Sequence[tuple[Part, Part]], *weights: Tensor
    ) -> tuple[Tensor, Tensor]:
        ctx.blocks, ctx.weights, ctx.settings = blocks, weights, []
        for attention, feed in blocks:
            ctx.settings.append(_Setting(first.device))
            first = first + attention.run(second)
            ctx.settings.append(_Setting(first.device))
            second = second + feed.run(first)
        ctx.save_for_backward(first, second)
        return first, second

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_first: Tensor, d_second: Tensor) -> tuple[Tensor | None, ...]:
        first, second = ctx.saved_tensors
        totals: dict[Tensor, Tensor] = {}
        settings = list(ctx.settings)
        for attention, feed in reversed(ctx.blocks):
            second, d_first = _undo(feed, first, second, d_first, d_second, settings.pop(), totals)
            first, d_second = _undo(attention, second, first, d_second, d_first, settings.pop(), totals)
        return d_first, d_second, None, *(totals.get(weight) for weight in ctx.weights)


def _undo(
    part: Part,
    given: Tensor,
    changed: Tensor,
    d_given: Tensor,
    d_changed: Tensor,
    setting: "_Setting",
    totals: dict[Tensor, Tensor],
) -> tuple[Tensor, Tensor]:
    """Returns `changed` without part(given), and the gradient of `given`; adds those of weights to `totals`."""
    with torch.enable_grad(), setting.restored():
        leaf = given.detach().requires_grad_()
        added = part.run(leaf)
    gradients = torch.autograd.grad(added, [leaf, *part.weights], d_changed, allow_unused=True)
    for weight, gradient in zip(part.weights, gradients[1:], strict=True):
        if gradient is not None:
            totals[weight] = totals[weight] + gradient if weight in totals else gradient
    for_given = d_given if gradients[0] is None else d_given + gradients[0]
    return changed - added.detach(), for_given


class _Setting:
    """What a part's result depends on besides its input: random numbers for dropout, and autocast."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._random = torch.get_rng_state()
        self._device_random = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
        self._autocast = torch.is_autocast_enabled(device.type)
        self._autocast_dtype = torch.get_autocast_dtype(device.type)

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Within the `with` block, all is as it was when this was made."""
        devices = [] if self._device_random is None else [self._device]
        autocast = torch.autocast(self._device.type, dtype=self._autocast_dtype, enabled=self._autocast)
        with torch.random.fork_rng(devices=devices), autocast:
            torch.set_rng_state(self._random)
            if self._device_random is not None:
                torch.cuda.set_rng_state(self._device_random, self._device)
            yield
