"""How many numbers a model holds and a training step keeps, by arithmetic from options: nothing is built.

The numbers are exact where they are of weights, and lower bounds where they are of what is kept in between, so that a
refusal that rests on them never refuses what works.
"""

from typing import NamedTuple

from subquad.attention import layers_size
from subquad.capacity import require_memory
from subquad.models.options import ModelOptions
from subquad.types import AttentionOptions, MechanismSize


class Size(NamedTuple):
    """Lower bounds for a model and for what one of its training sequences needs."""

    numbers: int
    """Parameters and buffers."""
    trained: int
    """Parameters that have gradients and moments."""
    positions: int = 0
    """Positions of a sequence in all stacks together."""
    sequence_bytes: int = 0
    """Bytes of a sequence beside what the stacks keep."""
    data_bytes: int = 0
    """Bytes that do not depend on the batch, such as simulated data."""


def stack_numbers(attention: AttentionOptions, options: ModelOptions, *, cross: bool = False) -> int:
    """Parameters and buffers of a stack: its layers, its positions and its last norm, without an embedding."""
    model_dim, norm = options.model_dim, 2 * options.model_dim
    inner = options.feed_dim or 4 * model_dim
    attentions = 2 if cross else 1
    block = attentions * (4 * linear_numbers(model_dim, model_dim) + norm)
    block += linear_numbers(model_dim, inner) + linear_numbers(inner, model_dim) + norm
    learned = options.longest * model_dim if options.positions == "learned" else 0
    last = norm if options.norm == "pre" else 0
    return options.layers * block + attentions * mechanisms(attention, options).numbers + learned + last


def require_stack(attention: AttentionOptions, options: ModelOptions, *, cross: bool = False) -> None:
    """Refuses a stack whose numbers do not fit into memory."""
    needed = 4 * stack_numbers(attention, options, cross=cross)
    require_memory("a model of this size", needed, "make --layers, --heads, --head-dim or the attention's own sizes smaller")


def mechanisms(attention: AttentionOptions, options: ModelOptions) -> MechanismSize:
    """All layers' mechanisms together."""
    return layers_size(attention, heads=options.heads, head_dim=options.head_dim, layers=options.layers)


def linear_numbers(inputs: int, outputs: int) -> int:
    """Weights and biases of a linear layer."""
    return (inputs + 1) * outputs


def decoder_size(
    vocabulary: int, attention: AttentionOptions, options: ModelOptions, *, positions: int, cross: bool = False
) -> Size:
    """A decoder with its embedding, and its last layer where that is not the embedding's transpose."""
    model_dim = options.model_dim
    ends = vocabulary * model_dim + (0 if options.tied else linear_numbers(model_dim, vocabulary))
    return with_stack(ends, attention, options, positions=positions, cross=cross)


def with_stack(
    numbers: int, attention: AttentionOptions, options: ModelOptions, *, positions: int = 0, cross: bool = False
) -> Size:
    """A stack, and so many parameters beside it."""
    total = numbers + stack_numbers(attention, options, cross=cross)
    of_mechanisms = (2 if cross else 1) * mechanisms(attention, options).numbers  # some of which may be buffers
    return Size(total, total - of_mechanisms, positions)


def kept_numbers(options: ModelOptions, *, recompute: bool) -> int:
    """Numbers that the layers keep of each position for the backward, at least.

    Every layer keeps the inputs of its products and of the activation. With `recompute` only one layer at a time does, and
    the others keep their own inputs.
    """
    model_dim = options.model_dim
    layer = 6 * model_dim + 2 * (options.feed_dim or 4 * model_dim)
    return options.layers * model_dim + layer if recompute else options.layers * layer
