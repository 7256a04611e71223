"""The mechanisms that can be cut over processes, by kind."""

from subquad.parallel.mechanisms.base import Cut
from subquad.parallel.mechanisms.hybrid import HybridCut
from subquad.parallel.mechanisms.infinity import InfinityCut
from subquad.parallel.mechanisms.linear import CosformerCut, LinearCut
from subquad.parallel.mechanisms.linformer import LinformerCut
from subquad.parallel.mechanisms.softmax import SoftmaxCut
from subquad.parallel.mechanisms.window import WindowCut

CUTS: dict[str, Cut] = {
    "softmax": SoftmaxCut(),
    "linear": LinearCut(),
    "favor": LinearCut(),
    "linformer": LinformerCut(),
    "infinity": InfinityCut(),
    "hybrid": HybridCut(),
    "window": WindowCut(),
    "cosformer": CosformerCut(),
}

__all__ = ["CUTS", "Cut"]
