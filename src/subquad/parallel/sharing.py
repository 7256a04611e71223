"""Lets a model work on a sequence of which each process holds a stretch."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from typing import Any

from torch import Tensor, nn

from subquad.attention import Mechanism, require_length
from subquad.errors import SubquadError
from subquad.models.multihead import attentions_of
from subquad.models.stacks import Stack
from subquad.parallel.group import Group
from subquad.parallel.mechanisms import CUTS
from subquad.parallel.mechanisms.base import MakeQueries
from subquad.parallel.stretches import Stretch, cut_points
from subquad.types import AttentionOptions


def check_cut(mechanisms: Sequence[AttentionOptions], *, causal: bool) -> None:
    """Raises `SubquadError` if one of a model's mechanisms cannot be cut over processes."""
    for options in mechanisms:
        if options.kind not in CUTS:
            is_foreign = options.traits.foreign
            why = "as it is code of another package" if is_foreign else "as all of its positions choose among each other"
            raise SubquadError(
                f"{options.name} cannot be cut over processes, {why}: leave --sequence-parallel out, or choose among "
                f"{', '.join(CUTS)}"
            )
        CUTS[options.kind].check(options, causal=causal)


def points_for(mechanisms: Sequence[AttentionOptions], length: int, parts: int) -> tuple[int, ...]:
    """Returns the points at which sequences are cut over so many processes. Raises `SubquadError` if they are too short."""
    multiples = {options.kind: CUTS[options.kind].multiple(options) for options in mechanisms}
    multiple = math.lcm(*multiples.values())
    why = ", ".join(f"{kind} is cut at multiples of {each}" for kind, each in multiples.items() if each > 1)
    points = cut_points(length, parts, multiple, why)
    shortest = min((after - before for before, after in pairwise(points[:-1])), default=length)
    for options in mechanisms:
        require_length(options, length)
        least = CUTS[options.kind].least(options)
        if parts > 1 and shortest < least:
            raise SubquadError(
                f"a sequence of {length} positions over {parts} processes has stretches of {shortest}, but {options.kind} "
                f"reaches {least} back: give a smaller --sequence-parallel or longer sequences"
            )
    return points


@contextmanager
def shared(model: nn.Module, mechanisms: Sequence[AttentionOptions], group: Group, length: int) -> Iterator[Stretch]:
    """Inside the block, the model takes a stretch of a sequence of `length` positions, and attends to the whole of it.

    Forward and backward both belong into the block. All processes of the group enter it with the same length.

    Args:
        model: a model whose positions meet in `MultiheadAttention` only.
        mechanisms: the options of the mechanisms of its layers.
        group: the processes that hold the sequence.
        length: number of positions of the whole sequence.
    """
    stretch = Stretch(group, points_for(mechanisms, length, group.size))
    layers = attentions_of(model)
    stacks = [module for module in model.modules() if isinstance(module, Stack)]
    try:
        for layer in layers:
            layer.across = partial(_mix, stretch)
        for stack in stacks:
            stack.first_position = stretch.start
        yield stretch
    finally:
        for layer in layers:
            layer.across = None
        for stack in stacks:
            stack.first_position = 0


def _mix(
    stretch: Stretch, attend: Any, make_q: MakeQueries, k: Tensor, v: Tensor, keep: Tensor | None, *, causal: bool
) -> Tensor:
    """Mixes the values of a stretch."""
    assert isinstance(attend, Mechanism)
    cut = CUTS[attend.options.kind]
    if keep is not None and not cut.keeps:
        raise SubquadError(
            f"{attend.options.kind} cannot be cut over processes where sequences are padded: give sequences of one length, "
            "or choose linear or favor"
        )
    return cut.mix(attend, make_q, k, v, keep, stretch, causal=causal)
