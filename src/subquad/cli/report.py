"""`subquad report`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from subquad.errors import SubquadError
from subquad.report.compare import load, write_figures, write_page


@dataclass(frozen=True)
class Report:
    """Builds the page of one or several runs again from their rows; several are shown side by side."""

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """Folders, such as runs/compare-20260101-120000."""
    figures: Path | None = None
    """A folder for each chart as PNG and SVG."""
    out: Path | None = None
    """The page: report.html in the run's folder for one run, report.html here for several, unless told."""


def main(arguments: Sequence[str]) -> int:
    """Writes the page, and the figures if asked."""
    given = tyro.cli(Report, args=list(arguments), prog="subquad report")
    if not given.runs:
        raise SubquadError("name at least one run: subquad report runs/compare-...")
    console = Console()
    measured = load(given.runs)
    for one in measured:
        if not one.comparison.views:
            raise SubquadError(
                f"{one.run.folder} has no measurements yet: go on with subquad compare --resume {one.run.folder}"
            )
    page = given.out or (given.runs[0] if len(measured) == 1 else Path()) / "report.html"
    write_page(measured, page)
    console.print(f"The page: {page}", highlight=False, soft_wrap=True)
    if given.figures is not None:
        count = sum(1 for _ in write_figures(measured, given.figures))
        console.print(f"{count} charts, each as PNG and SVG: {given.figures}", highlight=False, soft_wrap=True)
    return 0
