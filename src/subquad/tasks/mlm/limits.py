"""Limits on the length of the sequences that a text model takes."""

from subquad.attention import require_length
from subquad.errors import SubquadError
from subquad.models import ModelOptions
from subquad.types import AttentionOptions


def length_bytes(length: int) -> int:
    """Lower bound on the bytes of one sequence: inputs and outputs of the smallest layer."""
    return 4 * 4 * 2 * length


def check_length(length: int, attention: AttentionOptions, model: ModelOptions) -> None:
    """Raises `SubquadError` if sequences are longer than the attention or learned positions allow."""
    if model.positions == "learned" and model.longest < length:
        raise SubquadError(f"--length is {length}, but the model learns {model.longest} positions: give a larger --longest")
    try:
        require_length(attention, length)
    except SubquadError as error:
        raise SubquadError(f"--length is {length}, which {attention.kind} does not take: {error}") from None


def check_longest(longest: int, unit: str, attention: AttentionOptions, model: ModelOptions, options: str) -> None:
    """Raises `SubquadError` if the longest sequence of the data is longer than the attention or learned positions allow.

    `unit` says what a position is, and `options` which options make sequences shorter.
    """
    if model.positions == "learned" and model.longest < longest:
        raise SubquadError(
            f"the model reads up to {longest} {unit}, but learns {model.longest} positions: give a larger --longest, or a "
            f"smaller {options}"
        )
    try:
        require_length(attention, longest)
    except SubquadError as error:
        raise SubquadError(
            f"the model reads up to {longest} {unit}, too many for {attention.name}: {error}; or give a smaller {options}"
        ) from None
