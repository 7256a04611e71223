"""Which model a recipe goes on with: the best one so far, by development texts."""

from torch import nn

from subquad.conversion.journal import Journal
from subquad.conversion.judging import Judge
from subquad.conversion.recipes import Deed, Phase
from subquad.conversion.students import Students
from subquad.conversion.vectors import Judged

STAGE_NAMES: dict[Deed, str] = {"calibrate": "calibrating", "match": "matching", "tune": "tuning"}
"""Stages that are undone if they do not help."""


class Models:
    """The model that is worked on, and in a stage the best one so far, be it of the stage or from before it."""

    def __init__(self, students: Students, journal: Journal) -> None:
        self.students, self.journal = students, journal
        self.model: nn.Module | None = None
        self.best: nn.Module | None = None

    @property
    def current(self) -> nn.Module:
        """The model that is worked on."""
        assert self.model is not None, "a recipe starts with its model"
        return self.model

    def modules(self) -> nn.ModuleDict:
        """What a checkpoint keeps: the model once there is one, and in a stage also the best one so far."""
        return nn.ModuleDict({name: each for name, each in (("model", self.model), ("best", self.best)) if each is not None})

    def take(self, model: nn.Module, phase: Phase, judge: Judge) -> None:
        """Goes on with a model, whatever was before."""
        self.model = model
        self.journal.stand.choice.take(judge.develop(phase, model)[0])
        judge.test(phase, model)
        self.journal.keep(phase, {"metric": "kept", "value": 1.0})

    def begin_stage(self) -> None:
        """Remembers the model from before the stage."""
        self.best = self.students.copy(self.current)
        self.journal.stand.choice.begin_stage()

    def look(self, phase: Phase, judge: Judge) -> list[Judged]:
        """Judges the model of a stage, and remembers it if it is the best so far."""
        assert self.best is not None, "a stage has begun"
        judged, stand = judge.develop(phase, self.current), self.journal.stand
        stand.looks, stand.looked = stand.looks + 1, stand.step
        if stand.choice.offer(judged[0], stand.step):
            self.best.load_state_dict(self.current.state_dict())
        return judged

    def settle(self, phase: Phase, judge: Judge) -> None:
        """Ends a stage with its best model; or with the one before it, if that is better."""
        assert self.best is not None, "a stage has begun"
        stand = self.journal.stand
        helped = stand.choice.step is not None
        judge.test(phase, self.best if helped else self.current)
        words = stand.choice.words(STAGE_NAMES[phase.does], judge.quality.decides, stand.step)
        self.journal.keep(phase, {"metric": "kept", "value": float(helped), "message": words})
        self.journal.say(f"{phase.recipe.name}: {words}")
        self.model, self.best = self.best, None
