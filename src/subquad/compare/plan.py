"""The order in which cells are measured within a budget of time.

The most informative cells come first: every other length of every view, then the other cheap ones, then cells near a
crossover again, then expensive ones, then all again. Each visit uses new processes, so that the scatter between visits is
that between runs.
"""

import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from statistics import median
from typing import NamedTuple

from subquad.attention import Linformer, Softmax
from subquad.compare.cells import Cell, Setting, block_size
from subquad.compare.linformer_table import SLOTS, name_of
from subquad.compare.views import BASELINE, CAUSAL_WORK, FORMS, MATERIALISED, Comparison, Form, View, What, view_of
from subquad.measure.workers import TIMEOUT, Limits, Outcome, context, fewest_turns, visit
from subquad.results import Row, Run
from subquad.statistics import median_interval
from subquad.types import AttentionOptions

VISITS = 3  # number of visits to each cell
CHEAP_SECONDS = 3.0  # duration of a visit above which a group waits until cheaper ones are done
SIZES = {"parameters": "numbers", "parameter_bytes": "bytes"}
"""Metrics of the size of a layer, with their units."""
GRACE_SECONDS = 10.0  # time by which a visit that takes longer than expected may exceed the budget


class Group(NamedTuple):
    """Cells that are compared with each other: their processes take turns."""

    setting: Setting
    form: Form
    what: What
    length: int

    def view(self) -> View:
        """The view that the group's rows belong to."""
        return view_of({"form": self.form, "what": self.what} | self.setting.__dict__)


@dataclass(frozen=True)
class Plan:
    """The grid of all cells to measure."""

    variants: Mapping[str, AttentionOptions]
    """Mechanisms by name, including the baseline."""
    lengths: Sequence[int]
    forms: Sequence[Form] = FORMS
    whats: Sequence[What] = ("forward", "training", "layer", "step")
    settings: Sequence[Setting] = (Setting(),)
    shortest: Mapping[str, int] = field(default_factory=dict)
    """Smallest length by mechanism, for mechanisms that are not measured from the first length on."""
    first: Sequence[int] = ()
    """Lengths that are measured before all others, in this order."""
    seed: int = 0

    @cached_property
    def groups(self) -> list[Group]:
        """All groups: the first lengths, then every other length of every view, then the lengths in between."""
        lengths = sorted(set(self.lengths) - set(self.first))
        return [
            Group(setting, form, what, length)
            for half in (self.first, lengths[::2], lengths[1::2])
            for setting, form, what in product(self.settings, self.forms, self.whats)
            for length in half
            if form == "causal" or what not in CAUSAL_WORK
        ]

    def cells(self, group: Group) -> list[Cell]:
        """The cells of a group: one for each mechanism that has the group's form."""
        return [
            Cell(name, self.variants[name], group.form, group.what, group.length, group.setting, self.seed)
            for name in (self.variants if group.form == "bidirectional" else self._causal)
            if group.length >= self.shortest.get(name, 1) and (group.what != "step" or self.variants[name].traits.steps)
        ]

    @cached_property
    def _causal(self) -> list[str]:
        return [name for name, options in self.variants.items() if options.traits.causal]

    def sizes(self, known: Collection[tuple[str, str, float]] = ()) -> Iterator[Row]:
        """Rows with the parameters and bytes of one transformer layer, for each mechanism and length.

        Rows in `known`, by metric, mechanism and length, are left out.
        """
        for setting, (name, options), length in product(self.settings[:1], self.variants.items(), self.lengths):
            missing = [metric for metric in SIZES if (metric, name, length) not in known]
            if not missing:
                continue
            numbers, held = block_size(Cell(name, options, "bidirectional", "layer", length, setting))
            about = {"mechanism": name, "length": length, "heads": setting.heads, "head_dim": setting.head_dim}
            values = {"parameters": numbers, "parameter_bytes": held}
            yield from ({"metric": metric, "value": values[metric], "unit": SIZES[metric], **about} for metric in missing)


