"""Kills runs at random moments, resumes them, and compares their ends with that of a run that was not killed."""

import shutil
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random

import pytest

from subquad import cli
from subquad.experiments.copy.grid import SCALES
from subquad.results import Run
from subquad.training import loop
from tests.runs.made import convert_words, events_words, write_pages_quickly
from tests.runs.states import same_rows, same_weights
from tests.runs.victims import PATIENCE_SECONDS, End, Moment, adopt_orphans, execute
from tests.runs.words import CONVERSION_CHECKPOINT_SECONDS, COPY, REPRODUCE, SETTING, TINY

COMPARE = ("compare", *SETTING, "--mechanisms", "linear", "--what", "forward", "--causal", "--lengths", "8", "16")
COMMANDS: dict[str, Callable[[Path], tuple[str, ...]]] = {
    "compare": lambda folder: (*COMPARE, "--budget", "600"),
    "copy": lambda folder: ("train", *COPY, "--steps", "24", "--checkpoint-every", "5"),
    "events": events_words,
    "convert": convert_words,
    "reproduce": lambda folder: REPRODUCE,
}
"""The words of each command, whose inputs are in the folder then."""
CHECKPOINTS = ("checkpoint/", "best/", "model/")
"""The folders of a run that hold weights."""
OFTEN_SECONDS = 0.01
"""How often rows and checkpoints are written, so that a tiny run has several moments between two of them."""


def shorten() -> None:
    """Makes tiny runs possible, in this process and those that are forked from it."""
    patch = pytest.MonkeyPatch()
    patch.setitem(SCALES, "tiny", TINY)
    patch.setattr(loop, "FLUSH_SECONDS", OFTEN_SECONDS)
    patch.setattr(CONVERSION_CHECKPOINT_SECONDS, OFTEN_SECONDS)
    write_pages_quickly(patch)


@dataclass(frozen=True)
class Whole:
    """A run that was not killed."""

    command: str
    words: tuple[str, ...]
    run: Path
    seconds: float
    first_seconds: float
    """When it first changed a file."""
    changes: int
    """How often it changed its files."""
    notes: tuple[str, ...]
    """The sentences that it wrote to standard error."""

    @classmethod
    def make(cls, command: str, folder: Path) -> "Whole":
        """Makes the inputs of a command, then runs it to its end."""
        words_file = folder / "words"

        def prepare() -> int:
            words_file.write_text("\n".join(COMMANDS[command](folder)))
            return 0

        adopt_orphans()
        folder.mkdir(parents=True)
        prepared = execute(prepare, folder / "none", folder, Moment())
        assert prepared.code == 0, prepared.said
        words, run = tuple(words_file.read_text().splitlines()), folder / "run"
        end = execute(partial(cli.main, [*words, "--out", str(run)]), run, folder, Moment())
        assert (end.code, end.left) == (0, []), end.said
        assert all(line.startswith("subquad: ") for line in end.said.splitlines()), end.said
        notes = tuple(end.said.splitlines())
        return cls(command, words, run, end.seconds, end.first_seconds, len(end.changes), notes)

    def words_for(self, run: Path) -> list[str]:
        """The words that make a run, or resume it where there is one already."""
        if (run / "run.json").exists() and self.command != "reproduce":  # which goes on with what is there
            return [self.words[0], "--resume", str(run)]
        return [*self.words, "--out", str(run)]


@dataclass
class Story:
    """A run that was killed some times and resumed, and what was wrong with it."""

    command: str
    number: int
    phases: list[str] = field(default_factory=list)
    """What had been done when it was killed, for each kill."""
    changes: list[str] = field(default_factory=list)
    """What was about to change, for each kill at a change of files."""
    problems: list[str] = field(default_factory=list)


def torment(whole: Whole, number: int, kills: int, random: Random, folder: Path) -> Story:
    """Kills a run so many times, or until it comes to its end, and compares that end with the whole run."""
    adopt_orphans()
    folder.mkdir(parents=True)
    story, run = Story(whole.command, number), folder / "run"
    for place in range(kills + 1):
        moment = draw(whole, random, resumed=place > 0) if place < kills else Moment()
        halves = half_files(run)  # that the kill before this one left
        end = execute(partial(cli.main, whole.words_for(run)), run, folder, moment)
        story.problems += problems(end, whole.notes)
        if not end.was_killed or story.problems:
            break
        if moment == Moment():
            story.problems.append(f"it was not done after {PATIENCE_SECONDS:.0f} s")
            break
        story.changes += [part_of(end.changes[-1])] if moment.change else []
        story.phases.append(phase(run, whole, half_files(run) - halves, end.changes[-1] if moment.change else ""))
    if not story.problems:
        story.problems += differences(run, whole.run)
    if not story.problems:
        shutil.rmtree(folder)
    return story


def draw(whole: Whole, random: Random, *, resumed: bool) -> Moment:
    """A moment at which a command is killed: any, or once it works, or at a change. A run that is resumed has less to do."""
    share = random.random() * (0.6 if resumed else 1.0)
    kind = random.choice(("any time", "work", "change", "change"))
    if kind == "change":
        return Moment(change=1 + int(share * whole.changes))
    start = 0.0 if kind == "any time" else whole.first_seconds
    return Moment(seconds=start + share * (whole.seconds - start))


def problems(end: End, notes: Collection[str]) -> list[str]:
    """What a command did that it must not do, killed or not: it may say only what it says when it is not killed."""
    found = [f"it left a process after code {end.code}: {process}" for process in end.left]
    if not end.was_killed and end.code != 0:
        found.append(f"it ended with code {end.code}")
    if found or not set(end.said.splitlines()) <= set(notes):
        found.append(f"it said: {end.said[-2000:]}")
    return found


def differences(run: Path, whole: Path) -> list[str]:
    """Where a run differs from one that was not killed."""
    found = [] if same_rows(run, whole) else ["it has other rows"]
    return found if same_weights(run, whole) else [*found, "it has other weights"]


def half_files(run: Path) -> set[Path]:
    """Files and checkpoints that are being written, and checkpoints that are being deleted."""
    return {*run.rglob("*.part"), *run.rglob("*.old")}


def phase(run: Path, whole: Whole, halves: Collection[Path], change: str) -> str:
    """What a run had come to when it was killed, in words, from the half files and the change that it was killed at."""
    if not (run / "run.json").exists():
        return "before run.json"
    if any("step-" in path.name for path in halves) or part_of(change) in CHECKPOINTS:
        return "in a checkpoint"
    if halves:
        return "in another file"
    rows = _count(run)
    return "before the first row" if not rows else "after the last row" if rows == _count(whole.run) else "between rows"


def _count(run: Path) -> int:
    return sum(Run(path.parent, {}).count_rows() for path in run.rglob("rows.jsonl"))


def part_of(change: str) -> str:
    """The part of a run that a change belongs to."""
    parts = (*CHECKPOINTS, "run.json", "rows.jsonl", "report.html", ".lock")
    return next((part for part in parts if part in change), "another file")


def summary(stories: Sequence[Story]) -> str:
    """How often runs were killed, and when."""
    phases = [phase for story in stories for phase in story.phases]
    changes = [change for story in stories for change in story.changes]
    failed = sum(bool(story.problems) for story in stories)
    return (
        f"{len(phases)} kills of {len(stories)} runs, {failed} failed; {_counts(phases)}; "
        f"{len(changes)} of them were just before a change of files ({_counts(changes)})"
    )


def _counts(names: Sequence[str]) -> str:
    return ", ".join(f"{names.count(name)} {name}" for name in sorted(set(names)))
