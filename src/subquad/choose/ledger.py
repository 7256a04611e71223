"""What the rows of a race tell while it runs: what was tried, who leads, and how much of the time is training."""

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import mean, median

from subquad.choose.scoring import Entrant
from subquad.choose.space import Setting, Tried
from subquad.choose.stages import USUAL_EFFICIENCY, Numbers, StageName
from subquad.choose.standings import DERIVED
from subquad.choose.timing import Phase
from subquad.choose.trials import EVALUATION_SHARE, EVALUATIONS, JUDGED, read_judged
from subquad.results import Row, Run, folder_name
from subquad.tasks.comparing import Best
from subquad.words import compact

TRIALS, RIVALS = "trials", "rivals.jsonl"
"""Names in the folder of a race: its runs, and the scores of rivals."""
ENOUGH_STEPS = 10
"""Smallest number of steps of a run that tells the duration of a step."""
ALIKE = 0.03
"""Scores of an attention are alike if they differ by less than this share of what the best score of all attentions is ahead
of the middle one."""
FIRST_EVALUATIONS = 2
"""Number of evaluations of a run before it is known how long one takes."""


def trial_name(mechanism: str, stage: StageName, number: int) -> str:
    """Name of a run of a race, which is also the name of its folder."""
    return f"{folder_name(mechanism)}-{stage}-{number}"


