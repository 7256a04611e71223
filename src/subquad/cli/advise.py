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
    """Which attention to use for a length, why, and what is given up: from what `subquad compare` measured here."""

    length: Count
    """Tokens in a sequence."""
    causal: Flag = False
    """Causal attention: position i sees no further than i. Bidirectional by default."""
    memory: Words | None = None
    """Memory that the attention may use beside its inputs, such as 2GiB."""
    exact: Flag = False
    """Consider exact attention only."""
    approximate: Flag = False
    """Consider approximations only, even if they are hardly faster."""
    what: What = "training"
    """Kind of work that is timed: forward, training (forward and backward), a whole layer, a decoding step, or an update."""
    run: FilePath | None = None
    """Run to answer from; the newest of this machine under runs/ by default."""


def main(arguments: Sequence[str]) -> int:
    """Prints the advice, from the rows of a comparison."""
    given = parse(Advise, arguments, prog="subquad advise")
    if given.exact and given.approximate:
        raise SubquadError("--exact and --approximate exclude each other: give one of them, or none")
    form = "causal" if given.causal else "bidirectional"
    run = Run.open(given.run, "compare") if given.run is not None else _newest(Path("runs"), form, given.what)
    wish: Wish = "exact" if given.exact else "approximate" if given.approximate else "either"
    found = advise(
        Comparison(run.rows()),
        run.about.get("mechanisms", {}),
        length=given.length,
        form=form,
        what=given.what,
        memory_bytes=None if given.memory is None else parse_bytes("--memory", given.memory),
        wish=wish,
    )
    console = Output()
    for sentence in found.sentences:
        console.print(sentence)
    show(_table(found), console)
    console.print(f"From {run.folder}, measured {run.about.get('started', 'at an unknown time')}.", soft_wrap=True)
    return 0


def _newest(folder: Path, form: str, what: str) -> Run:
    """The newest comparison of this machine that measured such work; the newest one at all if none did."""
    here = describe()
    runs = [Run.open(path.parent) for path in folder.glob("*/run.json")] if folder.is_dir() else []
    mine = [run for run in runs if run.about.get("kind") == "compare" and same_machine(run.about.get("machine", {}), here)]
    mine = sorted((run for run in mine if run.rows()), key=lambda run: str(run.about.get("started", "")), reverse=True)
    if not mine:
        raise SubquadError(
            f"there is no comparison of this machine under {folder}/: run `subquad compare` first, or give --run"
        )
    return next((run for run in mine if has_view(Comparison(run.rows()), form, what)), mine[0])


def _table(found: Advice) -> Table:
    rows = [
        [
            Cell(option.mechanism),
            Cell("yes" if option.exact else "no"),
            Cell(duration(option.seconds), option.seconds),
            NOTHING if option.peak_bytes is None else Cell(amount(option.peak_bytes), option.peak_bytes),
            Cell(option.basis),
            Cell(option.obstacle or "fits"),
        ]
        for option in found.options
    ]
    return Table("What was considered", ["attention", "exact", "time", "memory", "basis", ""], rows)
