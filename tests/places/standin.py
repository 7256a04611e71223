"""A stand-in for the package ray: processes on nodes are objects here, which do their work when they are asked."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from subquad.places.doing import Doer


class RayError(Exception):
    pass


class RayActorError(RayError):
    pass


class KilledError(BaseException):
    """Raised by work whose process is killed."""


@dataclass(eq=False)
class Answer:
    """What a process will have answered, or the error that is raised for it."""

    actor: "Actor"
    method: str
    arguments: tuple[Any, ...]

    def get(self) -> Any:
        if self.actor.is_dead:
            raise RayActorError("the actor died because its node has died")
        try:
            return getattr(self.actor.doer, self.method)(*self.arguments)
        except KilledError:
            self.actor.is_dead = True
            raise RayActorError("the actor died because its node has died") from None


@dataclass(eq=False)
class Actor:
    doer: Doer
    options: dict[str, Any]
    is_dead: bool = False

    def __getattr__(self, method: str) -> Any:
        return SimpleNamespace(remote=lambda *arguments: Answer(self, method, arguments))


@dataclass
class StandIn:
    """A cluster of nodes with so many CPUs."""

    cpus: Sequence[float] = (1.0, 1.0)
    actors: list[Actor] = field(default_factory=list)
    is_shut_down: bool = False
    exceptions: Any = field(default_factory=lambda: SimpleNamespace(RayActorError=RayActorError, RayError=RayError))

    @property
    def util(self) -> Any:
        return SimpleNamespace(
            scheduling_strategies=SimpleNamespace(NodeAffinitySchedulingStrategy=lambda number, soft: number)
        )

    def nodes(self) -> list[dict[str, Any]]:
        return [
            {"NodeID": f"n{at}", "Alive": True, "Resources": {"CPU": cpus}, "NodeManagerAddress": f"10.0.0.{at}"}
            for at, cpus in enumerate(self.cpus)
        ]

    def remote(self, kind: Any) -> Any:
        def start(options: dict[str, Any]) -> Any:
            def make(*arguments: Any) -> Actor:
                self.actors.append(Actor(kind(*arguments), options))
                return self.actors[-1]

            return SimpleNamespace(remote=make)

        return SimpleNamespace(options=lambda **options: start(options))

    def wait(self, answers: Sequence[Answer], *, num_returns: int, timeout: float) -> tuple[list[Answer], list[Answer]]:
        return list(answers[:num_returns]), list(answers[num_returns:])

    def get(self, answer: Answer) -> Any:
        return answer.get()

    def kill(self, actor: Actor) -> None:
        actor.is_dead = True

    def shutdown(self) -> None:
        self.is_shut_down = True
