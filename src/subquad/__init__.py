"""Find out which attention your sequences need, then use it.

Names are imported when they are first asked for: the commands that only read rows, and `--help`, do without PyTorch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from subquad import hub
    from subquad.attention import (
        MECHANISMS,
        Cosformer,
        Favor,
        Hybrid,
        Infinity,
        Layers,
        Linear,
        Linformer,
        Lsh,
        Nystrom,
        Softmax,
        Sparse,
        Window,
        require_causal,
    )
    from subquad.choose.own import choose
    from subquad.errors import SubquadError
    from subquad.feature_maps import FEATURE_MAPS, Elu, Learned, Random, Relu, Taylor
    from subquad.models import (
        Block,
        Decoder,
        Encoder,
        EncoderDecoder,
        ModelOptions,
        MultiheadAttention,
        Sampling,
        TokenEmbedding,
        ValueEmbedding,
        generate,
    )
    from subquad.runs import TrainedModel, load

__version__ = "0.1.0"

__all__ = [
    "FEATURE_MAPS",
    "MECHANISMS",
    "Block",
    "Cosformer",
    "Decoder",
    "Elu",
    "Encoder",
    "EncoderDecoder",
    "Favor",
    "Hybrid",
    "Infinity",
    "Layers",
    "Learned",
    "Linear",
    "Linformer",
    "Lsh",
    "ModelOptions",
    "MultiheadAttention",
    "Nystrom",
    "Random",
    "Relu",
    "Sampling",
    "Softmax",
    "Sparse",
    "SubquadError",
    "Taylor",
    "TokenEmbedding",
    "TrainedModel",
    "ValueEmbedding",
    "Window",
    "choose",
    "generate",
    "hub",
    "load",
    "require_causal",
]

_HOMES = ("errors", "feature_maps", "attention", "models", "runs")


def __getattr__(name: str) -> Any:
    if name in ("choose", "hub"):
        return import_module(f"subquad.{name}")
    if name in __all__:
        for home in _HOMES:
            module = import_module(f"subquad.{home}")
            if hasattr(module, name):
                return getattr(module, name)
    raise AttributeError(f"module 'subquad' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
