"""A race of conversions of a trained model: which attention, and in how many layers, keeps its quality.

Every candidate is a run of `subquad convert` in a folder of its own. In each round, all candidates have the same time. An
attention that is level with the original on the development texts is not tried with fewer layers any more.
"""

import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import mean
from typing import Any

from torch import nn

from subquad.attention import Softmax
from subquad.choose import costs
from subquad.choose.candidates import Candidate, candidate_costs, rounds_of
from subquad.choose.decision import Wishes, default_margin, level_of
from subquad.choose.ledger import RIVALS, TRIALS, Ledger
from subquad.choose.race import BEST, COST, Watch, copy_best
from subquad.choose.scoring import Entrant, score_rows
from subquad.choose.seeing import seen_rows, seen_sentences
from subquad.choose.stages import COST_SHARE, MOST_COST_SECONDS, stop_time
from subquad.choose.standings import LONGEST, SOFTMAX, read_standings
from subquad.choose.textscores import SPLITS, UNIGRAMS, Texts, TextScores, number_of_texts, perplexity_rows, ranked_by
from subquad.choose.timing import time_left
from subquad.choose.trials import JUDGED, read_judged, write_judged
from subquad.conversion.convertible import Convertible, some_of
from subquad.conversion.engine import Progress, convert
from subquad.conversion.heads import head_rows
from subquad.conversion.options import ConversionOptions
from subquad.models import ModelOptions
from subquad.places.base import explained
from subquad.results import Row, Run, describe_run, folder_name, holds_run
from subquad.tasks.comparing import Rival
from subquad.types import AttentionOptions

RANK_TEXTS, RANK_LENGTH = 4, 256
"""Number and length of the texts by which the ranks of layers are measured."""
LEAST_SECONDS = 5.0
"""Shortest conversion that is tried."""
DEVELOPMENT = "development.jsonl"
"""Name of the file with scores of single development texts."""

Loader = Callable[[Path], nn.Module]
"""Loads a converted model from the folder that `Convertible.save` wrote."""
Describe = Callable[[Candidate, ConversionOptions], tuple[dict[str, Any], list[str]]]
"""Returns the options of a candidate's run.json, and the words after `subquad` that convert it alone."""


@dataclass(frozen=True)
class ModelTerms:
    """How long a race of conversions takes, its seed, and what is asked of the result."""

    budget: float
    """Seconds for everything."""
    seed: int
    wishes: Wishes


