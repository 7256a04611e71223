"""The experiment on conversions of a masked language model."""

from pathlib import Path

from subquad.experiments.base import Experiment
from subquad.experiments.conversion.grid import CLAIM, SCALES
from subquad.experiments.conversion.page import conversion_page
from subquad.experiments.conversion.verdicts import judge
from subquad.report.page import Page
from subquad.statistics import Verdict


class ConversionExperiment(Experiment):
    """Which ways of putting another attention into a trained language model keep its perplexity?"""

    claim = CLAIM
    scales = SCALES
    takes_data = True
    takes_original = True

    def judge(self, folder: Path, scale: str) -> list[Verdict]:
        return judge(folder, scale)

    def page(self, folder: Path, scale: str) -> Page:
        return conversion_page(folder, scale)
