"""What `subquad check` found, from the rows of a run: a table, the failures with their reproducers, and a page."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from subquad.check.findings import Finding
from subquad.report.page import Fold, Page, bullets, table, write_page
from subquad.report.runs import command_of, machine_of
from subquad.report.tables import NOTHING, Cell, Table
from subquad.results import Row, Run

TITLE = "Is this attention what it says?"
SHORT = {"bidirectional": "full", "causal": "causal"}
VERDICTS = {"holds": "holds", "fails": "FAILS", "not asked": "not asked", "not decided": "open", "measured": "measured"}


def findings_of(rows: Sequence[Row]) -> list[Finding]:
    """The findings among the rows of a run."""
    return [Finding.of_row(row) for row in rows if row["metric"] == "held"]


def findings_table(findings: Sequence[Finding], caption: str) -> Table:
    """The table of all properties, narrow enough for 60 columns."""
    has_forms = len({finding.form for finding in findings if finding.form}) > 1
    columns = ["property", *(["form"] if has_forms else []), "verdict", "measured", "allowed"]
    rows = []
    for finding in findings:
        form = [Cell(SHORT.get(finding.form, ""))] if has_forms else []
        rows.append([Cell(finding.check), *form, Cell(VERDICTS[finding.verdict]), _measured(finding), _allowed(finding)])
    return Table(caption, columns, rows)


def _measured(finding: Finding) -> Cell:
    if finding.value is None:
        return Cell("not finite") if finding.verdict == "fails" and finding.allowed is not None else NOTHING
    if finding.low is not None and finding.high is not None:
        return Cell(f"{finding.value:.2f} ({finding.low:.2f}-{finding.high:.2f})", finding.value)
    return Cell(f"{finding.value:.2g}", finding.value)


def _allowed(finding: Finding) -> Cell:
    return NOTHING if finding.allowed is None else Cell(f"{finding.allowed:.2g}", finding.allowed)


def failures(findings: Sequence[Finding]) -> Iterator[tuple[str, str]]:
    """A sentence for each property that does not hold, with the lines that reproduce it."""
    for finding in findings:
        if finding.verdict == "fails":
            yield f"{_name(finding)} does not hold: {finding.sentence}.", finding.reproducer


def unasked(findings: Sequence[Finding]) -> Iterator[str]:
    """What was not asked, and why: properties with the same reason share a line."""
    reasons: dict[str, list[str]] = {}
    for finding in findings:
        if finding.verdict == "not asked":
            reasons.setdefault(finding.sentence, []).append(_name(finding))
    for reason, names in reasons.items():
        yield f"not asked: {', '.join(dict.fromkeys(names))}: {reason}."


def check_answer(findings: Sequence[Finding]) -> str:
    """How many of the properties that were asked hold, in one sentence."""
    counts = {verdict: sum(finding.verdict == verdict for finding in findings) for verdict in VERDICTS}
    asked = counts["holds"] + counts["fails"] + counts["not decided"]
    broken = [_name(finding) for finding in findings if finding.verdict == "fails"]
    undecided = [_name(finding) for finding in findings if finding.verdict == "not decided"]
    says = f"{counts['holds']} of {asked} properties hold"
    says += f"; {', '.join(broken)} {'does' if len(broken) == 1 else 'do'} not" if broken else ""
    says += f"; {', '.join(undecided)} not decided" if undecided else ""
    return f"{says}; {counts['not asked']} could not be asked." if counts["not asked"] else f"{says}."


def _name(finding: Finding) -> str:
    return f"{finding.check} ({SHORT[finding.form]})" if finding.form in SHORT else finding.check


def check_page(runs: Sequence[Run]) -> Page:
    """The page of one or several runs."""
    folds = []
    for run in runs:
        findings, options = findings_of(run.rows()), run.about.get("options", {})
        name = str(options.get("name", "an attention"))
        parts = [table(findings_table(findings, name))]
        shown = [f"{sentence} {lines}" for sentence, lines in failures(findings)]
        notes = [note for note in str(options.get("notes", "")).split("; ") if note]
        parts += [bullets(texts) for texts in (shown, list(unasked(findings)), notes) if texts]
        folds.append(Fold(f"{name}: what holds and what does not", parts, is_open=True))
    answers = " ".join(f"{_subject(run)}: {check_answer(findings_of(run.rows()))}" for run in runs)
    commands = [command_of(run, "subquad check") for run in runs]
    return Page(TITLE, answers, about=machine_of(runs[0]) if runs else "", folds=folds, commands=commands)


def _subject(run: Run) -> str:
    return str(run.about.get("options", {}).get("name", "an attention"))


def write_check_page(runs: Sequence[Run], path: Path) -> None:
    """Writes the page of one or several runs."""
    write_page(check_page(runs), path)
