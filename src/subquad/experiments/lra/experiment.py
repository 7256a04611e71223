"""The experiment on the Long Range Arena."""

from pathlib import Path

from subquad.experiments.base import Experiment, Instruments
from subquad.experiments.lra.grid import CLAIM, SCALES
from subquad.experiments.lra.page import lra_page
from subquad.experiments.lra.verdicts import judge
from subquad.report.page import Page
from subquad.statistics import Verdict


class LraExperiment(Experiment):
    """How accurate is each attention on long sequences, beside what it costs?"""

    claim = CLAIM
    scales = SCALES
    takes_data = True

    def measure(self, folder: Path, scale: str, instruments: Instruments) -> None:
        instruments.time(folder / "timing", SCALES[scale].timing)

    def judge(self, folder: Path, scale: str) -> list[Verdict]:
        return judge(folder, scale)

    def page(self, folder: Path, scale: str) -> Page:
        return lra_page(folder, scale)
