"""The conversion from its first phase to its last. What a step does depends on the seed and its number only.

So it can be killed at any time and goes on as if it had not been: a checkpoint says which phase it is of, how far that has
come, and what was decided on the way (how many steps fit into the time, which layers stay exact).
"""

import math
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import torch
from torch import nn

from subquad.checking import NonNegative, Whole, read
from subquad.conversion import matching
from subquad.conversion.convertible import Convertible
from subquad.conversion.goals import GOALS, find_goal
from subquad.conversion.options import ConversionOptions
from subquad.conversion.quality import Judged, Quality
from subquad.conversion.recipes import CONVERSION, EXACT, Phase, Recipe, phases, recipes
from subquad.conversion.schedule import CYCLE, TIMED, length_of, planned, share
from subquad.errors import SubquadError
from subquad.results import Row, Run
from subquad.tasks.mlm.masking import MaskedBatch
from subquad.training import checkpoints
from subquad.training.loop import BATCH, generator
from subquad.training.resuming import FOLDER, find_start, go_back, start_over
from subquad.types import AttentionOptions

MATCHED = 0.3
"""The share of a recipe's time that its first stage has."""
WATCHED = 6
"""How often quality is looked at in a stage."""
CHECKPOINT_SECONDS = 60.0
FIRST = 2
"""Clock of the first checkpoint: the original has been measured, and the first recipe has its model."""
CALIBRATED = 12  # batches that calibration, and the choice of layers, look at
PLACES, LOOKED = 20, 21  # streams of random numbers


class Progress(NamedTuple):
    """Where a conversion is."""

    recipe: str
    does: str
    step: int
    total: int | None  # not known at first, where steps are to fit into a time
    loss: float
    judged: Sequence[Judged]


@dataclass
class Stand:
    """How far a conversion has come."""

    phase: Whole = 0
    step: Whole = 0  # of the phase
    taken: Whole = 0  # steps of the recipe, in its phases before
    clock: Whole = 0  # ticks with every step and phase, so that rows and checkpoints can be put in order
    elapsed: NonNegative = 0.0  # seconds of the recipe's training
    timed: list[NonNegative] = field(default_factory=list)  # seconds of the phase's steps, if they are to fit into a time
    steps: dict[str, Whole] = field(default_factory=dict)  # that phases were found to have
    kept: list[Whole] = field(default_factory=list)  # layers that stay exact


def convert(
    original: Convertible,
    attention: AttentionOptions,
    options: ConversionOptions,
    run: Run,
    *,
    seed: int,
    watch: Callable[[Progress], None] = lambda progress: None,
    say: Callable[[str], None] = lambda words: None,
    restart: bool = False,
) -> None:
    """Converts from where the run stands, keeps rows and checkpoints, and leaves the model in the run's folder.

    With `restart`, what the run has so far is deleted first.
    """
    if restart:
        start_over(run)
        shutil.rmtree(run.folder / "model", ignore_errors=True)
    conversion = _Conversion(original, attention, options, run, seed, watch, say)
    conversion.go_on()


def check(original: Convertible, attention: AttentionOptions, options: ConversionOptions) -> None:
    """Refuses what cannot be converted, before there is a run."""
    find_goal(original, options.goal)
    count = len(original.mechanisms(original.teacher))
    for layer in options.keep_layers:
        if not -count <= layer < count:
            raise SubquadError(f"--keep-layers: there is no layer {layer}: the model has {count}, 0 to {count - 1}")
    kept = {layer % count for layer in options.keep_layers}
    if max(len(kept), options.keep_worst) >= count:
        raise SubquadError(f"all {count} layers would stay exact: keep fewer")
    student = original.student([None if layer in kept else attention for layer in range(count)], 0)
    batch = original.batch(1, min(original.longest, 8), 0)
    with torch.no_grad():
        original.outputs(student, batch)


