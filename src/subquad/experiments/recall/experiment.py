"""The experiment on recall."""

from pathlib import Path

from subquad.experiments.base import Experiment
from subquad.experiments.recall.grid import CLAIM, SCALES
from subquad.experiments.recall.page import recall_page
from subquad.experiments.recall.verdicts import judge
from subquad.report.page import Page
from subquad.statistics import Verdict


class RecallExperiment(Experiment):
    """How much do mechanisms recall of what they have seen, by the size of their state?"""

    claim = CLAIM
    scales = SCALES

    def judge(self, folder: Path, scale: str) -> list[Verdict]:
        return judge(folder, scale)

    def page(self, folder: Path, scale: str) -> Page:
        return recall_page(folder, scale)
