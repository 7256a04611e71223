"""The race: settings are searched, the best are tried for longer, and the best of each attention is scored on the test.

Everything that is known is in the rows of the run. What comes next follows from them, so a race that was killed goes on.
"""

import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import zip_longest
from pathlib import Path
from statistics import mean, median
from typing import Any, NamedTuple

import psutil

from subquad.choose import costs
from subquad.choose.scoring import Entrant, score_rows
from subquad.choose.seeing import seen_rows, seen_sentences
from subquad.choose.space import Setting, Tried, suggest
from subquad.choose.stages import (
    COST_SHARE,
    MOST_COST_SECONDS,
    SEARCH_SHARE,
    SEMIFINAL_SHARE,
    USUAL_EFFICIENCY,
    StageName,
    plan_numbers,
    run_seconds,
    stop_time,
)
from subquad.choose.standings import DERIVED, LONGEST, read_standings
from subquad.choose.trials import EVALUATION_SHARE, EVALUATIONS, JUDGED, Spell, Trial, judge_rivals, read_judged, run_trial
from subquad.choose.workers import Ended, Job, Workers
from subquad.errors import SubquadError
from subquad.models import ModelOptions
from subquad.results import Row, Run, folder_name
from subquad.runs import RunOptions
from subquad.tasks.base import Task, TaskOptions
from subquad.tasks.comparing import Best
from subquad.training import TrainOptions
from subquad.types import AttentionOptions
from subquad.words import compact

