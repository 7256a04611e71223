"""Models around the mechanisms."""

from subquad.models.multihead import MultiheadAttention

__all__ = ["MultiheadAttention"]
