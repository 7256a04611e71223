"""The class of a text, by a fresh encoder or by that of a masked language model."""

from subquad.tasks.classify.model import TextClassifier
from subquad.tasks.classify.task import Classify, ClassifyTask, TextBatch

__all__ = ["Classify", "ClassifyTask", "TextBatch", "TextClassifier"]
