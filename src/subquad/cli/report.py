"""`subquad report`."""

import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import tyro

from subquad.checking import Checked, FilePath
from subquad.cli.parsing import parse
from subquad.cli.show import Output
from subquad.errors import SubquadError
from subquad.files import require_folder
from subquad.report.check import write_check_page
from subquad.report.choose import write_choice_figures, write_choice_page
from subquad.report.compare import load, write_comparison, write_figures
from subquad.report.conversion import write_conversion_figures, write_conversion_page
from subquad.report.error import write_error_figures, write_error_page
from subquad.report.figures import write_page_figures
from subquad.report.page import write_page
from subquad.report.spectrum import write_spectrum_figures, write_spectrum_page
from subquad.report.training import write_training_figures, write_training_page
from subquad.results import Run


@dataclass(frozen=True)
class Report(Checked):
    """Rebuilds the page of one or several runs from their rows; several are shown side by side."""

    runs: Annotated[tuple[FilePath, ...], tyro.conf.Positional, tyro.conf.arg(metavar="[RUN ...]")]
    """Folders of runs, such as runs/compare-20260101-120000."""
    figures: FilePath | None = None
    """Folder to which each chart is written as PNG and SVG."""
    out: FilePath | None = None
    """File of the page; by default report.html in the folder of one run, or in this folder for several."""


def main(arguments: Sequence[str]) -> int:
    """Writes the page, and the figures if `--figures` is given."""
    options = parse(Report, arguments, prog="subquad report")
    if not options.runs:
        raise SubquadError("name at least one run: subquad report runs/compare-...")
    runs = [Run.open(folder) for folder in options.runs]
    kinds = sorted({str(run.about.get("kind")) for run in runs})
    if len(kinds) > 1:
        raise SubquadError(f"the runs are of different kinds ({', '.join(kinds)}): report one kind at a time")
    for run in runs:
        if not run.rows():
            raise SubquadError(f"{run.folder} has no measurements yet: go on with {_command(run)}")
    if options.figures is not None:
        require_folder(options.figures)
    page = options.out or (options.runs[0] if len(runs) == 1 else Path()) / "report.html"
    figures = PAGES[kinds[0]](runs, page) if kinds[0] in PAGES else _comparison(options.runs, page)
    console = Output()
    console.print(f"The page: {page}", soft_wrap=True)
    if options.figures is not None:
        count = sum(1 for _ in figures(options.figures))
        console.print(f"{count} charts, each as PNG and SVG: {options.figures}", soft_wrap=True)
    return 0


def _command(run: Run) -> str:
    """Returns the command that resumes a run."""
    folder = shlex.quote(str(run.folder))
    if run.about.get("kind") == "reproduce":
        return f"{run.about.get('command')} --out {folder}"
    return f"subquad {run.about.get('kind')} --resume {folder}"


def _comparison(folders: Sequence[Path], page: Path) -> Callable[[Path], Iterator[Path]]:
    """Writes the page, and returns the function that writes the figures."""
    measured = load(folders)
    write_comparison(measured, page)
    return partial(write_figures, measured)


def _training(runs: Sequence[Run], page: Path) -> Callable[[Path], Iterator[Path]]:
    write_training_page(runs, page)
    return partial(write_training_figures, runs)


def _spectrum(runs: Sequence[Run], page: Path) -> Callable[[Path], Iterator[Path]]:
    write_spectrum_page(runs, page)
    return partial(write_spectrum_figures, runs)


def _error(runs: Sequence[Run], page: Path) -> Callable[[Path], Iterator[Path]]:
    write_error_page(runs, page)
    return partial(write_error_figures, runs)


def _check(runs: Sequence[Run], page: Path) -> Callable[[Path], Iterator[Path]]:
    write_check_page(runs, page)
    return lambda folder: iter(())  # its page has tables only


def _conversion(runs: Sequence[Run], page: Path) -> Callable[[Path], Iterator[Path]]:
    write_conversion_page(runs, page)
    return partial(write_conversion_figures, runs)


def _choice(runs: Sequence[Run], page: Path) -> Callable[[Path], Iterator[Path]]:
    for run in runs[1:]:
        raise SubquadError(f"{run.folder} is one race too many: report one at a time")
    write_choice_page(runs, page)
    return partial(write_choice_figures, runs)


def _reproduction(runs: Sequence[Run], page: Path) -> Callable[[Path], Iterator[Path]]:
    from subquad.cli.reproduce import page_of

    for run in runs[1:]:
        raise SubquadError(f"{run.folder} is one reproduction too many: report one at a time")
    content = page_of(runs[0])
    write_page(content, page)
    return partial(write_page_figures, content)


PAGES = {
    "train": _training,
    "spectrum": _spectrum,
    "error": _error,
    "check": _check,
    "convert": _conversion,
    "choose": _choice,
    "reproduce": _reproduction,
}
"""Functions that write the page of each kind of run, except comparisons."""
