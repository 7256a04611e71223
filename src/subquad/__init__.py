"""Find out which attention your sequences need, then use it."""

from subquad.attention import MECHANISMS, Favor, Linear, Linformer, Softmax, require_causal
from subquad.errors import SubquadError
from subquad.feature_maps import FEATURE_MAPS, Elu, Learned, Random, Relu, Taylor
from subquad.models import MultiheadAttention

__version__ = "0.1.0"

__all__ = [
    "FEATURE_MAPS",
    "MECHANISMS",
    "Elu",
    "Favor",
    "Learned",
    "Linear",
    "Linformer",
    "MultiheadAttention",
    "Random",
    "Relu",
    "Softmax",
    "SubquadError",
    "Taylor",
    "require_causal",
]
