"""Hugging Face: subquad's mechanisms in models that people already have.

Importing this makes every mechanism an `attn_implementation` of transformers, under the names "subquad_softmax",
"subquad_linear" and so on: `AutoModel.from_pretrained(path, attn_implementation="subquad_favor")`. `swap` does the same with
options of its own, in some layers or in all, and at once, so that an optimizer finds the tensors that a mechanism brings;
and the model proves itself on a few tokens before it is given back. A model that has a mechanism by name alone, or that was
saved and is loaded, proves nothing: `check` does that at any time.
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
