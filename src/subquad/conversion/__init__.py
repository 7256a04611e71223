"""Trained models whose softmax attention becomes another: matched layer by layer, tuned as a whole, measured throughout.

What is converted is anything that is `Convertible`: a model of Hugging Face (`conversion.pretrained`) or a run of `subquad
train mlm` (`conversion.trained`). The engine knows neither.
"""

from subquad.conversion.convertible import Convertible, Goal, Kind, Outputs
from subquad.conversion.engine import Progress, convert
from subquad.conversion.options import ConversionOptions

__all__ = ["ConversionOptions", "Convertible", "Goal", "Kind", "Outputs", "Progress", "convert"]
