"""Exchanges of positions: neighbouring ones, the first ones, and all of them. Tensors are "b h n d"."""

import torch
from torch import Tensor

from subquad.parallel.group import flat, unflat
from subquad.parallel.stretches import Stretch
from subquad.parallel.trips import Exchange, Tensors, Trip


def edges(stretch: Stretch, before: int, after: int, *tensors: Tensor) -> Trip:
    """Begins to fetch the last `before` positions of the stretch before this one, and the first `after` of the one after it.

    Results are those before of each tensor, then those after of each; fewer where a neighbour is shorter or missing.
    """
    return Trip(stretch.group, _Edges(stretch, before, after), *tensors)


def first_positions(stretch: Stretch, count: int, *tensors: Tensor) -> Trip:
    """Begins to fetch the first positions of the sequence. The first stretch, which has them, gets none."""
    return Trip(stretch.group, _FirstPositions(stretch, count), *tensors)


def all_positions(stretch: Stretch, *tensors: Tensor, only_before: bool) -> Trip:
    """Begins to fetch the positions of all other stretches, or only of those before; joined in order without this one's.

    Results are the positions before this stretch of each tensor, then those after it of each.
    """
    return Trip(stretch.group, _AllPositions(stretch, only_before=only_before), *tensors)


class _Edges(Exchange):
    def __init__(self, stretch: Stretch, before: int, after: int) -> None:
        self.stretch = stretch
        rank, length_of = stretch.rank, stretch.length_of
        self.fetched = {-1: min(before, length_of(rank - 1)), 1: min(after, length_of(rank + 1))}
        """Number of positions that come from each side."""
        self.given = {
            -1: min(after, length_of(rank)) if not stretch.is_first else 0,
            1: min(before, length_of(rank)) if not stretch.is_last else 0,
        }
        """Number of positions that go to each side."""

    def forward(self, *tensors: Tensor) -> Tensors:
        sent = {1: [tensor[:, :, tensor.shape[2] - self.given[1] :] for tensor in tensors]}
        sent[-1] = [tensor[:, :, : self.given[-1]] for tensor in tensors]
        like = {side: [_with_positions(tensor, self.fetched[side]) for tensor in tensors] for side in (-1, 1)}
        received = self._trade(sent, like)
        return *received[-1], *received[1]

    def backward(self, *gradients: Tensor) -> list[Tensor]:
        count, length = len(gradients) // 2, self.stretch.length_of(self.stretch.rank)
        sent = {-1: list(gradients[:count]), 1: list(gradients[count:])}
        like = {side: [_with_positions(tensor, self.given[side]) for tensor in gradients[:count]] for side in (-1, 1)}
        received = self._trade(sent, like)
        totals = [torch.zeros_like(_with_positions(tensor, length)) for tensor in gradients[:count]]
        for total, to_left, to_right in zip(totals, received[-1], received[1], strict=True):
            total[:, :, : self.given[-1]] += to_left
            total[:, :, length - self.given[1] :] += to_right
        return totals

    def _trade(self, sent: dict[int, list[Tensor]], like: dict[int, list[Tensor]]) -> dict[int, list[Tensor]]:
        """Sends tensors to both sides, and returns those that come from them."""
        rank = self.stretch.rank
        messages = {rank + side: flat(*tensors) for side, tensors in sent.items()}
        into = {rank + side: flat(*tensors) for side, tensors in like.items()}
        self.stretch.group.exchange(messages, into)
        return {side: unflat(into[rank + side], *like[side]) for side in (-1, 1)}


class _FirstPositions(Exchange):
    def __init__(self, stretch: Stretch, count: int) -> None:
        self.stretch, self.count = stretch, count

    def forward(self, *tensors: Tensor) -> Tensors:
        if self.stretch.is_first:
            message = flat(*(tensor[:, :, : self.count] for tensor in tensors))
            self.stretch.group.exchange(dict.fromkeys(range(1, self.stretch.group.size), message), {})
            return tuple(tensor[:, :, :0].clone() for tensor in tensors)
        like = [_with_positions(tensor, self.count) for tensor in tensors]
        message = flat(*like)
        self.stretch.group.exchange({}, {0: message})
        return tuple(unflat(message, *like))

    def backward(self, *gradients: Tensor) -> list[Tensor]:
        length = self.stretch.length_of(self.stretch.rank)
        totals = [torch.zeros_like(_with_positions(tensor, length)) for tensor in gradients]
        if not self.stretch.is_first:
            self.stretch.group.exchange({0: flat(*gradients)}, {})
            return totals
        like = [_with_positions(tensor, self.count) for tensor in gradients]
        messages = {rank: flat(*like) for rank in range(1, self.stretch.group.size)}
        self.stretch.group.exchange({}, messages)
        for message in messages.values():
            for total, part in zip(totals, unflat(message, *like), strict=True):
                total[:, :, : self.count] += part
        return totals


class _AllPositions(Exchange):
    """All-gather of positions; the gradient of a position is the sum of what all processes send back (reduce-scatter)."""

    def __init__(self, stretch: Stretch, *, only_before: bool) -> None:
        self.stretch = stretch
        rank, ranks = stretch.rank, range(stretch.group.size)
        self.sources = [other for other in ranks if other != rank and (other < rank or not only_before)]
        self.targets = [other for other in ranks if other != rank and (other > rank or not only_before)]

    def forward(self, *tensors: Tensor) -> Tensors:
        message = flat(*tensors)
        like = {rank: [_with_positions(tensor, self.stretch.length_of(rank)) for tensor in tensors] for rank in self.sources}
        into = {rank: flat(*parts) for rank, parts in like.items()}
        self.stretch.group.exchange(dict.fromkeys(self.targets, message), into)
        parts = {rank: unflat(into[rank], *like[rank]) for rank in self.sources}
        return *self._joined(tensors, parts, before=True), *self._joined(tensors, parts, before=False)

    def backward(self, *gradients: Tensor) -> list[Tensor]:
        stretch, count = self.stretch, len(gradients) // 2
        sent = {rank: flat(*self._cut(rank, gradients[:count], gradients[count:])) for rank in self.sources}
        like = [_with_positions(tensor, stretch.length_of(stretch.rank)) for tensor in gradients[:count]]
        into = {rank: flat(*like) for rank in self.targets}
        stretch.group.exchange(sent, into)
        totals = [torch.zeros_like(tensor) for tensor in like]
        for message in into.values():
            for total, part in zip(totals, unflat(message, *like), strict=True):
                total += part
        return totals

    def _joined(self, tensors: Tensors, parts: dict[int, list[Tensor]], *, before: bool) -> list[Tensor]:
        chosen = [parts[rank] for rank in self.sources if (rank < self.stretch.rank) == before]
        return [torch.cat([tensor[:, :, :0], *(part[at] for part in chosen)], dim=2) for at, tensor in enumerate(tensors)]

    def _cut(self, rank: int, before: Tensors, after: Tensors) -> list[Tensor]:
        """The gradients of another stretch's positions."""
        points, length = self.stretch.points, self.stretch.length_of(rank)
        if rank < self.stretch.rank:
            return [tensor[:, :, points[rank] : points[rank] + length] for tensor in before]
        start = points[rank] - self.stretch.stop
        return [tensor[:, :, start : start + length] for tensor in after]


def _with_positions(tensor: Tensor, count: int) -> Tensor:
    """Returns memory for so many positions, otherwise like the tensor."""
    b, h, _, d = tensor.shape
    return tensor.new_empty(b, h, count, d)
