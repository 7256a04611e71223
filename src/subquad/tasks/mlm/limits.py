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
