"""`subquad advise`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from subquad.checking import Checked, Count, FilePath, Words
from subquad.cli.parsing import parse
from subquad.cli.show import Output, show
from subquad.cli.values import Flag, parse_bytes
from subquad.compare.advice import Advice, Wish, advise, has_view
from subquad.compare.views import Comparison, What
from subquad.errors import SubquadError
from subquad.machine import describe, same_machine
from subquad.report.tables import NOTHING, Cell, Table
from subquad.results import Run
from subquad.words import amount, duration


@dataclass(frozen=True)
class Advise(Checked):
    """Says which attention to use for a length, why, and at what price, from measurements of `subquad compare`."""

    length: Count
    """Number of tokens in a sequence."""
    causal: Flag = False
    """Causal attention: position i sees no further than i. Bidirectional by default."""
    memory: Words | None = None
    """Largest memory that the attention may use in addition to its inputs, such as 2GiB."""
    exact: Flag = False
    """Consider exact attention only."""
    approximate: Flag = False
    """Consider approximations only, even if they are hardly faster."""
    what: What = "training"
    """Kind of work that is timed: forward, training (forward and backward), a whole layer, a decoding step, or an update."""
    run: FilePath | None = None
    """Folder of the comparison to use; the newest of this machine under runs/ by default."""


def main(arguments: Sequence[str]) -> int:
    """Prints advice from the rows of a comparison."""
    options = parse(Advise, arguments, prog="subquad advise")
    if options.exact and options.approximate:
        raise SubquadError("--exact and --approximate exclude each other: give one of them, or none")
    form = "causal" if options.causal else "bidirectional"
    run = Run.open(options.run, "compare") if options.run is not None else _newest(Path("runs"), form, options.what)
    wish: Wish = "exact" if options.exact else "approximate" if options.approximate else "either"
    advice = advise(
        Comparison(run.rows()),
        run.about.get("mechanisms", {}),
        length=options.length,
        form=form,
        what=options.what,
        memory_bytes=None if options.memory is None else parse_bytes("--memory", options.memory),
        wish=wish,
    )
    console = Output()
    for sentence in advice.sentences:
        console.print(sentence)
    show(_table(advice), console)
    console.print(f"From {run.folder}, measured {run.about.get('started', 'at an unknown time')}.", soft_wrap=True)
    return 0


def _newest(folder: Path, form: str, what: str) -> Run:
    """Returns the newest comparison of this machine that measured such work, else the newest one."""
    machine = describe()
    runs = [Run.open(path.parent) for path in folder.glob("*/run.json")] if folder.is_dir() else []
    comparisons = [
        run for run in runs if run.about.get("kind") == "compare" and same_machine(run.about.get("machine", {}), machine)
    ]
    comparisons = sorted(
        (run for run in comparisons if run.rows()), key=lambda run: str(run.about.get("started", "")), reverse=True
    )
    if not comparisons:
        raise SubquadError(
            f"there is no comparison of this machine under {folder}/: run `subquad compare` first, or give --run"
        )
    return next((run for run in comparisons if has_view(Comparison(run.rows()), form, what)), comparisons[0])


def _table(advice: Advice) -> Table:
    rows = [
        [
            Cell(option.mechanism),
            Cell("yes" if option.exact else "no"),
            Cell(duration(option.seconds), option.seconds),
            NOTHING if option.peak_bytes is None else Cell(amount(option.peak_bytes), option.peak_bytes),
            Cell(option.basis),
            Cell(option.obstacle or "fits"),
        ]
        for option in advice.options
    ]
    return Table("What was considered", ["attention", "exact", "time", "memory", "basis", ""], rows)
