"""The experiment on images."""

from pathlib import Path

from subquad.experiments.base import Experiment, Instruments
from subquad.experiments.images.grid import CLAIM, SCALES
from subquad.experiments.images.page import images_page
from subquad.experiments.images.throughput import measure
from subquad.experiments.images.verdicts import judge
from subquad.report.page import Page
from subquad.statistics import Verdict


class ImagesExperiment(Experiment):
    """How well, and how many times as fast, does linear attention write images pixel by pixel?"""

    claim = CLAIM
    scales = SCALES
    takes_data = True

    def measure(self, folder: Path, scale: str, instruments: Instruments) -> None:
        measure(folder, scale)

    def judge(self, folder: Path, scale: str) -> list[Verdict]:
        return judge(folder, scale)

    def page(self, folder: Path, scale: str) -> Page:
        return images_page(folder, scale)
