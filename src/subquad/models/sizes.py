"""Number of values in a model and in a training step, computed from the options without building the model.

Numbers of weights are exact and numbers of activations are lower bounds, so that a check against the memory never refuses
a model that fits.
"""

from dataclasses import replace
from typing import NamedTuple

from subquad.attention import layers_size
from subquad.capacity import require_memory
from subquad.models.options import ModelOptions
from subquad.types import AttentionOptions, MechanismSize


class Size(NamedTuple):
    """Lower bounds of the size of a model and of one training sequence."""

    numbers: int
    """Number of elements of parameters and buffers."""
    trained: int
    """Number of parameters that have gradients and optimizer moments."""
    positions: int = 0
    """Number of positions of a sequence, summed over all stacks."""
    sequence_bytes: int = 0
    """Bytes of a sequence in addition to the activations of the stacks."""
    data_bytes: int = 0
    """Bytes that do not depend on the batch, such as simulated data."""


def stack_numbers(attention: AttentionOptions, options: ModelOptions, *, cross: bool = False) -> int:
    """Number of parameters and buffers of a stack: layers, positions and last norm, without an embedding."""
    model_dim, norm = options.model_dim, 2 * options.model_dim
    inner = options.feed_dim or 4 * model_dim
    attentions, heads_dim = 2 if cross else 1, options.attention_heads * options.head_dim
    block = attentions * (3 * linear_numbers(model_dim, heads_dim) + linear_numbers(heads_dim, model_dim) + norm)
    block += linear_numbers(model_dim, inner) + linear_numbers(inner, model_dim) + norm
    sharing = options.layers - -(-options.layers // options.share_attention)  # layers without queries and keys of their own
    shared = sharing * 2 * linear_numbers(model_dim, heads_dim)
    learned = options.longest * model_dim if options.positions == "learned" else 0
    last = norm if options.norm == "pre" else 0
    return options.layers * block - shared + mechanism_numbers(attention, options, cross=cross) + learned + last


def require_stack(attention: AttentionOptions, options: ModelOptions, *, cross: bool = False) -> None:
    """Raises `SubquadError` for a stack that does not fit into memory."""
    needed = 4 * stack_numbers(attention, options, cross=cross)
    require_memory("a model of this size", needed, "make --layers, --heads, --head-dim or the attention's own sizes smaller")


def mechanisms(attention: AttentionOptions, options: ModelOptions) -> MechanismSize:
    """Returns the total size of the mechanisms of all layers."""
    return layers_size(attention, heads=options.attention_heads, head_dim=options.head_dim, layers=options.layers)


def mechanism_numbers(attention: AttentionOptions, options: ModelOptions, *, cross: bool = False) -> int:
    """Number of parameters and buffers of the mechanisms of all layers, some of which may be one and the same."""
    groups = replace(options, layers=-(-options.layers // options.share_attention))
    return mechanisms(attention, groups).numbers + (mechanisms(attention, options).numbers if cross else 0)


def linear_numbers(inputs: int, outputs: int) -> int:
    """Number of weights and biases of a linear layer."""
    return (inputs + 1) * outputs


def decoder_size(
    vocabulary: int, attention: AttentionOptions, options: ModelOptions, *, positions: int, cross: bool = False
) -> Size:
    """Returns the size of a decoder with its embedding, and its output layer unless it is tied to the embedding."""
    model_dim = options.model_dim
    ends = vocabulary * model_dim + (0 if options.tied else linear_numbers(model_dim, vocabulary))
    return with_stack(ends, attention, options, positions=positions, cross=cross)


def with_stack(
    numbers: int, attention: AttentionOptions, options: ModelOptions, *, positions: int = 0, cross: bool = False
) -> Size:
    """Returns the size of a stack plus `numbers` further parameters."""
    total = numbers + stack_numbers(attention, options, cross=cross)
    of_mechanisms = mechanism_numbers(attention, options, cross=cross)  # some may be buffers
    return Size(total, total - of_mechanisms, positions)


def kept_numbers(options: ModelOptions, *, recompute: bool) -> int:
    """Lower bound of the number of activations that the layers save for each position.

    Every layer saves the inputs of its products and of the activation. With `recompute`, only one layer at a time does, and
    the others save their inputs only; of reversible layers, none but the last saves anything.
    """
    model_dim = options.model_dim
    if options.reversible:
        return 2 * model_dim
    heads_dim = options.attention_heads * options.head_dim
    layer = 2 * model_dim + 4 * heads_dim + 2 * (options.feed_dim or 4 * model_dim)
    return options.layers * model_dim + layer if recompute else options.layers * layer
