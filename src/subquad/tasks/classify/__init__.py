"""Text classification with a new encoder, or with the encoder of a trained masked language model."""

from subquad.tasks.classify.batches import TextBatch
from subquad.tasks.classify.model import TextClassifier
from subquad.tasks.classify.task import Classify, ClassifyTask

__all__ = ["Classify", "ClassifyTask", "TextBatch", "TextClassifier"]
