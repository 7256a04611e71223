"""Hugging Face: subquad's mechanisms in models that people already have.

Importing this makes every mechanism an `attn_implementation` of transformers, under the names "subquad_softmax",
"subquad_linear" and so on: `AutoModel.from_pretrained(path, attn_implementation="subquad_favor")`. `swap` does the same with
options of its own, in some layers or in all, and at once, so that an optimizer finds the tensors that a mechanism brings.
"""

from subquad.errors import SubquadError

try:
    import transformers  # noqa: F401
except ImportError:
    raise SubquadError("subquad.hub needs transformers, which is not installed: pip install 'subquad[hub]'") from None

from subquad.hub.attach import attention_modules, restore, swap
from subquad.hub.cache import StateCache, state_cache
from subquad.hub.files import load
from subquad.hub.positions import extend_positions
from subquad.hub.register import IMPLEMENTATIONS, register

register()

__all__ = [
    "IMPLEMENTATIONS",
    "StateCache",
    "attention_modules",
    "extend_positions",
    "load",
    "restore",
    "state_cache",
    "swap",
]
