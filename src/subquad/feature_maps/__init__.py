"""Feature maps: functions phi with which phi(q) . phi(k) replaces exp(q . k / sqrt d).

Each is a frozen dataclass of options that builds a module:

=========  ================================  ===================================================================
`Elu`      elu(x) + 1                        approximates nothing; to train from scratch: cheapest, never zero
`Relu`     max(x, 0)                         approximates nothing; to train from scratch where weights may be zero
`Random`   FAVOR+                            exp, without bias; to stand in for a trained softmax as it is
`Learned`  softmax([Wx; -Wx]), Hedgehog      exp, once trained; to convert a trained model with little training
`Taylor`   [1, x, x x^T / sqrt 2]            exp, near 0; to follow small dot products closely at d^2/2 features
=========  ================================  ===================================================================

A new map needs `forward` and `feature_count`. `pullback` uses autograd by default; a hand-written one makes the backward
faster.
"""

from subquad.feature_maps.base import FeatureMap, FeatureMapOptions
from subquad.feature_maps.learned import Learned, LearnedMap
from subquad.feature_maps.plain import Elu, EluMap, Relu, ReluMap, Taylor, TaylorMap
from subquad.feature_maps.random import CalibratedMap, Kernel, Projections, Random, RandomFeatures, RandomMap

FEATURE_MAPS: dict[str, type[FeatureMapOptions]] = {
    "elu": Elu,
    "relu": Relu,
    "random": Random,
    "learned": Learned,
    "taylor": Taylor,
}

__all__ = [
    "FEATURE_MAPS",
    "CalibratedMap",
    "Elu",
    "EluMap",
    "FeatureMap",
    "FeatureMapOptions",
    "Kernel",
    "Learned",
    "LearnedMap",
    "Projections",
    "Random",
    "RandomFeatures",
    "RandomMap",
    "Relu",
    "ReluMap",
    "Taylor",
    "TaylorMap",
]
