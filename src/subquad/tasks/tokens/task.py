"""The task tokens: predict the next symbol of a sequence of symbols, or the label of the whole sequence."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from subquad.tasks.tokens.labelled import LabelTokens
from subquad.tasks.tokens.next import NextTokens
from subquad.tasks.tokens.options import TokenOptions
from subquad.tasks.tokens.source import Source


@dataclass(frozen=True)
class Tokens(TokenOptions):
    """Predict the next symbol or the label of any sequences of symbols: genomes, logs, notes, clicks, or made-up ones."""

    kind: str = field(default="tokens", init=False)

    def prepare(self, learned: Mapping[str, Any] | None = None) -> LabelTokens | NextTokens:
        """Returns the task. If `learned` is given, the sequences are read only on first use."""
        source = Source(self, learned)
        return LabelTokens(source) if source.goal == "label" else NextTokens(source)
