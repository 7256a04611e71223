"""The experiment on the copy task."""

from pathlib import Path

from subquad.experiments.base import Experiment, Instruments
from subquad.experiments.copy.grid import CLAIM, SCALES
from subquad.experiments.copy.page import copy_page
from subquad.experiments.copy.verdicts import judge
from subquad.report.page import Page
from subquad.statistics import Verdict


class CopyExperiment(Experiment):
    """Do linear transformers copy as well as softmax ones, in linear time and faster?"""

    claim = CLAIM
    scales = SCALES

    def measure(self, folder: Path, scale: str, instruments: Instruments) -> None:
        if (timing := SCALES[scale].timing) is not None:
            instruments.time(folder / "timing", timing)

    def judge(self, folder: Path, scale: str) -> list[Verdict]:
        return judge(folder, scale)

    def page(self, folder: Path, scale: str) -> Page:
        return copy_page(folder, scale)
