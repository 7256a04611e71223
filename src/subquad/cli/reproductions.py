"""The folder of `subquad reproduce`: what it was made with, and what is refused before anything runs."""

import dataclasses
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

from subquad.checking import Checked, read
from subquad.errors import SubquadError
from subquad.experiments.base import Trial, finished
from subquad.measure.machine import describe, versions
from subquad.results import Run


@dataclass(frozen=True)
class Kept(Checked):
    """The options of a reproduction in its run.json."""

    experiment: str
    scale: str
    data: str | None
    original: str | None

    @property
    def words(self) -> str:
        """The options as they are typed."""
        paths = {"--data": self.data, "--original": self.original}
        more = "".join(f" {name} {shlex.quote(path)}" for name, path in paths.items() if path is not None)
        return f"{self.experiment} --scale {self.scale}{more}"


def open_reproduction(folder: Path, options: Kept, trials: Sequence[Trial]) -> Run:
    """The run in a folder, or a new one. Refuses what other options made, and data that cannot be read."""
    if (folder / "run.json").exists():
        run = Run.open(folder, "reproduce")
        before = read(Kept, run.about["options"], f"{folder / 'run.json'}: options")
        if before != options:
            raise SubquadError(f"{folder} holds `subquad reproduce {before.words}`: give the same, or choose another --out")
        _check_data(folder, trials)
        return run
    _refuse_other_trainings(folder, options, trials)
    _check_data(folder, trials)
    about = {
        "options": dataclasses.asdict(options),
        "versions": versions(),
        "machine": describe(),
        "command": f"subquad reproduce {options.words}",
        "started": f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC",
    }
    return Run.create(folder, "reproduce", about)


def _refuse_other_trainings(folder: Path, options: Kept, trials: Sequence[Trial]) -> None:
    """Refuses a folder with trainings that are not of these trials. Older versions left no other trace in a folder."""
    known = {trial.name: trial for trial in trials}
    for path in sorted(folder.glob("*/run.json")):
        about, trial = Run.open(path.parent).about, known.get(path.parent.name)
        is_known = trial is not None and shlex.join(trial.arguments) in about.get("command", "")
        if about.get("kind") in ("train", "convert") and not is_known:
            raise SubquadError(f"{path.parent} is not of `subquad reproduce {options.words}`: choose another --out")


def _check_data(folder: Path, trials: Sequence[Trial]) -> None:
    """Reads the data of all trainings that are not finished, once for each source: nothing runs if some cannot be read."""
    from subquad.cli import convert, train

    checks = {"train": train.describe_run, "convert": convert.describe_run}
    known: set[tuple[str, ...]] = set()
    for trial in trials:
        values = [value for name, value in pairwise(trial.arguments) if name in ("--data", "--text", "--label")]
        source = (trial.command, trial.arguments[0], *values)
        has_data = values or trial.command == "convert"  # whose first argument is a model
        if has_data and not trial.start and source not in known and not finished(folder / trial.name):
            known.add(source)
            checks[trial.command](trial.arguments)
