"""Finds out how attentions that are named as MODULE:NAME are called, for using them beside the mechanisms here."""

from collections.abc import Sequence
from typing import NamedTuple

from subquad.attention import Outside
from subquad.check import processes
from subquad.check.findings import Finding
from subquad.check.processes import Helper
from subquad.check.request import Request
from subquad.check.suite import open_attention
from subquad.errors import SubquadError

OPENING_SECONDS = 60.0
"""Time limit for importing an attention and trying how it is called."""
OPENING_BYTES = 2**32
"""Memory limit of the process in which an attention is tried."""


class Opened(NamedTuple):
    """Attentions that can be called, by name, and for each of the others a sentence that says why it cannot."""

    attentions: dict[str, Outside]
    left_out: dict[str, str]


def open_all(requests: Sequence[Request], preload: Sequence[str]) -> Opened:
    """Imports attentions and tries how they are called, in a process that may break without harm.

    `preload` names modules that later processes of the caller need, to be imported once for all.
    """
    opened = Opened({}, {})
    with Helper(OPENING_BYTES, (*preload, *processes.PRELOAD)) as helper:
        for request in requests:
            try:
                opened.attentions[request.target] = _open(helper, request)
            except SubquadError as error:
                opened.left_out[request.target] = str(error)
    return opened


def _open(helper: Helper, request: Request) -> Outside:
    """Returns how an attention is called. Raises `SubquadError` if it cannot be imported, built or called."""
    case = open_attention(helper, request, OPENING_SECONDS)
    if isinstance(case, Finding):
        raise SubquadError(case.sentence)
    outside = case.guessed.outside
    if outside.layer:
        raise SubquadError(f"it takes x, not q, k and v: `subquad check {request.target}` measures how its costs grow")
    return outside
