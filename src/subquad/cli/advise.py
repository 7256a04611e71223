"""`subquad advise`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from subquad.checking import Checked, Count, FilePath, Positive, Words, read_as
from subquad.choose.decision import UNTOLD
from subquad.cli.parsing import parse
from subquad.cli.show import Output, show
from subquad.cli.streams import say
from subquad.cli.values import Flag, parse_bytes
from subquad.compare.accuracy import USUAL_FEATURES, Accuracy, accuracy
from subquad.compare.advice import FAVOR, Advice, Wish, advise, has_view
from subquad.compare.views import BASELINE, MATERIALISED, Comparison, What
from subquad.errors import SubquadError
from subquad.machine import describe, same_machine
from subquad.report.choose import load_decision
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
    error: Positive | None = None
    """Largest relative error of an approximation, such as 0.05: FAVOR+ is considered with as many features as that takes."""
    run: FilePath | None = None
    """Folder of the comparison to use; the newest of this machine under runs/ by default."""
    race: FilePath | None = None
    """Folder of a race of `subquad choose`: attentions that were not level with the best there, or had no score, are left
    out."""
    error_run: FilePath | None = None
    """Folder of the run of `subquad error` to use with --error; the newest under runs/ by default."""


def main(arguments: Sequence[str]) -> int:
    """Prints advice from the rows of a comparison."""
    options = parse(Advise, arguments, prog="subquad advise")
    if options.exact and options.approximate:
        raise SubquadError("--exact and --approximate exclude each other: give one of them, or none")
    if options.error is None and options.error_run is not None:
        raise SubquadError("--error-run is for --error: give an error as well, such as --error 0.05")
    form = "causal" if options.causal else "bidirectional"
    run = Run.open(options.run, "compare") if options.run is not None else _newest(Path("runs"), form, options.what)
    wish: Wish = "exact" if options.exact else "approximate" if options.approximate else "either"
    comparison = Comparison(run.rows())
    advice = advise(
        comparison,
        run.about.get("mechanisms", {}),
        length=options.length,
        form=form,
        what=options.what,
        memory_bytes=None if options.memory is None else parse_bytes("--memory", options.memory),
        wish=wish,
        accuracy=None if options.error is None else _accuracy(options.error, options.error_run, run),
        unfit=None if options.race is None else _not_level(Run.open(options.race, "choose"), comparison.mechanisms),
    )
    console = Output()
    for sentence in advice.sentences:
        console.print(sentence)
    show(_table(advice), console)
    console.print(f"From {run.folder}, measured {run.about.get('started', 'at an unknown time')}.", soft_wrap=True)
    return 0


def _not_level(race: Run, names: Sequence[str]) -> dict[str, str]:
    """What a race says against attentions of these names that are not level with its standard, or have no score in it."""
    standings, decision = load_decision(race)
    if standings.is_conversion:
        say(f"{race.folder} is not used, as it is a race of conversions of one model")
        return {}
    if decision.kind in UNTOLD:
        say(f"{race.folder} is not used, as the race could not tell qualities: {decision.sentences[0]}")
        return {}
    words = {"worse": f"worse than {decision.standard} in the race", "unclear": "not clearly level in the race"}
    levels = {MATERIALISED: decision.levels.get(BASELINE), **decision.levels}
    unfit = {name: "not scored in the race" for name in names if levels.get(name) is None}
    return unfit | {name: words[level] for name in names if (level := levels.get(name)) in words}


def _accuracy(error: float, folder: Path | None, comparison: Run) -> Accuracy:
    """Returns how many features an error takes, by a run of `subquad error`, the newest one if none is named."""
    runs = _runs(Path("runs"), "error") if folder is None else [Run.open(folder, "error")]
    if not runs:
        raise SubquadError("there is no measurement of errors under runs/: run `subquad error` first, or give --error-run")
    place = f"{comparison.folder / 'run.json'}: options: variants"
    variants = read_as(dict[str, dict[str, Any]], comparison.about["options"].get("variants", {}), place)
    timed_features = read_as(Count, variants.get(FAVOR, {}).get("features", USUAL_FEATURES), f"{place}: features of {FAVOR}")
    found = accuracy(error, runs[0].rows(), timed_features)
    if found is None:
        raise SubquadError(f"{runs[0].folder} has no errors yet: go on with subquad error --resume {runs[0].folder}")
    return found


def _runs(folder: Path, kind: str) -> list[Run]:
    """Returns the runs of a kind in a folder that have rows, the newest first."""
    runs = [Run.open(path.parent) for path in folder.glob("*/run.json")] if folder.is_dir() else []
    measured = (run for run in runs if run.about.get("kind") == kind and run.rows())
    return sorted(measured, key=lambda run: str(run.about.get("started", "")), reverse=True)


def _newest(folder: Path, form: str, what: str) -> Run:
    """Returns the newest comparison of this machine that measured such work, else the newest one."""
    machine = describe()
    comparisons = [run for run in _runs(folder, "compare") if same_machine(run.about.get("machine", {}), machine)]
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
