"""Keeps the best model of a recipe so far, judged on development texts."""

from torch import nn

from subquad.conversion.journal import Journal
from subquad.conversion.judging import Judge
from subquad.conversion.recipes import Deed, Phase
from subquad.conversion.students import Students
from subquad.conversion.vectors import Judged

STAGE_NAMES: dict[Deed, str] = {"calibrate": "calibrating", "match": "matching", "tune": "tuning"}
"""Names of the stages that are undone if they make the model worse."""


class Models:
    """The current model of a recipe and, during a stage, the best model so far, which may be the one before the stage."""

    def __init__(self, students: Students, journal: Journal) -> None:
        self.students, self.journal = students, journal
        self.model: nn.Module | None = None
        self.best: nn.Module | None = None

    @property
    def current(self) -> nn.Module:
        """The current model; there must be one."""
        assert self.model is not None, "a recipe starts with its model"
        return self.model

    def modules(self) -> nn.ModuleDict:
        """Modules to be saved in a checkpoint: the current model if there is one, and the best one during a stage."""
        return nn.ModuleDict(
            {name: module for name, module in (("model", self.model), ("best", self.best)) if module is not None}
        )

    def take(self, model: nn.Module, phase: Phase, judge: Judge) -> None:
        """Makes `model` the current one, whatever its quality, and measures it."""
        self.model = model
        self.journal.stand.choice.take(judge.develop(phase, model)[0])
        judge.test(phase, model)
        self.journal.keep(phase, {"metric": "kept", "value": 1.0})

    def begin_stage(self) -> None:
        """Stores a copy of the current model as the best one so far."""
        self.best = self.students.copy(self.current)
        self.journal.stand.choice.begin_stage()

    def look(self, phase: Phase, judge: Judge) -> list[Judged]:
        """Measures the current model on development texts, and stores it if it is the best so far."""
        assert self.best is not None, "a stage has begun"
        judged, stand = judge.develop(phase, self.current), self.journal.stand
        stand.looks, stand.looked = stand.looks + 1, stand.step
        if stand.choice.offer(judged[0], stand.step):
            self.best.load_state_dict(self.current.state_dict())
        return judged

    def settle(self, phase: Phase, judge: Judge) -> None:
        """Ends a stage: the best model becomes current, which is the one before the stage if the stage did not help."""
        assert self.best is not None, "a stage has begun"
        stand = self.journal.stand
        helped = stand.choice.step is not None
        judge.test(phase, self.best if helped else self.current)
        words = stand.choice.words(STAGE_NAMES[phase.does], judge.quality.decides, stand.step)
        self.journal.keep(phase, {"metric": "kept", "value": float(helped), "message": words})
        self.journal.say(f"{phase.recipe.name}: {words}")
        self.model, self.best = self.best, None
