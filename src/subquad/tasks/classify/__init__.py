"""Text classification with a new encoder, or with the encoder of a trained masked language model."""

from subquad.tasks.classify.model import TextClassifier
from subquad.tasks.classify.task import Classify, ClassifyTask, TextBatch

__all__ = ["Classify", "ClassifyTask", "TextBatch", "TextClassifier"]
