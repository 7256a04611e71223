"""The race: settings are searched, the best are tried for longer, and the best of each attention is scored on the test.

Everything that is known is in the rows of the run. What comes next follows from them, so a race that was killed goes on.
"""

import math
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from subquad.choose import costs
from subquad.choose.cutting import Cutting
from subquad.choose.ledger import RIVALS, TRIALS, Ledger, trial_name
from subquad.choose.scoring import score_rows
from subquad.choose.seeing import seen_rows, seen_sentences
from subquad.choose.space import Setting, suggest
from subquad.choose.stages import (
    COST_SHARE,
    LATEST_SEARCH,
    MOST_COST_SECONDS,
    PACE_SHARE,
    SEMIFINAL_SHARE,
    Numbers,
    StageName,
    generations,
    most_steps,
    plan_numbers,
    run_seconds,
    search_share,
    stop_time,
)
from subquad.choose.standings import LONGEST, read_standings
from subquad.choose.timing import Phase, time_left
from subquad.choose.trials import JUDGED, Spell, Trial, judge_rivals, pace_rows, run_trial
from subquad.choose.workers import Ended, Job, Workers
from subquad.errors import SubquadError
from subquad.models import ModelOptions
from subquad.results import Row, Run
from subquad.runs import RunOptions
from subquad.tasks.base import Task, TaskOptions
from subquad.tasks.comparing import Best
from subquad.training import TrainOptions
from subquad.types import AttentionOptions

COST, BEST = "cost", "best"
"""Names in the folder of a race: the measurements of costs, and the model that is kept."""
LEAST_MEMORY = 2**28
"""Smallest number of bytes that a run may allocate."""
RIVALS_SECONDS, RIVALS_SHARE = 30.0, 0.3
"""Longest time in which rivals are fitted: so many seconds, or this share of the budget if that is longer."""
MEMORY_SHARE = 0.8
"""Part of the available memory that all runs together may allocate."""
TIMES, GRACE_SECONDS = 4.0, 60.0
"""A run is ended after so many times its seconds, and so many more."""


class Allotment(NamedTuple):
    """What each run of a stage gets."""

    seconds: float
    """Seconds of training."""
    evaluations: int
    """Number of evaluations on the development sequences."""


@dataclass(frozen=True)
class Field:
    """What is raced: a task, a model, a training, and attentions by name."""

    task: TaskOptions
    model: ModelOptions
    training: TrainOptions
    attentions: Mapping[str, AttentionOptions]
    cuts: Mapping[str, Cutting] = field(default_factory=dict)
    """Attentions whose models read only a part of each sequence, by name."""
    has_usual_steps: bool = True
    """Whether `training` has the number of steps that a model of the task is usually trained for."""

    @property
    def usual_steps(self) -> int:
        """Number of steps of a usual training, which no run exceeds; 0 if there is no usual number."""
        return self.training.steps if self.has_usual_steps else 0


@dataclass(frozen=True)
class Terms:
    """How long a race takes, on how many workers, and its seed."""

    budget: float
    """Seconds for everything."""
    jobs: int
    """Number of runs side by side, each on one thread."""
    seed: int
    memory_bytes: int
    """Memory that one run may allocate."""


@dataclass(frozen=True)
class Watch:
    """Called with lines that stay, and with the state of the race, which replaces the one before.

    `follow` is called often, with details that are worth a line on a screen that is updated, but not in a file.
    """

    tell: Callable[[str], None] = lambda line: None
    show: Callable[[str], None] = lambda state: None
    follow: Callable[[str], None] = lambda state: None


