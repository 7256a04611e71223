"""Sequences of any symbols: predict the next one from those before it, or the label of the whole sequence."""

from subquad.tasks.tokens.labelled import LabelTokens
from subquad.tasks.tokens.next import NextTokens
from subquad.tasks.tokens.task import Tokens

__all__ = ["LabelTokens", "NextTokens", "Tokens"]
