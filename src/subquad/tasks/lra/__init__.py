"""The Long Range Arena (Tay et al. 2020): five tasks that classify long sequences, with one classifier."""

from subquad.tasks.lra.base import ArenaOptions, ArenaTask
from subquad.tasks.lra.image import Image
from subquad.tasks.lra.listops import ListOps
from subquad.tasks.lra.model import SequenceClassifier
from subquad.tasks.lra.pathfinder import Pathfinder
from subquad.tasks.lra.retrieval import Retrieval
from subquad.tasks.lra.sources import SequenceBatch
from subquad.tasks.lra.text import Text

__all__ = [
    "ArenaOptions",
    "ArenaTask",
    "Image",
    "ListOps",
    "Pathfinder",
    "Retrieval",
    "SequenceBatch",
    "SequenceClassifier",
    "Text",
]