class Ledger:
    """The rows of a race, which are written as they come."""

    def __init__(self, run: Run, names: Sequence[str], ranked: Best) -> None:
        """`names` are the attentions that are raced, `ranked` the metric of their scores in development."""
        self.run, self.names, self.ranked = run, list(names), ranked
        self.rows = run.rows()
        self.sign = -1.0 if ranked.good == "high" else 1.0

    def keep(self, rows: Sequence[Row]) -> None:
        """Writes rows."""
        self.rows += rows
        self.run.append(rows)

    def replace_derived(self, rows: Sequence[Row]) -> None:
        """Writes rows that follow from others in place of those that were written before."""
        self.run.keep_rows(lambda row: row["metric"] not in DERIVED)
        self.rows = [row for row in self.rows if row["metric"] not in DERIVED]
        self.keep(rows)

    def keep_budget(self, seconds: float) -> None:
        """Writes the budget of the race, if it is another one than before."""
        known = [row["value"] for row in self.rows if row["metric"] == "budget"]
        first = self.run.about.get("options", {}).get("terms", {}).get("budget")
        if seconds != (known[-1] if known else first):
            self.keep([{"metric": "budget", "value": seconds, "unit": "s"}])

    def has(self, metric: str) -> bool:
        """Whether there are rows of a metric."""
        return any(row["metric"] == metric for row in self.rows)

    @property
    def has_rivals(self) -> bool:
        """Whether models without attention were judged. Those whose judging failed are judged again after a resume."""
        return any(row["metric"] == "rival" and row["value"] is not None for row in self.rows)

    @property
    def spent(self) -> float:
        """Seconds of the budget that were used before."""
        return max((row["elapsed"] for row in self.rows if "elapsed" in row), default=0.0)

    @property
    def quantiles(self) -> dict[float, float]:
        """Quantiles of the lengths of the sequences."""
        return {row["quantile"]: row["value"] for row in self.rows if row["metric"] == "seen"}

    @property
    def done(self) -> set[str]:
        """Names of the runs that ended, well or not."""
        return {row["trial"] for row in self.rows if row["metric"] == "score"}

    @property
    def numbers(self) -> Numbers | None:
        """Numbers of runs of each stage that the race began with; None if they are not planned yet."""
        for row in self.rows:
            if row["metric"] == "plan":
                return Numbers(row["value"], row["semifinalists"], row["seeds"])
        return None

    def keep_numbers(self, planned: Numbers) -> Numbers:
        """Writes the numbers of runs of each stage."""
        about = {"semifinalists": planned.semifinalists, "seeds": planned.seeds}
        self.keep([{"metric": "plan", "value": planned.settings, "unit": "settings", **about}])
        return planned

    def pace(self, name: str, setting: Setting) -> float | None:
        """Seconds of a training step of an attention with the options of a setting, at any learning rate; None if not known.

        That of its fastest run: what else the machine does only makes steps longer, and would give the attention fewer.
        """
        paces = [
            row["seconds"] / row["steps"]
            for row in self.rows
            if row["metric"] == "score" and row["value"] is not None and row["mechanism"] == name
            if row["steps"] >= ENOUGH_STEPS and Setting.from_text(row["setting"]).attention == setting.attention
        ]
        return min(paces, default=None)

    @contextmanager
    def phase(self, what: Phase) -> Iterator[None]:
        """Writes a row with the duration of the `with` block."""
        begun = time.monotonic()
        try:
            yield
        finally:
            self.keep_phase(what, time.monotonic() - begun)

    def keep_phase(self, what: Phase, seconds: float) -> None:
        """Writes a row with the duration of a phase of the race."""
        self.keep([{"metric": "phase", "value": seconds, "unit": "s", "what": what}])

    def scored(self, stage: StageName, name: str | None = None) -> list[Row]:
        """Rows of the runs of a stage that have a score, of one attention or of all."""
        return [
            row
            for row in self.rows
            if row["metric"] == "score" and row["value"] is not None and row["stage"] == stage
            if name is None or row["mechanism"] == name
        ]

    def tried(self, name: str, stage: StageName, number: int) -> Tried | None:
        """The setting and the score of a run; None if it did not end yet."""
        called = trial_name(name, stage, number)
        row = next((row for row in self.rows if row["metric"] == "score" and row["trial"] == called), None)
        return None if row is None else Tried(Setting.from_text(row["setting"]), row["value"])

    def ranking(self, name: str, stage: StageName) -> list[Tried]:
        """The settings of an attention that a stage scored, the best first."""
        ordered = sorted(self.scored(stage, name), key=lambda row: self.sign * row["value"])
        return [Tried(Setting.from_text(row["setting"]), row["value"]) for row in ordered]

    def finalists(self) -> dict[str, Setting]:
        """The best setting of each attention that has one; of settings that are about as good, see `pick_setting`."""
        ranked = {name: self.ranking(name, "semifinal") or self.ranking(name, "search") for name in self.names}
        known = {name: tried for name, tried in ranked.items() if tried}
        everything = [each for tried in known.values() for each in tried]
        return {name: pick_setting(tried, everything, self.sign) for name, tried in known.items()}

    def leaders(self, stage: StageName) -> str:
        """Which attentions lead a stage, by their scores in development, in words."""
        best = {name: ranking[0].score or 0.0 for name in self.names if (ranking := self.ranking(name, stage))}
        if not best:
            return "no scores yet"
        ordered = sorted(best.items(), key=lambda item: self.sign * item[1])
        first, *others = (f"{name} {compact(score)}" for name, score in ordered)
        leader = f"{first} leads ({self.ranked.metric.replace('_', ' ')})"
        return leader + (f", then {', '.join(others[:2])}" if others else "")

    def efficiency(self) -> float:
        """Share of the workers' time in the latest stage that was training."""
        done = [row for row in self.rows if row["metric"] == "score" and row["value"] is not None]
        latest = [row for row in done if row["stage"] == done[-1]["stage"]]
        if not latest:
            return USUAL_EFFICIENCY
        return min(0.95, max(0.2, sum(row["seconds"] for row in latest) / sum(row["wall_seconds"] for row in latest)))

    def evaluations(self, stage: StageName, seconds: float) -> int:
        """Number of evaluations of a run of so many seconds, so that they take a small part of its time."""
        known = [row["evaluation_seconds"] for row in self.rows if "evaluation_seconds" in row]
        if not known:
            return FIRST_EVALUATIONS
        return max(1, min(EVALUATIONS[stage], int(EVALUATION_SHARE * seconds / max(1e-6, median(known)))))

    def best_trial(self, name: str) -> str | None:
        """Name of the final run of an attention that is best in development; None if there is none."""
        finals = self.scored("final", name)
        best: str | None = min(finals, key=lambda row: self.sign * row["value"])["trial"] if finals else None
        return best

    def entrants(self, seed: int) -> Iterator[Entrant]:
        """Yields the attentions with final runs, and the rivals, which go with any seed."""
        folder: Path = self.run.folder
        for name in self.names:
            finals = self.scored("final", name)
            judged = {row["seed"]: read_judged(folder / TRIALS / row["trial"] / JUDGED) for row in finals}
            known = {number: by_name[""].judged for number, by_name in judged.items() if "" in by_name}
            if known:
                yield Entrant(name, "attention", known, mean(row["steps"] for row in finals))
        for name, rival in read_judged(folder / RIVALS).items():
            yield Entrant(name, "trivial" if rival.is_trivial else "rival", {seed: rival.judged})


def pick_setting(ranking: Sequence[Tried], everything: Sequence[Tried], sign: float) -> Setting:
    """The best setting of an attention; of those that are about as good, the one with the most promising learning rate.

    A search may end while an attention has not learned anything at any learning rate yet. The rate at which another one
    learned is then a better guide than the differences between its own scores. Where the best attention learned at several
    rates, that is the lowest of them, at which fewer seeds fail.

    Args:
        ranking: the settings of the attention that were scored, the best first.
        everything: the settings of all attentions that were scored.
        sign: 1 if low scores are good, -1 if high scores are.
    """
    scores = [sign * (each.score or 0.0) for each in everything]
    margin = ALIKE * (median(scores) - min(scores))
    leading = [each.setting for each, score in zip(everything, scores, strict=True) if score <= min(scores) + margin]
    promising = min(setting.learning_rate for setting in leading)
    best = ranking[0].score or 0.0
    alike = [each.setting for each in ranking if abs((each.score or 0.0) - best) <= margin]
    return min(alike, key=lambda setting: abs(math.log(setting.learning_rate / promising)))
