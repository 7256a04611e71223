"""Attentions that are named as MODULE:NAME on the command line, and how they are called."""

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from subquad.attention import MECHANISMS, options_from
from subquad.check import processes
from subquad.check.findings import Finding
from subquad.check.guessing import LAYER_ADVICE, Request
from subquad.check.importing import is_import_name
from subquad.check.outside import Outside
from subquad.check.processes import Helper
from subquad.check.suite import open_attention
from subquad.checking import Checked, Words, excerpt, read_kind
from subquad.cli.values import choose
from subquad.compare import plan
from subquad.errors import SubquadError
from subquad.types import AttentionOptions

OPENING_SECONDS = 60.0
"""Time limit for importing an attention and trying how it is called."""
OPENING_BYTES = 2**32
"""Memory limit of the process in which an attention is tried."""
CALLING_OPTION = re.compile(r"--(?=(layout|mask|mask-argument|arguments|call)\b)")
"""Beginning of an option of `Calling`."""
Layouts = Literal["guess", "bhnd", "bnhd", "bnm", "nbm"]
Masks = Literal["guess", "keep", "pad", "additive", "lengths"]


@dataclass(frozen=True)
class Calling(Checked):
    """How an attention that is named as MODULE:NAME is built and called."""

    layout: Layouts = "guess"
    """Axes of its inputs: batch b, heads h, positions n, numbers of a head d, numbers of all heads m."""
    mask: Masks = "guess"
    """What its padding mask holds: true for real keys (keep), true for padding (pad), numbers added to scores (additive),
    or the number of real keys of each sequence (lengths)."""
    mask_argument: Words = ""
    """Name of the argument that takes its padding mask; found among usual names by default."""
    arguments: tuple[Words, ...] = ()
    """Arguments of its constructor, as NAME=VALUE."""
    call: tuple[Words, ...] = ()
    """Arguments of every call, as NAME=VALUE."""


def read_variant(values: object, where: str) -> AttentionOptions:
    """Reads the options of an attention from a file: of a mechanism, or of one that is imported by name."""
    if isinstance(values, Mapping) and values.get("kind") == "outside":
        options: AttentionOptions = read_kind({"outside": Outside}, values, where)
        return options
    return options_from(values, where)


def request_of(name: str, calling: Calling, *, heads: int, head_dim: int) -> Request:
    """What the options say of an attention, which is a name to import, or one of this package."""
    if "." in name and ":" not in name:
        raise SubquadError(f"{excerpt(name)} is no attention: write MODULE:NAME, as in mypackage.attention:MyAttention")
    if not is_import_name(name):
        kind = MECHANISMS[choose("attention", name, MECHANISMS)]
        name = f"{kind.__module__}:{kind.__qualname__}"
    return Request(
        name,
        heads,
        head_dim,
        layout=None if calling.layout == "guess" else calling.layout,
        mask=None if calling.mask == "guess" else calling.mask,
        mask_argument=calling.mask_argument,
        arguments=read_arguments("--arguments", calling.arguments),
        call=read_arguments("--call", calling.call),
    )


class Opened(NamedTuple):
    """Attentions that can be measured, by name, and for each of the others a sentence that says why it cannot."""

    attentions: dict[str, Outside]
    left_out: dict[str, str]


def open_outside(names: Sequence[str], calling: Calling, *, heads: int, head_dim: int) -> Opened:
    """Finds out how attentions that are named as MODULE:NAME are called, for measuring them beside others."""
    opened = Opened({}, {})
    with Helper(OPENING_BYTES, (*plan.PRELOAD, *processes.PRELOAD)) as helper:
        for name in names:
            try:
                opened.attentions[name] = _open(helper, request_of(name, calling, heads=heads, head_dim=head_dim))
            except SubquadError as error:
                opened.left_out[name] = CALLING_OPTION.sub("--outside.", str(error).replace(LAYER_ADVICE, ""))
    return opened


def _open(helper: Helper, request: Request) -> Outside:
    """Returns how an attention is called. Raises `SubquadError` if it cannot be imported, built or called."""
    case = open_attention(helper, request, OPENING_SECONDS)
    if isinstance(case, Finding):
        raise SubquadError(case.sentence)
    outside = case.guessed.outside
    if outside.layer:
        raise SubquadError(f"it takes x, not q, k and v: `subquad check {request.target}` measures how its costs grow")
    return replace(outside, length=1) if outside.is_fixed else outside


def read_arguments(option: str, words: Sequence[str]) -> dict[str, Any]:
    """Reads NAME=VALUE words. Values are Python's numbers, truth values, lists or None, and any other word is a text."""
    values: dict[str, Any] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not equals or not name.isidentifier():
            raise SubquadError(f"{option} takes words such as features=256, but was given {excerpt(word)}")
        values[name] = _value(text)
    return values


def _value(text: str) -> Any:
    known = {"true": True, "false": False, "none": None}
    if text.lower() in known:
        return known[text.lower()]
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return text
    return value if isinstance(value, int | float | str | list | tuple | dict | None) else text
