"""Attention mechanisms of subquad in Hugging Face transformers models.

Importing this module registers every mechanism as an `attn_implementation` of transformers, under the names
"subquad_softmax", "subquad_linear" and so on: `AutoModel.from_pretrained(path, attn_implementation="subquad_favor")`.
`swap` puts a mechanism with chosen options into some or all layers at once, so that an optimizer sees its parameters, and
checks the model on a few tokens. Models that name a mechanism or are loaded from a file are not checked; call `check`.
"""

from subquad.errors import SubquadError

try:
    import transformers  # noqa: F401
except ImportError:
    raise SubquadError("subquad.hub needs transformers, which is not installed: pip install 'subquad[hub]'") from None

from subquad.hub.attach import attention_modules
from subquad.hub.cache import StateCache, state_cache
from subquad.hub.files import load
from subquad.hub.positions import extend_positions
from subquad.hub.proof import Proved, check
from subquad.hub.register import IMPLEMENTATIONS, register
from subquad.hub.swapping import restore, swap

register()

__all__ = [
    "IMPLEMENTATIONS",
    "Proved",
    "StateCache",
    "attention_modules",
    "check",
    "extend_positions",
    "load",
    "restore",
    "state_cache",
    "swap",
]