class ModelRace:
    """A race of conversions in the folder of a run."""

    def __init__(
        self,
        run: Run,
        original: Convertible,
        attentions: Mapping[str, AttentionOptions],
        terms: ModelTerms,
        *,
        texts: Texts,
        load: Loader,
        describe: Describe,
        watch: Watch,
        started: float | None = None,
    ) -> None:
        """`started` is the time from which on the budget counts, by the monotonic clock; now if it is not given."""
        self.run, self.original, self.attentions, self.terms = run, original, dict(attentions), terms
        self.texts, self.load, self.describe, self.watch = texts, load, describe, watch
        self.ledger = Ledger(run, [SOFTMAX], ranked_by(original))
        self.start = (time.monotonic() if started is None else started) - self.ledger.spent
        self.stop = stop_time(self.start, terms.budget)

    def go(self) -> None:
        """Does what is missing. The rows are conclusive at every moment, also after an interrupt."""
        try:
            self._see()
            self._rank()
            self._look()
            self._measure()
            self._convert_all()
        finally:
            self.conclude()

    @property
    def ranks(self) -> list[float]:
        """Effective rank of the attention matrices of each layer."""
        return [row["value"] for row in self.ledger.rows if row["metric"] == "rank"]

    @property
    def rounds(self) -> list[list[Candidate]]:
        """Candidates by round."""
        return rounds_of(self.attentions, self.ranks)

    @property
    def candidates(self) -> dict[str, Candidate]:
        """All candidates by name; none before the ranks are known."""
        return {each.name: each for some in self.rounds for each in some} if self.ranks else {}

    def conclude(self) -> None:
        """Writes the qualities and advantages that follow from the conversions so far."""
        self.ledger.names = [SOFTMAX, *self.candidates]
        rows = score_rows(list(self.ledger.entrants(self.terms.seed)))
        self.ledger.replace_derived([*rows, *perplexity_rows(rows)])

    def _see(self) -> None:
        if not self.ledger.has("seen"):
            self.ledger.keep(seen_rows(self.texts))
        for sentence in seen_sentences(self.ledger.rows):
            self.watch.tell(sentence)

    def _rank(self) -> None:
        """Measures the effective rank of each layer's attention matrices, the mean over heads and texts."""
        if self.ledger.has("rank"):
            return
        self.watch.show("measuring the ranks of the layers")
        length = min(RANK_LENGTH, self.original.longest)
        held_out = self.original.held_out("development", RANK_TEXTS, length, self.terms.seed)
        rows = head_rows(self.original, self.original.teacher, some_of(held_out, slice(RANK_TEXTS)))
        values: list[list[float]] = [[] for _ in self.original.origins]
        for row in rows:
            if row["metric"] == "effective rank":
                values[row["layer"]].append(row["value"])
        ranks = [mean(each) if each else 0.0 for each in values]  # a layer with a sliding window of its own has no matrix
        self.ledger.keep(
            [{"metric": "rank", "value": rank, "unit": "1", "layer": layer} for layer, rank in enumerate(ranks)]
        )
        self.ledger.keep(
            [
                {"metric": "candidate", "value": len(each.converted), "unit": "layers", "mechanism": each.name}
                | {"said": self._said(each), "gives_up": each.gives_up}
                for each in self.candidates.values()
            ]
        )
        said = ", ".join(f"{rank:.0f}" for rank in ranks)
        self.watch.tell(f"Effective ranks of attention on {length} tokens, by layer: {said}. Layers of low rank go first.")

    def _look(self) -> None:
        """Scores the original, and the frequencies of tokens as the trivial answer of a language model."""
        if SOFTMAX in self.ledger.done:
            return
        self.watch.show("measuring the original")
        begun = time.monotonic()
        if self.original.kind != "encoder":
            trivial = {split: {UNIGRAMS: Rival(self.scores.frequencies(split), is_trivial=True)} for split in SPLITS}
            write_judged(self.run.folder / RIVALS, trivial["test"])
            write_judged(self.run.folder / DEVELOPMENT, trivial["development"])
        self._score(SOFTMAX, self.original.teacher, {"seconds": 0.0, "steps": 0, "said": "the original"}, begun)

    def _measure(self) -> None:
        """Measures what attentions cost at the lengths of the texts, once, and what candidates cost by that."""
        if self.ledger.has("cost"):
            return
        self.watch.show("measuring costs at the lengths of the texts")
        mechanism: Any = self.original.mechanisms(self.original.teacher)[0]
        layers = len(self.original.origins)
        model = ModelOptions(layers=layers, heads=mechanism.heads, head_dim=mechanism.head_dim)
        attentions = {name: each.for_length(self.original.longest) for name, each in self.attentions.items()}
        rows = costs.measure_costs(
            self.run.folder / COST,
            {SOFTMAX: Softmax(), **attentions},
            model,
            self.ledger.quantiles,
            batch=1,
            is_causal=self.original.kind == "causal",
            budget=min(COST_SHARE * self.terms.budget, MOST_COST_SECONDS),
        )
        whole = [row for row in rows if row["mechanism"] == SOFTMAX]
        composed = [*whole, *candidate_costs(rows, list(self.candidates.values()))]
        self.ledger.keep([row | {"elapsed": self._elapsed()} for row in composed])

    def _convert_all(self) -> None:
        """Converts round by round, the cheapest candidates first, as long as there is time."""
        rounds = self.rounds
        for at, candidates in enumerate(rounds):
            running = [each for each in candidates if not self._is_settled(each.mechanism, rounds[:at])]
            waiting = [each for each in running if folder_name(each.name) not in self.ledger.done]
            left = self.stop - time.monotonic()
            seconds = left / max(1, len(waiting) + (len(rounds) - at - 1) * len(running))
            for candidate in waiting:
                if max(seconds, LEAST_SECONDS) > self.stop - time.monotonic() + 0.2 * seconds:
                    return
                self.watch.show(f"converting: {candidate.name}; {self._time_left()}")
                self._convert(candidate, seconds)

    def _is_settled(self, mechanism: str, before: list[list[Candidate]]) -> bool:
        """Whether an attention is level with the original in one of the rounds before, on the development texts."""
        names = [each.name for some in before for each in some if each.mechanism == mechanism]
        return any(self.level(name) in ("level", "better") for name in names)

    def level(self, name: str) -> str:
        """Where a candidate stands beside the original on the development texts; empty if it was not converted."""
        known = {each: read_judged(self.folder_of(each) / DEVELOPMENT).get("") for each in (SOFTMAX, name)}
        judged = {each: rival.judged for each, rival in known.items() if rival is not None}
        if name not in judged:
            return ""
        entrants = [Entrant(each, "attention", {self.terms.seed: scores}) for each, scores in judged.items()]
        trivial = read_judged(self.run.folder / DEVELOPMENT)
        entrants += [Entrant(each, "trivial", {self.terms.seed: rival.judged}) for each, rival in trivial.items()]
        standings, loss = read_standings(score_rows(entrants)), self.terms.wishes.quality_loss
        return level_of(standings, name, SOFTMAX, default_margin(standings) if loss is None else loss)

    def _convert(self, candidate: Candidate, seconds: float) -> None:
        """Converts a candidate in a run of its own, and scores it; a failure becomes a row."""
        folder, begun = self.folder_of(candidate.name), time.monotonic()
        try:
            self._run_conversion(candidate, folder, seconds)
            run = Run.open(folder, "convert")
            steps = max((row["step"] for row in run.rows() if "step" in row), default=0)
            known = {"steps": steps, "seconds": time.monotonic() - begun, "said": self._said(candidate)}
            self.ledger.keep(self._curve(candidate, run.rows()))
            self._score(candidate.name, self.load(folder / "model"), known, begun)
            self.watch.tell(f"{candidate.name}: {self.level(candidate.name) or 'not scored'} on the development texts")
        except Exception as error:
            failure, message = explained(error)
            about = {
                "trial": folder_name(candidate.name),
                "mechanism": candidate.name,
                "stage": "final",
                "seed": self.terms.seed,
            }
            row = {"metric": "score", "value": None, "failure": failure, "message": message, **about}
            self.ledger.keep([row | {"elapsed": self._elapsed(), "said": self._said(candidate)}])
            self.watch.tell(f"{candidate.name}: {failure} ({message})")

    def _run_conversion(self, candidate: Candidate, folder: Path, seconds: float) -> None:
        options = ConversionOptions(minutes=seconds / 60, keep_layers=candidate.exact, controls=False, cost_lengths=())
        if holds_run(folder):
            run = Run.open(folder, "convert")
            options = ConversionOptions(**{**run.about["options"]["conversion"], "pairs": None})
        else:
            described, words = self.describe(candidate, options)
            run = Run.create(folder, "convert", describe_run(described, words, seed=self.terms.seed, page=False))
        with run.writing():
            attention = candidate.attention.for_length(self.original.longest)
            convert(self.original, attention, options, run, seed=self.terms.seed, watch=self._progress(candidate))

    def _progress(self, candidate: Candidate) -> Callable[[Progress], None]:
        def watch(done: Progress) -> None:
            total = "" if done.total is None else f" {done.step:,} of {done.total:,}"
            self.watch.follow(f"{candidate.name}: {done.does}{total}; {self._time_left()}")

        return watch

    def _curve(self, candidate: Candidate, rows: list[Row]) -> list[Row]:
        """The learning curve of a conversion: the deciding metric on development texts by step."""
        metric = "cosine" if self.original.kind == "encoder" else "perplexity"
        about = {
            "trial": folder_name(candidate.name),
            "mechanism": candidate.name,
            "stage": "final",
            "seed": self.terms.seed,
        }
        return [
            {"metric": "curve", "value": row["value"], "step": row["step"], "unit": "1", "of": metric, **about}
            for row in rows
            if row["metric"] == metric and row.get("split") == "development" and row["step"]
        ]

    def _score(self, name: str, model: nn.Module, known: Row, begun: float) -> None:
        """Scores a model on development and test texts, one by one, and writes a row about it."""
        folder = self.folder_of(name)
        folder.mkdir(parents=True, exist_ok=True)
        model.eval()
        judged = {split: self.scores.of(model, split) for split in SPLITS}
        write_judged(folder / DEVELOPMENT, {"": Rival(judged["development"])})
        write_judged(folder / JUDGED, {"": Rival(judged["test"])})
        totals, counts = judged["development"].parts.T
        about: Row = {
            "trial": folder_name(name),
            "mechanism": name,
            "stage": "final",
            "seed": self.terms.seed,
            "unit": "nats",
        }
        about |= {"of": self.ledger.ranked.metric, "good": self.ledger.ranked.good, "elapsed": self._elapsed()}
        value = float(totals.sum() / counts.sum())
        self.ledger.keep([{"metric": "score", "value": value, **about, **known, "wall_seconds": time.monotonic() - begun}])

    @cached_property
    def scores(self) -> TextScores:
        """Scores of models on held-out texts, as many as there is time for."""
        row = next((row for row in self.ledger.rows if row["metric"] == "texts"), None)
        length = int(min(self.original.longest, max(8, self.ledger.quantiles[LONGEST])))
        if row is not None:
            return TextScores(self.original, length, int(row["value"]), self.terms.seed)
        seconds = self.terms.budget / (1 + sum(map(len, self.rounds)))
        number = number_of_texts(self.original, length, seconds, self.terms.seed)
        self.ledger.keep([{"metric": "texts", "value": number, "unit": "texts", "length": length}])
        return TextScores(self.original, length, number, self.terms.seed)

    def _about(self, name: str) -> Row:
        """Fields of rows about the conversion of a candidate, or about the original."""
        return {"trial": folder_name(name), "mechanism": name, "stage": "final", "seed": self.terms.seed}

    def _said(self, candidate: Candidate) -> str:
        return f"layers {', '.join(map(str, candidate.converted))}"

    def folder_of(self, name: str) -> Path:
        """The folder of a candidate's run, or of the original's scores."""
        return self.run.folder / TRIALS / folder_name(name)

    def keep_best(self, name: str) -> Path | None:
        """Copies the model of a candidate to the folder `BEST` of the race; None for the original."""
        source = self.folder_of(name) / "model"
        if name in self.candidates and source.exists():
            return copy_best(source, self.run.folder)
        shutil.rmtree(self.run.folder / BEST, ignore_errors=True)
        return None

    def _elapsed(self) -> float:
        return time.monotonic() - self.start

    def _time_left(self) -> str:
        return time_left(self.start + self.terms.budget)