def linformer_plan(
    lengths: Sequence[int], options: Linformer | None = None, settings: Sequence[Setting] = (Setting(),)
) -> Plan:
    """The grid of Linformer's table: whole layers by length and slots, beside both forms of softmax."""
    variants: dict[str, AttentionOptions] = {BASELINE: Softmax(), MATERIALISED: Softmax(materialised=True)}
    return Plan(
        variants=variants | {name_of(k): replace(options or Linformer(), k=k) for k in SLOTS},
        lengths=lengths,
        forms=("bidirectional",),
        whats=("layer",),
        settings=settings,
        shortest={name_of(k): 4 * k if k == SLOTS[0] else 2 * k for k in SLOTS},
    )


class Progress(NamedTuple):
    """Callbacks: `started` is called before a mechanism is measured, `finished` after a group was measured."""

    started: Callable[[Group, str], None] = lambda group, mechanism: None
    finished: Callable[[Group, Sequence[Row]], None] = lambda group, rows: None


PRELOAD = ("torch", "torch.fx.experimental.symbolic_shapes", "subquad.compare.cells")
"""Modules that children need, imported once in the server that they are forked from. The second is otherwise imported by the
first backward pass, which takes longer than most cells."""


def measure(plan: Plan, run: Run, *, budget: float, limits: Limits, progress: Progress = Progress()) -> list[Group]:  # noqa: B008
    """Measures the cells that the run lacks, and returns the groups for which the budget had no time."""
    start = time.perf_counter()
    context(PRELOAD)
    sizes = [row for row in run.rows() if row["metric"] in SIZES]
    run.append(plan.sizes({(row["metric"], row["mechanism"], row["length"]) for row in sizes}))
    order = {group: place for place, group in enumerate(plan.groups)}
    given_up: set[Group] = set()
    while True:
        left = budget - (time.perf_counter() - start)
        state = _State(plan, Comparison(run.rows()))
        waiting = [group for group in order if group not in given_up and state.unfinished(group)]
        fitting = [group for group in waiting if state.expected_seconds(group) <= left]
        if not fitting:
            return [group for group in order if state.visited(group) == 0 and state.live(group)]
        group = min(fitting, key=lambda group: (*state.stage(group), order[group]))
        patience = min(limits.run_seconds, left + GRACE_SECONDS)
        rows = _visit(state, group, replace(limits, run_seconds=patience), progress, cut=patience < limits.run_seconds)
        _replace(run, rows)
        progress.finished(group, rows)
        if not rows:
            given_up.add(group)


def _replace(run: Run, rows: Sequence[Row]) -> None:
    """Adds the rows of a visit, replacing rows of the same visit that was interrupted before."""
    again = {_visited_cell(row) for row in rows}
    run.keep_rows(lambda row: "visit" not in row or _visited_cell(row) not in again)
    run.append(rows)


def _visited_cell(row: Row) -> tuple[View, str, float, int]:
    return view_of(row), row["mechanism"], row["length"], row["visit"]


