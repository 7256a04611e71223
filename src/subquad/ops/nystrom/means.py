"""Landmarks of sequences without padding: means of runs of positions, beside the positions themselves."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from subquad.ops.autocast import needs_gradient


def segment_means(x: Float[Tensor, "b h n d"], landmarks: int) -> Float[Tensor, "b h m d"]:
    """Returns the means of m runs of positions, the first n mod m of which are one position longer than the others."""
    return torch.cat([run.mean(3) for run in _runs(x, landmarks)], dim=2)


def with_means(x: Float[Tensor, "b h n d"], landmarks: int) -> tuple[Float[Tensor, "b h n d"], Float[Tensor, "b h m d"]]:
    """Returns x and the means of its runs. Both gradients are added in one pass over the positions."""
    if needs_gradient(x) and not torch.compiler.is_compiling():
        both: tuple[Tensor, Tensor] = _WithMeans.apply(x, landmarks)  # type: ignore[no-untyped-call]
        return both
    return x, segment_means(x, landmarks)


def _runs(x: Float[Tensor, "b h n d"], landmarks: int) -> list[Float[Tensor, "b h runs size d"]]:
    """Views of the runs of x: those that are one position longer, if there are any, and the others."""
    size, longer = divmod(x.shape[2], landmarks)
    if not longer:
        return [x.unflatten(2, (landmarks, size))]
    first, rest = x.split([longer * (size + 1), (landmarks - longer) * size], dim=2)
    return [first.unflatten(2, (longer, size + 1)), rest.unflatten(2, (landmarks - longer, size))]


class _WithMeans(torch.autograd.Function):
    """x and the means of its runs. A position has its own gradient and its part of that of its run's mean."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, landmarks: int) -> tuple[Tensor, Tensor]:
        ctx.landmarks = landmarks
        return x.view_as(x), segment_means(x, landmarks)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, of_means: Tensor) -> tuple[Tensor, None]:
        runs = _runs(gradient, ctx.landmarks)
        for run, mean in zip(runs, of_means.split([run.shape[2] for run in runs], dim=2), strict=True):
            run.add_(mean[:, :, :, None], alpha=1 / run.shape[3])  # the gradient of x is made for this function only
        return gradient, None
