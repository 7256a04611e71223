"""How a sequence of symbols is written in a line or a cell: words between separators, or characters."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from subquad.checking import Checked, Words

SAMPLED = 1000
"""Number of lines or cells by which the form is recognised."""
SEPARATORS = (",", ";", "|")
"""Characters that separate symbols where there are no spaces, in the order in which they are tried."""
MOSTLY = 0.5
"""Share of the sequences that must hold a separator."""
LONG = 4
"""Mean number of characters of sequences without separators, from which on characters are the symbols."""
UNKNOWN_NAME = "<unknown>"
"""How a symbol that the vocabulary lacks is written."""


@dataclass(frozen=True)
class Form(Checked):
    """How symbols are written one after the other."""

    characters: bool = False  # every character is a symbol
    separator: Words = ""  # character between symbols; empty for spaces

    def said(self) -> str:
        """The form in words."""
        if self.characters:
            return "every character is a symbol"
        return f"symbols are separated by {repr(self.separator) if self.separator else 'spaces'}"

    def split(self, text: str) -> list[str]:
        """The symbols of a text."""
        text = text.strip()
        if self.characters:
            return list(text)
        if text[:1] in ("[", "(") and text[-1:] in ("]", ")"):
            text = text[1:-1]
        if not self.separator:
            return text.split()
        return [part for part in map(str.strip, text.split(self.separator)) if part]

    def join(self, symbols: Sequence[str]) -> str:
        """Symbols as they would be written; unknown ones have a name of their own."""
        return ("" if self.characters else self.separator or " ").join(symbols)


def recognise_form(texts: Sequence[str]) -> Form:
    """The form of sequences: spaces if most have some, or another separator, or characters of long ones without any."""
    some = [text.strip() for text in islice(texts, SAMPLED) if text.strip()]
    if not some:
        return Form()
    for separator in SEPARATORS:
        parts = [re.sub(rf"\s*{re.escape(separator)}\s*", "", text) for text in some]
        is_in_most = sum(separator in text for text in some) >= MOSTLY * len(some)
        if is_in_most and not any(re.search(r"\s", part) for part in parts):  # spaces beside separators only
            return Form(separator=separator)
    if sum(bool(re.search(r"\s", text)) for text in some) >= MOSTLY * len(some):
        return Form()
    is_separated = any(re.search(r"[\s,;|]", text) for text in some)
    return Form(characters=not is_separated and sum(map(len, some)) >= LONG * len(some))
