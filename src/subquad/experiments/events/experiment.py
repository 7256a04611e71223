"""The experiment on event sequences."""

from pathlib import Path

from subquad.experiments.base import Experiment, Instruments
from subquad.experiments.events.costs import measure, measure_speeds
from subquad.experiments.events.faults import FAULT_SCALES
from subquad.experiments.events.faults import NAME as FAULTS
from subquad.experiments.events.faults import judge as judge_faults
from subquad.experiments.events.faults_page import faults_page
from subquad.experiments.events.grid import CLAIM, SCALES
from subquad.experiments.events.page import events_page
from subquad.experiments.events.verdicts import judge
from subquad.report.page import Page
from subquad.statistics import Verdict


class EventsExperiment(Experiment):
    """Does FAVOR+ predict the next event as well as softmax, for less time and memory?"""

    claim = CLAIM
    scales = SCALES | FAULT_SCALES
    takes_data = True

    def measure(self, folder: Path, scale: str, instruments: Instruments) -> None:
        if scale != FAULTS:
            measure(folder, scale)
            measure_speeds(folder, scale)

    def judge(self, folder: Path, scale: str) -> list[Verdict]:
        return judge_faults(folder) if scale == FAULTS else judge(folder)

    def page(self, folder: Path, scale: str) -> Page:
        return faults_page(folder) if scale == FAULTS else events_page(folder, scale)