class Race:
    """A race in the folder of a run."""

    def __init__(
        self,
        run: Run,
        field: Field,
        terms: Terms,
        task: Task[Any],
        workers: Workers,
        spell: Spell,
        watch: Watch,
        *,
        started: float | None = None,
    ) -> None:
        """`started` is the time from which on the budget counts, by the monotonic clock; now if it is not given."""
        self.run, self.field, self.terms, self.task, self.spell, self.watch = run, field, terms, task, spell, watch
        self.workers = workers
        self.ledger = Ledger(run, list(field.attentions), require_rank(task))
        self.ledger.keep_budget(terms.budget)
        self.start = (time.monotonic() if started is None else started) - self.ledger.spent
        self.stop = stop_time(self.start, terms.budget)
        self.ledger.keep_phase("start", self._elapsed() - self.ledger.spent)

    def go(self) -> None:
        """Runs what is missing. The rows are conclusive at every moment, also after an interrupt."""
        stages: dict[Phase, Callable[[], None]] = {
            "plan": self._plan,
            "search": self._search,
            "semifinal": self._semifinal,
            "cost": self._measure,
            "final": self._final,
        }
        try:
            for what, work in stages.items():
                with self.ledger.phase(what):
                    work()
        finally:
            with self.ledger.phase("conclude"):
                self.workers.close()
                self.conclude()

    def conclude(self) -> None:
        """Writes the qualities and advantages that follow from the final runs so far."""
        self.ledger.replace_derived(score_rows(list(self.ledger.entrants(self.terms.seed))))

    @cached_property
    def numbers(self) -> Numbers:
        """Numbers of runs of each stage, which follow from the budget and from the duration of a training step."""
        if (known := self.ledger.numbers) is not None:
            return known
        training, name = self.field.training, next(iter(self.field.attentions))
        options = RunOptions(self.field.task, self.field.attentions[name], self.field.model, training)
        seconds = PACE_SHARE * self.terms.budget
        work = partial(pace_rows, options=options, seed=self.terms.seed, seconds=seconds)
        for ended in self.workers.run(
            [Job("pace", work, self.run.folder, TIMES * seconds + GRACE_SECONDS)], lambda job: self._may_start(None)
        ):
            self.ledger.keep(ended.rows)
        pace = next((row["value"] for row in self.ledger.rows if row["metric"] == "pace"), 0.0)
        usual = pace * self.field.usual_steps
        planned = plan_numbers(self.terms.budget, self.terms.jobs, len(self.field.attentions), usual)
        return self.ledger.keep_numbers(planned)

    def _plan(self) -> None:
        self._see()
        self.watch.show(f"{self.numbers.settings} settings and {self.numbers.seeds} seeds of each attention")

    def _see(self) -> None:
        if not self.ledger.has("seen"):
            self.ledger.keep(seen_rows(self.task))
        for sentence in [*self.task.description, *seen_sentences(self.ledger.rows)]:
            self.watch.tell(sentence)

    def _search(self) -> None:
        """Tries settings of each attention, in two generations if there are many; the second one knows the first scores."""
        jobs = [] if self.ledger.has_rivals else [self._rivals_job()]
        if self.ledger.scored("final"):  # the search ended before, if not with all settings
            if jobs:
                self._run("search", [], jobs)
            return
        count = self.numbers.settings
        share = search_share(self.numbers.semifinalists)
        allotted = self._allot("search", share, [math.inf] * count * len(self.field.attentions))
        for generation, wanted in enumerate(generations(count)):
            trials = [self._generation(name, generation, wanted, allotted) for name in self.field.attentions]
            self._run("search", interleaved(trials), jobs)
            jobs = []

    def _generation(self, name: str, generation: int, wanted: int, allotted: Allotment) -> list[Trial]:
        first = sum(generations(self.numbers.settings)[:generation])
        before = [self.ledger.tried(name, "search", number) for number in range(first)]
        tried = [each for each in before if each is not None]
        start = Setting(self.field.training.learning_rate, self.field.attentions[name])
        length = int(self.ledger.quantiles[LONGEST])
        numbers = (self.terms.seed, list(self.field.attentions).index(name), generation)
        if generation and not tried:
            return []
        settings = suggest(start, length, wanted, tried, good=self.ledger.ranked.good, seed=numbers)
        return [self._trial(name, "search", first + at, each, allotted) for at, each in enumerate(settings)]

    def _semifinal(self) -> None:
        """Tries the best settings of the search for longer, if there are several to choose from."""
        if self.numbers.semifinalists < 2 or self.ledger.scored("final"):
            return
        best = {name: self.ledger.ranking(name, "search")[: self.numbers.semifinalists] for name in self.field.attentions}
        entered = [(name, at, each.setting) for name, settings in best.items() for at, each in enumerate(settings)]
        entered.sort(key=lambda entry: (entry[1], -self._longest(entry[0], "semifinal", entry[2])))
        longest = [self._longest(name, "semifinal", setting) for name, _, setting in entered]
        allotted = self._allot("semifinal", SEMIFINAL_SHARE, longest)
        self._run("semifinal", [self._trial(name, "semifinal", at, setting, allotted) for name, at, setting in entered])

    def _measure(self) -> None:
        """Measures what the finalists cost at the lengths of the data, once."""
        if self.ledger.has("cost") or not (finalists := self.ledger.finalists()):
            return
        self.watch.show("measuring costs at the lengths of the data")
        longest = int(self.ledger.quantiles[LONGEST])
        cuts = {name: cutting.length for name, cutting in self.field.cuts.items() if name in finalists}
        attentions = {name: setting.attention.for_length(longest) for name, setting in finalists.items() if name not in cuts}
        left = max(0.0, self.stop - time.monotonic())
        rows = costs.measure_costs(
            self.run.folder / COST,
            attentions,
            self.field.model,
            self.ledger.quantiles,
            batch=self.field.training.batch,
            cuts=cuts,
            is_causal=self.task.is_causal,
            budget=min(COST_SHARE * self.terms.budget, MOST_COST_SECONDS, left / 3),
        )
        self.ledger.keep([row | {"elapsed": self._elapsed()} for row in rows])

    def _final(self) -> None:
        """Trains the finalists with several seeds, seed by seed and long runs first, and scores each run on the test."""
        finalists, seeds = self.ledger.finalists(), self.numbers.seeds
        longest = {name: self._longest(name, "final", setting) for name, setting in finalists.items()}
        ordered = sorted(finalists, key=lambda name: -longest[name])
        allotted = self._allot("final", 1.0, [longest[name] for name in ordered] * seeds)
        trials = [
            self._trial(name, "final", at, finalists[name], allotted, seed=self.terms.seed + at)
            for at in range(seeds)
            for name in ordered
        ]
        self._run("final", trials)

    def _longest(self, name: str, stage: StageName, setting: Setting) -> float:
        """Seconds after which a run has all of its steps, at the pace of an earlier one; infinite if that is not known."""
        most = most_steps(stage, self.field.usual_steps, self.numbers.semifinalists)
        pace = self.ledger.pace(name, setting)
        return math.inf if most is None or pace is None else most * pace

    def _allot(self, stage: StageName, share: float, longest: Sequence[float]) -> Allotment:
        """What each run of a stage gets, decided once and kept as a row. `longest` is as in `run_seconds`."""
        for row in self.ledger.rows:
            if row["metric"] == "allotment" and row["stage"] == stage:
                return Allotment(float(row["value"]), row["evaluations"])
        left = self.stop - time.monotonic()
        seconds = run_seconds(share * left * self.ledger.efficiency(), longest, self.terms.jobs)
        runs = len(longest)
        evaluations = self.ledger.evaluations(stage, seconds)
        if left <= 0 or not runs:  # nothing starts any more, and a later resume may have more time
            return Allotment(seconds, evaluations)
        about = {"unit": "s", "stage": stage, "runs": runs, "evaluations": evaluations}
        self.ledger.keep([{"metric": "allotment", "value": seconds, **about}])
        most = most_steps(stage, self.field.usual_steps, self.numbers.semifinalists)
        steps = "" if most is None else f", or {most:,} steps if that is less"
        self.watch.tell(f"{stage}: {runs} runs of {seconds:.3g} s of training each{steps}, {self.terms.jobs} side by side")
        return Allotment(seconds, evaluations)

    def _trial(
        self, name: str, stage: StageName, number: int, setting: Setting, allotted: Allotment, seed: int | None = None
    ) -> Trial:
        training = replace(self.field.training, learning_rate=setting.learning_rate)
        cutting = self.field.cuts.get(name)
        task = self.field.task if cutting is None else cutting.task
        options = RunOptions(task, setting.attention, self.field.model, training)
        seed = self.terms.seed if seed is None else seed
        pace = self.ledger.pace(name, setting)
        until = time.time() + self.stop - time.monotonic()
        most = most_steps(stage, self.field.usual_steps, self.numbers.semifinalists)
        return Trial(trial_name(name, stage, number), name, stage, setting, options, seed, *allotted, pace, until, most)

    def _run(self, stage: StageName, trials: Sequence[Trial], first: Sequence[Job] = ()) -> None:
        """Runs the trials that have no row yet, and writes the rows of each as it ends."""
        by_name = {trial.name: trial for trial in trials if trial.name not in self.ledger.done}
        jobs = [*first, *map(self._job, by_name.values())]
        left = len(by_name)
        for ended in self.workers.run(jobs, lambda job: self._may_start(by_name.get(job.name))):
            trial = by_name.get(ended.job.name)
            self.ledger.keep([row | {"elapsed": self._elapsed()} for row in self._rows(ended, trial)])
            left -= trial is not None
            if ended.failure:
                self.watch.tell(f"{ended.job.name}: {ended.failure} ({ended.message})")
            self.watch.show(f"{stage}: {self.ledger.leaders(stage)}; {left} of {len(trials)} runs left, {self._time_left()}")

    def _may_start(self, trial: Trial | None) -> bool:
        """Whether there is time for a run. A search that takes longer than planned leaves time for the final runs."""
        needed = 0.0 if trial is None or trial.stage != "final" else 0.8 * trial.expected_seconds
        if trial is not None and trial.stage == "search" and self.ledger.scored("search", trial.mechanism):
            return self._elapsed() < LATEST_SEARCH * self.terms.budget
        return time.monotonic() + needed < self.stop

    def _job(self, trial: Trial) -> Job:
        folder = self.run.folder / TRIALS / trial.name
        work = partial(run_trial, trial=trial, spell=self.spell)
        variant = trial.options.task if trial.mechanism in self.field.cuts else None
        return Job(trial.name, work, folder, TIMES * trial.seconds + GRACE_SECONDS, variant)

    def _rivals_job(self) -> Job:
        work = partial(judge_rivals, name=RIVALS)
        return Job("rivals", work, self.run.folder, max(RIVALS_SECONDS, RIVALS_SHARE * self.terms.budget))

    def _rows(self, ended: Ended, trial: Trial | None) -> list[Row]:
        if not ended.failure:
            return ended.rows
        problem = {"value": None, "failure": ended.failure, "message": ended.message}
        if trial is None:
            return [{"metric": "rival", "names": "", **problem}]
        return [{"metric": "score", **problem, **trial.labels}]

    def chosen(self, recommended: str) -> str:
        """The attention whose model is kept: the recommended one, or the best on the test; empty if none was scored."""
        if recommended in self.field.attentions:
            return recommended
        attentions = read_standings(self.ledger.rows).of("attention")
        return attentions[0].name if attentions else ""

    def keep_best(self, name: str) -> Path | None:
        """Copies the best final run of an attention to the folder `BEST` of the race; None if there is none."""
        if (trial := self.ledger.best_trial(name)) is None:
            return None
        return copy_best(self.run.folder / TRIALS / trial, self.run.folder)

    def _elapsed(self) -> float:
        return time.monotonic() - self.start

    def _time_left(self) -> str:
        return time_left(self.start + self.terms.budget)


def copy_best(source: Path, race: Path) -> Path:
    """Copies the folder of a model to the folder `BEST` of a race, in place of one that is there, and returns it."""
    folder = race / BEST
    aside = folder.with_name(f".{folder.name}.new")
    shutil.rmtree(aside, ignore_errors=True)
    shutil.copytree(source, aside, ignore=shutil.ignore_patterns(".lock", JUDGED))
    shutil.rmtree(folder, ignore_errors=True)
    aside.rename(folder)
    return folder


def memory_share(jobs: int) -> int:
    """Bytes that each of so many runs may allocate: its part of most of the memory that is available."""
    return max(LEAST_MEMORY, int(MEMORY_SHARE * psutil.virtual_memory().available / jobs))


def interleaved(groups: Sequence[Sequence[Trial]]) -> list[Trial]:
    """The first trial of each group, then the second of each, and so on."""
    return [trial for row in zip_longest(*groups) for trial in row if trial is not None]


def require_rank(task: Task[Any]) -> Best:
    """The metric that ranks runs of a task. Raises `SubquadError` for a task that has none."""
    if (ranked := task.ranked_by) is None:
        raise SubquadError(f"runs of {task.kind} cannot be ranked, as the task names no metric for it: choose another task")
    return ranked