TRIALS, RIVALS, COST, BEST = "trials", "rivals.jsonl", "cost", "best"
"""Names in the folder of a race: its runs, the scores of rivals, the measurements of costs, and the model that is kept."""
LEAST_MEMORY = 2**28
"""Smallest number of bytes that a run may allocate."""
RIVALS_SECONDS = 600.0
"""Longest time in which rivals are fitted, or the budget if that is longer."""
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
    """Called with lines that stay, and with the state of the race, which replaces the one before."""

    tell: Callable[[str], None] = lambda line: None
    show: Callable[[str], None] = lambda state: None


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
        self.rows = run.rows()
        spent = max((row["elapsed"] for row in self.rows if "elapsed" in row), default=0.0)
        self.start = (time.monotonic() if started is None else started) - spent
        self.stop = stop_time(self.start, terms.budget)
        self.workers = workers
        self.numbers = plan_numbers(terms.budget, terms.jobs, len(field.attentions))
        self.ranked: Best = require_rank(task)

    def go(self) -> None:
        """Runs what is missing. The rows are conclusive at every moment, also after an interrupt."""
        try:
            self._see()
            self._search()
            self._semifinal()
            self._measure()
            self._final()
        finally:
            self.workers.close()
            self.conclude()

    def conclude(self) -> None:
        """Writes the qualities and advantages that follow from the final runs so far."""
        self.run.keep_rows(lambda row: row["metric"] not in DERIVED)
        self.rows = [row for row in self.rows if row["metric"] not in DERIVED]
        self._keep(score_rows(list(self._entrants())))

    @property
    def quantiles(self) -> dict[float, float]:
        """Quantiles of the lengths of the sequences."""
        return {row["quantile"]: row["value"] for row in self.rows if row["metric"] == "seen"}

    def _see(self) -> None:
        if not any(row["metric"] == "seen" for row in self.rows):
            self._keep(seen_rows(self.task))
        for sentence in [*self.task.description, *seen_sentences(self.rows)]:
            self.watch.tell(sentence)

    def _search(self) -> None:
        """Tries settings of each attention in two generations; the second one knows the scores of the first."""
        count = self.numbers.settings
        allotted = self._allot("search", SEARCH_SHARE, count * len(self.field.attentions) + 1)
        jobs = [] if any(row["metric"] == "rival" for row in self.rows) else [self._rivals_job()]
        for generation, wanted in enumerate((-(-count // 2), count // 2)):
            trials = [self._generation(name, generation, wanted, allotted) for name in self.field.attentions]
            self._run("search", interleaved(trials), jobs)
            jobs = []

    def _generation(self, name: str, generation: int, wanted: int, allotted: Allotment) -> list[Trial]:
        first = -(-self.numbers.settings // 2) if generation else 0
        before = [self._tried(name, "search", number) for number in range(first)]
        tried = [each for each in before if each is not None]
        start = Setting(self.field.training.learning_rate, self.field.attentions[name])
        length = int(self.quantiles[LONGEST])
        numbers = (self.terms.seed, list(self.field.attentions).index(name), generation)
        if generation and not tried:
            return []
        settings = suggest(start, length, wanted, tried, good=self.ranked.good, seed=numbers)
        return [self._trial(name, "search", first + at, each, allotted) for at, each in enumerate(settings)]

    def _semifinal(self) -> None:
        """Tries the best settings of the search for longer, if there are several to choose from."""
        if self.numbers.semifinalists < 2:
            return
        best = {name: self._ranking(name, "search")[: self.numbers.semifinalists] for name in self.field.attentions}
        allotted = self._allot("semifinal", SEMIFINAL_SHARE, sum(map(len, best.values())))
        trials = [
            [self._trial(name, "semifinal", at, each.setting, allotted) for at, each in enumerate(settings)]
            for name, settings in best.items()
        ]
        self._run("semifinal", interleaved(trials))

    def finalists(self) -> dict[str, Setting]:
        """The best setting of each attention that has one."""
        ranked = {name: self._ranking(name, "semifinal") or self._ranking(name, "search") for name in self.field.attentions}
        return {name: tried[0].setting for name, tried in ranked.items() if tried}

    def _measure(self) -> None:
        """Measures what the finalists cost at the lengths of the data, once."""
        if any(row["metric"] == "cost" for row in self.rows) or not (finalists := self.finalists()):
            return
        self.watch.show("measuring costs at the lengths of the data")
        longest = int(self.quantiles[LONGEST])
        attentions = {name: setting.attention.for_length(longest) for name, setting in finalists.items()}
        left = max(0.0, self.stop - time.monotonic())
        rows = costs.measure_costs(
            self.run.folder / COST,
            attentions,
            self.field.model,
            costs.cost_lengths(self.quantiles),
            batch=self.field.training.batch,
            is_causal=self.task.is_causal,
            budget=min(COST_SHARE * self.terms.budget, MOST_COST_SECONDS, left / 3),
        )
        self._keep([row | {"elapsed": self._elapsed()} for row in rows])

    def _final(self) -> None:
        """Trains the finalists with several seeds, seed by seed, and scores each run on the test."""
        finalists, seeds = self.finalists(), self.numbers.seeds
        allotted = self._allot("final", 1.0, len(finalists) * seeds)
        trials = [
            self._trial(name, "final", at, setting, allotted, seed=self.terms.seed + at)
            for at in range(seeds)
            for name, setting in finalists.items()
        ]
        self._run("final", trials)

    def _allot(self, stage: StageName, share: float, runs: int) -> Allotment:
        """What each run of a stage gets, decided once and kept as a row."""
        for row in self.rows:
            if row["metric"] == "allotment" and row["stage"] == stage:
                return Allotment(float(row["value"]), row["evaluations"])
        left = self.stop - time.monotonic()
        seconds = run_seconds(left, share, runs, self.terms.jobs, self._efficiency())
        evaluations = self._evaluations(stage, seconds)
        about = {"unit": "s", "stage": stage, "runs": runs, "evaluations": evaluations}
        self._keep([{"metric": "allotment", "value": seconds, **about}])
        self.watch.tell(f"{stage}: {runs} runs of {seconds:.3g} s of training each, {self.terms.jobs} side by side")
        return Allotment(seconds, evaluations)

    def _efficiency(self) -> float:
        """Share of the workers' time in the latest stage that was training."""
        done = [row for row in self.rows if row["metric"] == "score" and row["value"] is not None]
        latest = [row for row in done if row["stage"] == done[-1]["stage"]]
        if not latest:
            return USUAL_EFFICIENCY
        return min(0.95, max(0.2, sum(row["seconds"] for row in latest) / sum(row["wall_seconds"] for row in latest)))

    def _trial(
        self, name: str, stage: StageName, number: int, setting: Setting, allotted: Allotment, seed: int | None = None
    ) -> Trial:
        training = replace(self.field.training, learning_rate=setting.learning_rate)
        options = RunOptions(self.field.task, setting.attention, self.field.model, training)
        called = f"{folder_name(name)}-{stage}-{number}"
        seed = self.terms.seed if seed is None else seed
        return Trial(called, name, stage, setting, options, seed, *allotted)

    def _evaluations(self, stage: StageName, seconds: float) -> int:
        """Number of evaluations of a run, so that they take a small part of its time."""
        known = [row["evaluation_seconds"] for row in self.rows if "evaluation_seconds" in row]
        if not known:
            return 2
        return max(1, min(EVALUATIONS[stage], int(EVALUATION_SHARE * seconds / max(1e-6, median(known)))))

    def _run(self, stage: StageName, trials: Sequence[Trial], first: Sequence[Job] = ()) -> None:
        """Runs the trials that have no row yet, and writes the rows of each as it ends."""
        done = {row["trial"] for row in self.rows if row["metric"] == "score"}
        by_name = {trial.name: trial for trial in trials if trial.name not in done}
        jobs = [*first, *map(self._job, by_name.values())]
        left = len(by_name)
        for ended in self.workers.run(jobs, lambda job: self._may_start(by_name.get(job.name))):
            trial = by_name.get(ended.job.name)
            self._keep([row | {"elapsed": self._elapsed()} for row in self._rows(ended, trial)])
            left -= trial is not None
            if ended.failure:
                self.watch.tell(f"{ended.job.name}: {ended.failure} ({ended.message})")
            self.watch.show(f"{stage}: {self.leaders(stage)}; {left} of {len(trials)} runs left, {self._time_left()}")

    def _may_start(self, trial: Trial | None) -> bool:
        needed = 0.0 if trial is None or trial.stage != "final" else 0.8 * trial.seconds
        return time.monotonic() + needed < self.stop

    def _job(self, trial: Trial) -> Job:
        folder = self.run.folder / TRIALS / trial.name
        work = partial(run_trial, trial=trial, folder=folder, spell=self.spell)
        return Job(trial.name, work, TIMES * trial.seconds + GRACE_SECONDS)

    def _rivals_job(self) -> Job:
        work = partial(judge_rivals, path=self.run.folder / RIVALS)
        return Job("rivals", work, max(RIVALS_SECONDS, self.terms.budget))

    def _rows(self, ended: Ended, trial: Trial | None) -> list[Row]:
        if not ended.failure:
            return ended.rows
        problem = {"value": None, "failure": ended.failure, "message": ended.message}
        if trial is None:
            return [{"metric": "rival", "names": "", **problem}]
        return [{"metric": "score", **problem, **trial.labels}]

    def leaders(self, stage: StageName) -> str:
        """Which attentions lead a stage, by their scores on the development sequences."""
        best = {name: ranking[0].score for name in self.field.attentions if (ranking := self._ranking(name, stage))}
        sign = -1.0 if self.ranked.good == "high" else 1.0
        ordered = sorted(best.items(), key=lambda item: sign * (item[1] or 0.0))
        if not ordered:
            return "no scores yet"
        metric = self.ranked.metric.replace("_", " ")
        first, *others = (f"{name} {compact(score or 0.0)}" for name, score in ordered)
        return f"{first} leads ({metric})" + (f", then {', '.join(others[:2])}" if others else "")

    def _tried(self, name: str, stage: StageName, number: int) -> Tried | None:
        called = f"{folder_name(name)}-{stage}-{number}"
        row = next((row for row in self.rows if row["metric"] == "score" and row["trial"] == called), None)
        return None if row is None else Tried(Setting.from_text(row["setting"]), row["value"])

    def _ranking(self, name: str, stage: StageName) -> list[Tried]:
        """The settings of an attention that a stage scored, the best first."""
        sign = -1.0 if self.ranked.good == "high" else 1.0
        scored = [
            Tried(Setting.from_text(row["setting"]), row["value"])
            for row in self.rows
            if row["metric"] == "score" and row["mechanism"] == name and row["stage"] == stage and row["value"] is not None
        ]
        return sorted(scored, key=lambda tried: sign * (tried.score or 0.0))

    def _entrants(self) -> Iterator[Entrant]:
        """Yields the attentions with final runs, and the rivals."""
        finals = [
            row for row in self.rows if row["metric"] == "score" and row["stage"] == "final" and row["value"] is not None
        ]
        for name in self.field.attentions:
            mine = [row for row in finals if row["mechanism"] == name]
            judged = {row["seed"]: read_judged(self.run.folder / TRIALS / row["trial"] / JUDGED) for row in mine}
            known = {seed: by_name[""].judged for seed, by_name in judged.items() if "" in by_name}
            if known:
                yield Entrant(name, "attention", known, mean(row["steps"] for row in mine))
        for name, rival in read_judged(self.run.folder / RIVALS).items():
            yield Entrant(name, "trivial" if rival.is_trivial else "rival", {self.terms.seed: rival.judged})

    def chosen(self, recommended: str) -> str:
        """The attention whose model is kept: the recommended one, or the best on the test; empty if none was scored."""
        if recommended in self.field.attentions:
            return recommended
        attentions = read_standings(self.rows).of("attention")
        return attentions[0].name if attentions else ""

    def best_trial(self, name: str) -> str | None:
        """Name of the final run of an attention that is best in development; None if there is none."""
        sign = -1.0 if self.ranked.good == "high" else 1.0
        finals = [
            row
            for row in self.rows
            if row["metric"] == "score" and row["stage"] == "final" and row["mechanism"] == name and row["value"] is not None
        ]
        if not finals:
            return None
        best: str = min(finals, key=lambda row: sign * row["value"])["trial"]
        return best

    def keep_best(self, name: str) -> Path | None:
        """Copies the best final run of an attention to the folder `BEST` of the race; None if there is none."""
        if (trial := self.best_trial(name)) is None:
            return None
        folder = self.run.folder / BEST
        aside = folder.with_name(f".{folder.name}.new")
        shutil.rmtree(aside, ignore_errors=True)
        shutil.copytree(self.run.folder / TRIALS / trial, aside, ignore=shutil.ignore_patterns(".lock", JUDGED))
        shutil.rmtree(folder, ignore_errors=True)
        aside.rename(folder)
        return folder

    def _keep(self, rows: Sequence[Row]) -> None:
        self.rows += rows
        self.run.append(rows)

    def _elapsed(self) -> float:
        return time.monotonic() - self.start

    def _time_left(self) -> str:
        seconds = max(0, round(self.start + self.terms.budget - time.monotonic()))
        return f"{seconds // 60}:{seconds % 60:02d} left"


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
