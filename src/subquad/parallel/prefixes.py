"""Sums over the stretches before each one: handed on by a ring, or found by a scan in log2(N) rounds.

A message stands for a run of neighbouring stretches. `join(near, far, ranks)` returns the message of two runs: `near` is
that of the stretches `ranks`, next to the receiver, and `far` that of the stretches beyond them.

| | rounds | messages that a process sends |
|---|---|---|
| ring | N - 1, one after the other | 1 |
| scan | log2 N, all processes at once | up to log2 N |
"""

from collections.abc import Callable

import torch
from torch import Tensor

from subquad.parallel.group import Group

Join = Callable[[Tensor, Tensor, range], Tensor]


def sum_before(group: Group, message: Tensor, join: Join, *, backwards: bool = False) -> Tensor | None:
    """Returns the joined messages of all stretches before this one, or after it if `backwards`; None if there are none."""
    return (_by_ring if group.way == "ring" else _by_scan)(group, message, join, backwards)


def _by_ring(group: Group, message: Tensor, join: Join, backwards: bool) -> Tensor | None:
    place = _place(group, backwards)
    before = None
    if place:
        before = torch.empty_like(message)
        group.exchange({}, {_rank(group, place - 1, backwards): before})
        message = join(message, before, _ranks(group, place, place, backwards))
    if place < group.size - 1:
        group.exchange({_rank(group, place + 1, backwards): message}, {})
    return before


def _by_scan(group: Group, message: Tensor, join: Join, backwards: bool) -> Tensor | None:
    place, before, step = _place(group, backwards), None, 1
    while step < group.size:
        sent = {_rank(group, place + step, backwards): message} if place + step < group.size else {}
        far = torch.empty_like(message) if place >= step else None
        group.exchange(sent, {} if far is None else {_rank(group, place - step, backwards): far})
        if far is not None:
            # `message` is that of the last `step` stretches up to this one, `before` the same without this one
            before = far if before is None else join(before, far, _ranks(group, place - step + 1, place - 1, backwards))
            message = join(message, far, _ranks(group, place - step + 1, place, backwards))
        step *= 2
    return before


def _place(group: Group, backwards: bool) -> int:
    """Number of stretches before this one, or after it if `backwards`."""
    return group.size - 1 - group.rank if backwards else group.rank


def _rank(group: Group, place: int, backwards: bool) -> int:
    return group.size - 1 - place if backwards else place


def _ranks(group: Group, first: int, last: int, backwards: bool) -> range:
    """The ranks of the stretches at the places from `first` to `last`, in ascending order."""
    ends = sorted((_rank(group, first, backwards), _rank(group, last, backwards)))
    return range(ends[0], ends[1] + 1)
