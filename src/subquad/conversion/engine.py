"""Runs the phases of a conversion. The result of a step depends only on the seed and on the number of the step.

A conversion that was killed therefore continues with the same results: a checkpoint stores the phase, the step in it, and
the decisions made so far (how much is measured, which model is the best, which layers stay exact).
"""

import shutil
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from subquad.conversion import matching
from subquad.conversion.budget import Budget
from subquad.conversion.convertible import Convertible
from subquad.conversion.goals import find_goal
from subquad.conversion.journal import Journal
from subquad.conversion.judging import Judge
from subquad.conversion.kept import STAGE_NAMES, Models
from subquad.conversion.layers import choose_heads, choose_layers
from subquad.conversion.options import ConversionOptions
from subquad.conversion.plan import Plan, left_out, make_plan, whole_plan
from subquad.conversion.quality import Quality
from subquad.conversion.recipes import TRAINED, Phase, phases, recipes
from subquad.conversion.schedule import planned, share
from subquad.conversion.sight import sight_of
from subquad.conversion.stand import Stand
from subquad.conversion.steps import Batches, NotFiniteError, Steps
from subquad.conversion.students import Students, by_layer
from subquad.conversion.vectors import Judged
from subquad.errors import SubquadError
from subquad.results import Run
from subquad.training import checkpoints
from subquad.training.resuming import start_over
from subquad.types import AttentionOptions


class Progress(NamedTuple):
    """Progress of a conversion, for display."""

    recipe: str
    does: str
    step: int
    total: int | None  # number of steps in the phase; None for a phase without steps
    loss: float | None
    judged: Sequence[Judged]


def convert(
    original: Convertible,
    attention: AttentionOptions,
    options: ConversionOptions,
    run: Run,
    *,
    seed: int,
    watch: Callable[[Progress], None] = lambda progress: None,
    say: Callable[[str], None] = lambda words: None,
    now: Callable[[], float] = time.monotonic,
    begun: float | None = None,
    restart: bool = False,
) -> None:
    """Starts or resumes a conversion, writes rows and checkpoints, and saves the model in the run's folder.

    `begun` is the start of the command on the clock `now`: loading the original counts towards the minutes. With `restart`,
    the run's rows and checkpoints are deleted first.
    """
    if restart:
        start_over(run)
        shutil.rmtree(run.folder / "model", ignore_errors=True)
    choose_layers(original, options.layers)
    choose_heads(original, options.heads)
    has_costs = original.has_costs and bool(options.cost_lengths)
    budget = Budget(60 * options.minutes, now, now() if begun is None else begun, has_costs=has_costs)
    _Conversion(original, attention, options, run, seed, budget, watch, say).go_on()


def check(original: Convertible, attention: AttentionOptions, options: ConversionOptions) -> None:
    """Raises `SubquadError` if the original cannot be converted with these options, before a run folder is made."""
    find_goal(original, options.goal)
    count = len(original.origins)
    for layer in options.keep_layers:
        if not -count <= layer < count:
            raise SubquadError(f"--keep-layers: there is no layer {layer}: the model has {count}, 0 to {count - 1}")
    kept = {layer % count for layer in options.keep_layers}
    mechanisms = by_layer(attention, count, kept)
    new = sum(mechanism is not None for mechanism in by_layer(attention, count, ()))
    if not any(mechanisms) or options.keep_worst >= new:
        raise SubquadError(f"all {count} layers would stay exact: keep fewer")
    student = original.student(mechanisms, 0)
    batch = original.batch(1, min(original.longest, 8), 0)
    with torch.no_grad():
        original.outputs(student, batch)


