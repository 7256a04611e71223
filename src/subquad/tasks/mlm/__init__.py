"""Masked language modelling: predict tokens that were taken out of a text from those around them."""

from subquad.tasks.mlm.masking import MaskedBatch
from subquad.tasks.mlm.model import MaskedModel
from subquad.tasks.mlm.task import Mlm, MlmTask
from subquad.tasks.mlm.vocabulary import Vocabulary

__all__ = ["MaskedBatch", "MaskedModel", "Mlm", "MlmTask", "Vocabulary"]
