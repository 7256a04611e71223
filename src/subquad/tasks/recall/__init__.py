"""Tasks that ask for something seen earlier in the sequence: multi-query associative recall, and induction heads."""

from subquad.tasks.recall.answering import AnswerBatch
from subquad.tasks.recall.induction import Induction
from subquad.tasks.recall.pairs import Recall

__all__ = ["AnswerBatch", "Induction", "Recall"]