class _State:
    """The measurements so far, from which the next group is chosen."""

    def __init__(self, plan: Plan, known: Comparison) -> None:
        self.plan, self.known = plan, known

    def live(self, group: Group) -> list[Cell]:
        """The cells that are not known to fail, here or at a shorter length."""
        failed = {name: failure for name in self.plan.variants if (failure := self.known.failures.get((group.view(), name)))}
        return [
            cell
            for cell in self.plan.cells(group)
            if cell.mechanism not in failed or group.length < failed[cell.mechanism].length
        ]

    def visited(self, group: Group) -> int:
        """How often all cells of a group were measured."""
        return min((self.known.visits(group.view(), cell.mechanism, group.length) for cell in self.live(group)), default=0)

    def unfinished(self, group: Group) -> bool:
        """Whether a group has cells that need another visit."""
        return bool(self.live(group)) and self.visited(group) < VISITS

    def stage(self, group: Group) -> tuple[int, float]:
        """Priority of a group's next visit: lower values are more informative for their time."""
        visits, seconds = self.visited(group), self.expected_seconds(group)
        cheap = seconds <= CHEAP_SECONDS
        if visits == 0:
            return (0, 0.0) if cheap else (2, seconds)
        if cheap and self._near_a_crossover(group):
            return (1, 0.0) if visits == 1 or self._disagree(group) else (3, 0.0)
        return 3 + visits, 0.0

    def expected_seconds(self, group: Group) -> float:
        """Expected duration of one visit, from the durations at shorter lengths."""
        return sum(_visit_seconds(cell.layers * self._run_seconds(cell, group)) for cell in self.live(group))

    def _run_seconds(self, cell: Cell, group: Group) -> float:
        """Expected seconds of a cell: of one layer, if a run of it computes several."""
        known = {length: median(visits) for length, visits in self.known.seconds(group.view(), cell.mechanism).items()}
        if group.length in known:
            return known[group.length]
        shorter = [length for length in known if length < group.length][-2:]
        if not shorter:
            return min(known.values(), default=0.02 * (group.length / 1024) ** 2)
        exponent = 1.5  # assumed until two lengths are measured
        if len(shorter) == 2:
            exponent = math.log(known[shorter[1]] / known[shorter[0]]) / math.log(shorter[1] / shorter[0])
        return known[shorter[-1]] * (group.length / shorter[-1]) ** min(max(exponent, 1.0), 2.2)

    def _disagree(self, group: Group) -> bool:
        """Whether visits to a cell differ so much that one of them must have been disturbed."""
        return any(
            max(ratios) > 1.3 * min(ratios)
            for name in self.known.measured(group.view())
            if (ratios := self.known.paired(group.view(), name).get(group.length))
        )

    def _near_a_crossover(self, group: Group) -> bool:
        """Whether a mechanism's time crosses the baseline's at this length or next to it."""
        for name in self.known.measured(group.view()):
            ratios = {length: visits[0] for length, visits in self.known.paired(group.view(), name).items()}
            if name == BASELINE or group.length not in ratios:
                continue
            lengths = list(ratios)
            at = lengths.index(group.length)
            around = [ratios[length] for length in lengths[max(0, at - 1) : at + 2]]
            if min(around) < 1 <= max(around):
                return True
        return False


def _visit_seconds(run_seconds: float) -> float:
    """Expected duration of one visit to a cell: starting its process, and its runs."""
    return 0.15 + fewest_turns(run_seconds) * run_seconds


def _visit(state: _State, group: Group, limits: Limits, progress: Progress, *, cut: bool) -> list[Row]:
    """Rows of one visit to a group. With `cut`, the budget shortened the time limit, and timeouts are not recorded."""
    cells = {cell.mechanism: cell for cell in state.live(group)}
    candidates = {name: cell.candidate() for name, cell in cells.items()}
    limits = replace(limits, threads=group.setting.threads, device=group.setting.device)
    outcomes = visit(candidates, limits, lambda name: progress.started(group, name))
    number = state.visited(group)
    return [
        row | {"visit": number}
        for name, outcome in outcomes.items()
        if not (cut and outcome.failure == TIMEOUT)
        for row in _rows(cells[name], outcome)
    ]


def _rows(cell: Cell, outcome: Outcome) -> Iterator[Row]:
    about = cell.labels()
    if outcome.failure:
        yield {
            "metric": "seconds",
            "value": None,
            "unit": "s",
            "failure": outcome.failure,
            "message": outcome.message,
        } | about
        return
    if outcome.peak_bytes is not None:
        yield {"metric": "peak_memory", "value": outcome.peak_bytes, "unit": "bytes"} | about
    interval = median_interval([seconds / cell.layers for seconds in outcome.seconds])
    seconds = {**interval._asdict(), "unit": "s", "rounds": len(outcome.seconds)}
    yield {"metric": "seconds"} | seconds | about  # written last: it shows that the visit is complete
