"""Models around the mechanisms."""

from subquad.models.block import Block
from subquad.models.multihead import MultiheadAttention

__all__ = ["Block", "MultiheadAttention"]
