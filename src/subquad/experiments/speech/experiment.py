"""The experiment on speech."""

from pathlib import Path

from subquad.experiments.base import Experiment, Instruments
from subquad.experiments.speech.costs import measure
from subquad.experiments.speech.grid import CLAIM, SCALES
from subquad.experiments.speech.page import speech_page
from subquad.experiments.speech.verdicts import judge
from subquad.report.page import Page
from subquad.statistics import Verdict


class SpeechExperiment(Experiment):
    """Does linear attention recognise speech better than LSH and an LSTM, nearly as well as softmax, and faster?"""

    claim = CLAIM
    scales = SCALES
    takes_data = True

    def measure(self, folder: Path, scale: str, instruments: Instruments) -> None:
        measure(folder, scale)

    def judge(self, folder: Path, scale: str) -> list[Verdict]:
        return judge(folder, scale)

    def page(self, folder: Path, scale: str) -> Page:
        return speech_page(folder, scale)
