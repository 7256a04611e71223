"""What a run of a language model stores about its texts, to continue without them or to notice that they have changed."""

from collections.abc import Mapping
from typing import Any

from typing_extensions import TypedDict

from subquad.checking import STRICT, Whole, read_as
from subquad.errors import SubquadError
from subquad.results import place_of


class KeptTexts(TypedDict):
    """The vocabulary, and the numbers of documents and of their characters."""

    __pydantic_config__ = STRICT  # type: ignore[misc]

    vocabulary: dict[str, Any]
    documents: Whole
    characters: Whole


def read_kept(learned: Mapping[str, Any] | None) -> KeptTexts | None:
    """Reads the fields that a run stored. Returns None for a new run, which has none."""
    return None if learned is None else read_as(KeptTexts, learned, f"{place_of(learned)}: learned")


def check_texts(kept: KeptTexts | None, source: str, documents: int, characters: int) -> None:
    """Raises `SubquadError` if the texts differ in number or size from those that the run was made with."""
    if kept is None:
        return
    had, has = (kept["documents"], kept["characters"]), (documents, characters)
    if had != has:
        raise SubquadError(
            f"the texts in {source or 'this Python'} are not those that the run was made with: it had {had[0]:,} "
            f"documents with {had[1]:,} characters, they have {has[0]:,} with {has[1]:,}; start a new run"
        )
