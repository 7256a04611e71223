"""The experiment on the infinity-former's memory."""

from pathlib import Path

from subquad.experiments.base import Experiment, Instruments
from subquad.experiments.infinity.context import measure
from subquad.experiments.infinity.grid import CLAIM, SCALES
from subquad.experiments.infinity.page import infinity_page
from subquad.experiments.infinity.verdicts import judge
from subquad.report.page import Page
from subquad.statistics import Verdict


class InfinityExperiment(Experiment):
    """Does a memory of fixed size help on long sequences, at a cost that does not grow with the context?"""

    claim = CLAIM
    scales = SCALES

    def measure(self, folder: Path, scale: str, instruments: Instruments) -> None:
        measure(folder)

    def judge(self, folder: Path, scale: str) -> list[Verdict]:
        return judge(folder, scale)

    def page(self, folder: Path, scale: str) -> Page:
        return infinity_page(folder, scale)