class _Conversion:
    """A running conversion."""

    def __init__(
        self,
        original: Convertible,
        attention: AttentionOptions,
        options: ConversionOptions,
        run: Run,
        seed: int,
        budget: Budget,
        watch: Callable[[Progress], None],
        say: Callable[[str], None],
    ) -> None:
        self.original, self.attention, self.options, self.run, self.seed = original, attention, options, run, seed
        self.budget, self.watch, self.say = budget, watch, say
        self.goal, self.students = find_goal(original, options.goal), Students(original, seed)
        exact = sorted({layer % self.students.layers for layer in options.keep_layers})
        self.recipes = recipes(attention, self.goal, controls=options.controls)
        first = original.mechanisms(self.students.fresh(self.recipes[0], exact))
        self.phases = phases(
            self.recipes,
            calibrates=any(map(matching.calibrates, first)),
            matches=any(True for attend in first for _ in attend.parameters()),
            chooses=options.keep_worst > 0,
        )
        self.journal = Journal(run, Stand(exact=exact, spent=budget.spent), budget, seed, len(self.phases), say)
        self.is_timed = any(self._steps(phase) is None for phase in self.phases if phase.does in TRAINED)
        self.models = Models(self.students, self.journal)

    @property
    def stand(self) -> Stand:
        """The state of the conversion that checkpoints store."""
        return self.journal.stand

    def go_on(self) -> None:
        """Runs every phase that is not done yet."""
        checkpoint = self.journal.load(self._put_back)
        if checkpoint is None:
            self.models.model = self.models.best = None
        self._plan()
        while self.stand.phase < len(self.phases):
            phase = self.phases[self.stand.phase]
            self.stand.clock += not self.stand.step  # a resumed phase has been counted already
            self._tell(phase)
            if phase.does in TRAINED:
                self._train(phase, checkpoint)
            else:
                _DEEDS[phase.does](self, phase)
            checkpoint = None
            self.stand.end_phase()
            self.journal.save(self.models.modules())

    def _plan(self) -> None:
        """Decides how much is measured. A resumed run keeps the plan that it began with."""
        if self.stand.plan is None:
            whole = self.stand.plan = whole_plan(self.original, self.options)
            if self.is_timed:
                self._tell(self.phases[0])
                student = self.students.fresh(self.recipes[0], self.stand.exact)
                reach = sight_of(self.attention).reach
                fitted = make_plan(whole, self.original, student, self.budget, self.phases, reach)
                self.stand.plan, self.stand.guess = fitted
                if words := left_out(self.stand.plan, whole):
                    self.journal.leave_out(self.phases[0], f"to fit into {self.options.minutes:g} minutes: {words}")
        quality = Quality(self.original, self.plan, sight_of(self.attention), self.seed)
        self.judge = Judge(self.original, quality, self.budget, self.journal)

    @property
    def batches(self) -> Batches:
        """Batches of training texts."""
        return Batches(self.original, self.plan, self.seed)

    @property
    def plan(self) -> Plan:
        """How much is measured, and the size of a training batch."""
        assert self.stand.plan is not None, "the plan is made before the first phase"
        return self.stand.plan

    # One method for each kind of phase.

    def look(self, phase: Phase) -> None:
        """Measures the original."""
        self.judge.develop(phase, self.original.teacher)
        self.judge.test(phase, self.original.teacher)

    def swap(self, phase: Phase) -> None:
        """Replaces the attention of the original without any training."""
        self.stand.begin_recipe()
        self.models.take(self.students.fresh(phase.recipe, self.stand.exact), phase, self.judge)

    def calibrate(self, phase: Phase) -> None:
        """Calibrates all layers at once."""
        self.models.begin_stage()
        layers = self.students.converted(phase.recipe, self.stand.exact)
        matching.calibrate(self.original, self.models.current, self.batches.looked_at(), layers, self.seed)
        self.models.look(phase, self.judge)
        self.models.settle(phase, self.judge)

    def choose(self, phase: Phase) -> None:
        """Gives exact attention back to the layers with the largest divergence; the others keep their parameters."""
        layers = self.students.converted(phase.recipe, self.stand.exact)
        divergence_by_layer = matching.divergences(
            self.original, self.models.current, self.batches.looked_at(), layers, self.seed
        )
        worst = sorted(divergence_by_layer, key=lambda layer: -divergence_by_layer[layer])[: self.options.keep_worst]
        self.stand.exact = sorted(worst)
        layers_with_divergence = [f"layer {layer} (divergence {divergence_by_layer[layer]:.3f})" for layer in sorted(worst)]
        self.say(f"stays exact: {', '.join(layers_with_divergence)}")
        self.models.take(self.students.give_back(self.models.current, phase.recipe, self.stand.exact), phase, self.judge)

    def save(self, phase: Phase) -> None:
        """Saves the converted model."""
        attention = self.students.attention(phase.recipe, self.stand.exact)
        self.original.save(self.models.current, attention, self.run.folder / "model")

    def cost(self, phase: Phase) -> None:
        """Measures time and memory of the original and the converted model, and records the duration of the conversion."""
        self.judge.cost(phase, self.run.folder / "model", sorted(self.options.cost_lengths), is_timed=self.is_timed)
        spent = self.stand.spent
        for part, seconds in (("all", self.budget.elapsed), ("measuring", spent.measuring), ("training", spent.training)):
            self.journal.keep(phase, {"metric": "duration", "value": seconds, "unit": "s", "what": part})

    def _train(self, phase: Phase, checkpoint: checkpoints.Checkpoint | None) -> None:
        """Trains the model for the steps of a phase and keeps the best model."""
        stand = self.stand
        if not stand.step:
            self.models.begin_stage()
            stand.allowed = self.budget.for_training(phase, self.phases[stand.phase :], self.phases, self.plan.watched)
        steps = self._updates(phase)
        if checkpoint is not None and stand.step:
            checkpoints.restore(checkpoint, self.models.modules(), steps.optimizer)
        judged: Sequence[Judged] = ()
        while stand.step < (total := self._total(phase)):
            begun = self.budget.now()
            try:
                loss = steps.take(stand.taken + stand.step, share(stand.step, total))
                stand.count_step(self.budget.now() - begun)
                self.journal.keep(phase, {"metric": "loss", "value": loss})
                if self.plan.watched * stand.step >= (stand.looks + 1) * total:
                    judged = self.models.look(phase, self.judge)
            except (NotFiniteError, SubquadError):  # mechanisms raise SubquadError for inputs that are not finite
                raise self._lost(phase) from None
            self._tell(phase, total, loss, judged)
            if self.journal.is_due:
                self.journal.save(self.models.modules(), steps.optimizer)
        self._end_training(phase)

    def _updates(self, phase: Phase) -> Steps:
        layers = self.students.converted(phase.recipe, self.stand.exact)
        return Steps(self.batches, self.models.current, phase, self.options, self.goal, layers)

    def _end_training(self, phase: Phase) -> None:
        """Chooses the best model of a stage. A stage without a step leaves the model as it was."""
        stand = self.stand
        if stand.step:
            if stand.looked != stand.step:
                self.models.look(phase, self.judge)
            self.models.settle(phase, self.judge)
            return
        self.models.best = None
        if self._steps(phase) is None:
            seconds = f"a step takes about {stand.guess:.2g} s, and there are {stand.allowed:.2g} s"
            words = f"{phase.recipe.name} has no time for {STAGE_NAMES[phase.does]}: {seconds}"
            self.journal.leave_out(phase, f"{words}; give more --minutes or a shorter --length")

    def _steps(self, phase: Phase) -> int | None:
        """Number of steps set by the options, or None. A control without matching gets the steps of both stages."""
        first, second = self.options.steps, self.options.tune_steps
        if phase.does == "match":
            return first
        if second is None or phase.recipe.is_matched:
            return second
        return second + (first or 0)

    def _total(self, phase: Phase) -> int:
        """Number of steps of a phase, estimated from the steps timed so far unless the options set it."""
        chosen_steps = self._steps(phase)
        return planned(self.stand.timed, self.stand.allowed, self.stand.guess) if chosen_steps is None else chosen_steps

    def _lost(self, phase: Phase) -> SubquadError:
        step = max(1, self.stand.step)
        return SubquadError(
            f"{phase.recipe.name} came to numbers that are not finite by step {step}; the checkpoint before is kept in "
            f"{self.run.folder}: try again with a lower --{phase.does}-rate"
        )

    # Progress and checkpoints.

    def _tell(
        self, phase: Phase, total: int | None = None, loss: float | None = None, judged: Sequence[Judged] = ()
    ) -> None:
        self.watch(Progress(phase.recipe.name, phase.does, self.stand.step, total, loss, judged))

    def _put_back(self, checkpoint: checkpoints.Checkpoint) -> None:
        """Restores a checkpoint. Raises `SubquadError` for one that does not fit these options."""
        where = f"the checkpoint of step {checkpoint.step}: its stand"
        stand = self.journal.stand = Stand.read(checkpoint.about.get("stand"), where)
        self.models.model = self.models.best = None
        if stand.phase > len(self.phases) or any(layer >= self.students.layers for layer in stand.exact):
            raise SubquadError(f"{where} belongs to a conversion with other options")
        if stand.phase < len(self.phases) and (phase := self.phases[stand.phase]).does != "swap":
            last = phase if stand.step else self.phases[stand.phase - 1]  # costs are measured after the last recipe
            model = self.models.model = self.students.fresh(last.recipe, stand.exact)
            self.models.best = self.students.copy(model) if stand.step else None
            optimizer = self._updates(phase).optimizer if stand.step else None
            checkpoints.restore(checkpoint, self.models.modules(), optimizer)


_DEEDS: dict[str, Callable[[Any, Phase], None]] = {
    "look": _Conversion.look,
    "swap": _Conversion.swap,
    "calibrate": _Conversion.calibrate,
    "choose": _Conversion.choose,
    "save": _Conversion.save,
    "cost": _Conversion.cost,
}
