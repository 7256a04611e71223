"""The experiment on card transactions."""

from pathlib import Path

from subquad.experiments.base import Experiment, Instruments
from subquad.experiments.transactions.costs import measure
from subquad.experiments.transactions.grid import CLAIM, SCALES
from subquad.experiments.transactions.page import transactions_page
from subquad.experiments.transactions.verdicts import judge
from subquad.report.page import Page
from subquad.statistics import Verdict


class TransactionsExperiment(Experiment):
    """Which attention tells two classes of clients apart best, and at what cost?"""

    claim = CLAIM
    scales = SCALES
    takes_data = True

    def measure(self, folder: Path, scale: str, instruments: Instruments) -> None:
        measure(folder, scale)

    def judge(self, folder: Path, scale: str) -> list[Verdict]:
        return judge(folder)

    def page(self, folder: Path, scale: str) -> Page:
        return transactions_page(folder, scale)