class _Conversion:
    """One run."""

    def __init__(
        self,
        original: Convertible,
        attention: AttentionOptions,
        options: ConversionOptions,
        run: Run,
        seed: int,
        watch: Callable[[Progress], None],
        say: Callable[[str], None],
    ) -> None:
        self.original, self.options, self.run, self.seed = original, options, run, seed
        self.watch, self.say = watch, say
        self.goal = find_goal(original, options.goal)
        self.quality = Quality(original, options.texts, seed)
        self.layers = len(original.mechanisms(original.teacher))
        self.stand = Stand(kept=sorted({layer % self.layers for layer in options.keep_layers}))
        self.recipes = recipes(attention, self.goal, controls=options.controls)
        first = original.mechanisms(self._fresh(self.recipes[0]))
        self.phases = phases(
            self.recipes,
            calibrates=any(map(matching.calibrates, first)),
            matches=any(True for attend in first for _ in attend.parameters()),
            chooses=options.keep_worst > 0,
            costs=bool(options.cost_lengths),
        )
        self.model: nn.Module | None = None
        self.waiting: list[Row] = []
        self.saved = time.monotonic()

    def go_on(self) -> None:
        """Every phase that is left."""
        checkpoint = self._resume()
        while self.stand.phase < len(self.phases):
            phase = self.phases[self.stand.phase]
            self.stand.clock += not self.stand.step  # a phase that is gone on with has ticked already
            if phase.does == "start":
                self.model = self._fresh(phase.recipe)
                self.stand.taken, self.stand.elapsed = 0, 0.0
            elif phase.does in ("match", "tune"):
                self._train(phase, checkpoint)
            else:
                _DEEDS[phase.does](self, phase)
            checkpoint = None
            self.stand.taken += self.stand.step
            self.stand.phase, self.stand.step, self.stand.timed = self.stand.phase + 1, 0, []
            self._checkpoint(None)

    def measure(self, phase: Phase) -> None:
        """On all held-out texts, and head by head."""
        model = self.original.teacher if phase.stage == "original" else self._model
        self._tell(phase, 0, None, math.nan, ())
        for judged in self.quality.judge(model, whole=True):
            self._keep(phase, {**judged.row(), "split": "test"})
        if phase.recipe.name == CONVERSION:
            for row in self.quality.heads(model):
                self._keep(phase, row)

    def calibrate(self, phase: Phase) -> None:
        """All layers at once."""
        self._tell(phase, 0, None, math.nan, ())
        matching.calibrate(self.original, self._model, self._looked(), self._converted(phase.recipe), self.seed)

    def choose(self, phase: Phase) -> None:
        """The layers that are followed worst get their exact attention back; the others keep what they learned."""
        self._tell(phase, 0, None, math.nan, ())
        found = matching.divergences(self.original, self._model, self._looked(), self._converted(phase.recipe), self.seed)
        worst = sorted(found, key=lambda layer: -found[layer])[: self.options.keep_worst]
        before = self._model
        self.stand.kept = sorted(worst)
        self.model = self._fresh(phase.recipe)
        learned = self.original.mechanisms(before)
        for layer, attend in enumerate(self.original.mechanisms(self.model)):
            if layer not in self.stand.kept:
                attend.load_state_dict(learned[layer].state_dict())
        self.say(f"stays exact: {', '.join(f'layer {layer} (divergence {found[layer]:.3f})' for layer in self.stand.kept)}")

    def save(self, phase: Phase) -> None:
        """For others to load."""
        self.original.save(self._model, self._attention(phase.recipe), self.run.folder / "model")

    def cost(self, phase: Phase) -> None:
        """Time and memory of the original and of what became of it."""
        for row in self.original.costs(self.run.folder / "model", self.options.cost_lengths):
            self._tell(phase, 0, None, math.nan, ())
            self._keep(phase, row)

    def _train(self, phase: Phase, checkpoint: checkpoints.Checkpoint | None) -> None:
        """A stage of many steps."""
        stand, key = self.stand, f"{phase.recipe.name}, {phase.stage}"
        optimizer = self._optimizer(phase)
        if checkpoint is not None and stand.step:
            checkpoints.restore(checkpoint, self._model, optimizer)
        rates = [group["lr"] for group in optimizer.param_groups]
        given = self._steps(phase)
        total = stand.steps.get(key, given)
        judged: Sequence[Judged] = ()
        while total is None or stand.step < total:
            begun = time.perf_counter()
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate * share(stand.step, total)
            try:
                loss = self._step(phase, optimizer)
            except (_NotFiniteError, SubquadError):  # also of a mechanism, which was given what is no number
                raise self._lost(phase) from None
            seconds = time.perf_counter() - begun
            stand.step, stand.clock, stand.elapsed = stand.step + 1, stand.clock + 1, stand.elapsed + seconds
            self._keep(phase, {"metric": "loss", "value": loss})
            if given is None:
                stand.timed.append(seconds)
                if stand.step >= TIMED and (stand.step - TIMED) % len(CYCLE) == 0:
                    total = stand.steps[key] = planned(stand.timed, self._seconds(phase) + sum(stand.timed))
            if total is not None and (stand.step % max(1, total // WATCHED) == 0 or stand.step == total):
                judged = self._glance(phase)
            self._tell(phase, stand.step, total, loss, judged)
            if time.monotonic() - self.saved > CHECKPOINT_SECONDS:
                self._checkpoint(optimizer)

    def _step(self, phase: Phase, optimizer: torch.optim.Optimizer) -> float:
        """One update."""
        optimizer.zero_grad(set_to_none=True)
        loss = self._backward(phase)
        if not math.isfinite(loss):
            raise _NotFiniteError
        if phase.does == "tune":
            every = [parameter for group in optimizer.param_groups for parameter in group["params"]]
            nn.utils.clip_grad_norm_(every, self.options.clip)
        optimizer.step()
        return loss

    def _lost(self, phase: Phase) -> SubquadError:
        return SubquadError(
            f"{phase.recipe.name} came to numbers that are not finite by step {self.stand.step + 1}; what it was before is "
            f"kept in {self.run.folder}: try again with a lower --{phase.does}-rate"
        )

    def _backward(self, phase: Phase) -> float:
        """Adds the gradients of one batch, and gives its loss."""
        number = self.stand.taken + self.stand.step
        batch = self._batch(number)
        with torch.autocast(batch.tokens.device.type, torch.bfloat16, enabled=self.options.precision == "bfloat16"):
            if phase.does == "match":
                drawing = generator(self.seed, PLACES, number)
                return matching.match_step(self.original, self._model, batch, self._converted(phase.recipe), drawing)
            goal = "task" if phase.recipe.name == EXACT else self.goal
            loss = GOALS[goal](self.original, self._model, batch)
        torch.autograd.backward(loss)
        return float(loss.detach())

    def _optimizer(self, phase: Phase) -> torch.optim.Optimizer:
        """Mechanisms have a rate of their own. The first stage trains nothing else, the second no embeddings."""
        mechanisms = self.original.mechanisms(self._model)
        maps = [parameter for attend in mechanisms for parameter in attend.parameters()]
        if phase.does == "match":
            return torch.optim.Adam(maps, lr=self.options.match_rate)
        apart = {id(parameter) for parameter in maps}
        trained = [parameter for parameter in self._model.parameters() if parameter.requires_grad]
        rest = [parameter for parameter in trained if id(parameter) not in apart]
        groups = [{"params": rest, "lr": self.options.tune_rate}, {"params": maps, "lr": self.options.map_rate}]
        return torch.optim.AdamW([group for group in groups if group["params"]], weight_decay=0.0)

    def _steps(self, phase: Phase) -> int | None:
        """As many as were asked for. A control has those of both stages."""
        first, second = self.options.steps, self.options.tune_steps
        if phase.does == "match":
            return first
        if second is None or phase.recipe.is_matched:
            return second
        return second + (first or 0)

    def _seconds(self, phase: Phase) -> float:
        """That a phase has left: of the first stage a share of the recipe's time, of the second what is left of it."""
        every = 60.0 * self.options.minutes / len(self.recipes)
        return (MATCHED * every if phase.does == "match" else every) - self.stand.elapsed

    def _batch(self, number: int, stream: int = BATCH) -> MaskedBatch:
        """An encoder reads texts of any length; a language model is trained, and measured, on full ones."""
        longest = self.original.longest
        length = length_of(number, longest) if self.original.kind == "encoder" else longest
        seed = generator(self.seed, stream, number).initial_seed()
        return self.original.batch(self.options.batch_tokens, length, seed)

    def _looked(self) -> list[MaskedBatch]:
        """Texts to learn from, to set or to choose something by."""
        return [self._batch(number, LOOKED) for number in range(CALIBRATED)]

    def _glance(self, phase: Phase) -> Sequence[Judged]:
        """Quality on few texts, in mid-stage."""
        try:
            judged = self.quality.judge(self._model, whole=False)
        except SubquadError:
            raise self._lost(phase) from None
        for each in judged:
            self._keep(phase, {**each.row(), "split": "watched"})
        return judged

    def _attention(self, recipe: Recipe) -> list[AttentionOptions | None]:
        return [None if layer in self.stand.kept else recipe.attention for layer in range(self.layers)]

    def _converted(self, recipe: Recipe) -> list[int]:
        return [layer for layer, options in enumerate(self._attention(recipe)) if options is not None]

    def _fresh(self, recipe: Recipe) -> nn.Module:
        """The gradients of embeddings, which stay, would be as large as the vocabulary."""
        model = self.original.student(self._attention(recipe), self.seed)
        for parameter in self.original.embeddings(model):
            parameter.requires_grad_(False)
        return model

    @property
    def _model(self) -> nn.Module:
        assert self.model is not None, "a recipe starts with its model"
        return self.model

    def _tell(self, phase: Phase, step: int, total: int | None, loss: float, judged: Sequence[Judged]) -> None:
        self.watch(Progress(phase.recipe.name, phase.does, step, total, loss, judged))

    def _keep(self, phase: Phase, row: Row) -> None:
        """With what it is of. `at` puts rows and checkpoints in order."""
        step = self.stand.taken + self.stand.step
        about = {"recipe": phase.recipe.name, "stage": phase.stage, "step": step, "elapsed": self.stand.elapsed}
        self.waiting.append({**row, **about, "at": self.stand.clock})

    def _checkpoint(self, optimizer: torch.optim.Optimizer | None) -> None:
        """Writes rows first, so that a checkpoint has all rows that it counts."""
        self.run.append(self.waiting)
        self.waiting, self.saved = [], time.monotonic()
        if self.model is not None:
            about: dict[str, Any] = {"seed": self.seed, "rows": self.run.count_rows()}
            about |= {"phases": len(self.phases), "stand": asdict(self.stand)}
            checkpoints.save(self.run.folder / FOLDER, self.stand.clock, self.model, optimizer, about)

    def _resume(self) -> checkpoints.Checkpoint | None:
        """Puts the newest checkpoint back and takes later rows out, which will come again."""
        fresh = self.stand
        start = find_start(self.run, self._put_back, counter="at", first=FIRST)
        for complaint in start.complaints:
            self.say(complaint)
        go_back(self.run, start)
        if start.checkpoint is None:
            self.stand, self.model = fresh, None
        return start.checkpoint

    def _put_back(self, checkpoint: checkpoints.Checkpoint) -> None:
        """Takes up a checkpoint. Raises `SubquadError` for one that does not fit."""
        where = f"the checkpoint of step {checkpoint.step}: its stand"
        self.stand, self.model = read(Stand, checkpoint.about.get("stand"), where), None
        if self.stand.phase > len(self.phases) or any(layer >= self.layers for layer in self.stand.kept):
            raise SubquadError(f"{where} is not of a conversion with these options")
        if self.stand.phase < len(self.phases) and (phase := self.phases[self.stand.phase]).does != "start":
            self.model = self._fresh(phase.recipe)
            checkpoints.check_fit(checkpoint, self.model, self._optimizer(phase) if self.stand.step else None)
            checkpoints.restore(checkpoint, self.model)


class _NotFiniteError(Exception):
    """A loss that is no number."""


_DEEDS: dict[str, Callable[[Any, Phase], None]] = {
    "measure": _Conversion.measure,
    "calibrate": _Conversion.calibrate,
    "choose": _Conversion.choose,
    "save": _Conversion.save,
    "cost": _Conversion.cost,
}
