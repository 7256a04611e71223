"""What is known of an attention before it is tried."""

from dataclasses import dataclass, field
from typing import Annotated, Any

from annotated_types import Ge, Le

from subquad.attention.outside.conventions import Layout, MaskKind
from subquad.checking import LARGEST, Checked, Count, Words

Length = Annotated[int, Ge(16), Le(LARGEST)]
"""Number of positions, enough for steps after a longer piece."""


@dataclass(frozen=True)
class Request(Checked):
    """What is known of an attention before it is tried."""

    target: Words
    """Module and name, as in ``package.module:Name``."""
    heads: Count = 8
    head_dim: Count = 64
    layer: bool = False
    layout: Layout | None = None
    mask: MaskKind | None = None
    mask_argument: Words = ""
    causal: bool = False
    """Whether only the causal form is asked for."""
    arguments: dict[str, Any] = field(default_factory=dict)
    call: dict[str, Any] = field(default_factory=dict)
    length: Length | None = None
    prefix: Words = ""
    """What the options that say these things begin with on the command line, such as "outside."."""
