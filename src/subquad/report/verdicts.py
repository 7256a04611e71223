"""Verdicts of an experiment on its page and on the terminal."""

from collections.abc import Sequence

from subquad.report.page import Fold, table
from subquad.report.tables import Cell, Table
from subquad.statistics import Verdict

WORDS = {True: "held", False: "did not hold", None: "not decided"}


def verdict_table(verdicts: Sequence[Verdict]) -> Table:
    """Returns the table of claims, whether each held, and the figures."""
    rows = [[Cell(verdict.claim), Cell(WORDS[verdict.held]), Cell(verdict.figures)] for verdict in verdicts]
    return Table("Verdicts", ["claim", "verdict", "figures"], rows)


def verdict_answer(verdicts: Sequence[Verdict]) -> str:
    """Returns how many claims held, and the verdict on the first one, in one sentence."""
    if not verdicts:
        return "Nothing is finished that could be judged."
    failed, undecided = (sum(verdict.held is held for verdict in verdicts) for held in (False, None))
    parts = [f"{len(verdicts) - failed - undecided} of {len(verdicts)} claims held"]
    parts += [f"{failed} did not"] * bool(failed) + [f"{undecided} not decided"] * bool(undecided)
    return f"{', '.join(parts)}; the first ({verdicts[0].claim}) {_ended(verdicts[0])}."


def _ended(verdict: Verdict) -> str:
    return "is not decided" if verdict.held is None else WORDS[verdict.held]


def verdict_fold(verdicts: Sequence[Verdict]) -> Fold:
    """Returns the section with the table of verdicts, which is open from the start."""
    return Fold("Verdicts on each claim", [table(verdict_table(verdicts))], is_open=True)
