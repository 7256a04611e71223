"""Jobs on the nodes of a Ray cluster. A job whose node is lost goes on, from its last checkpoint, on another one."""

import hashlib
import math
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from subquad.errors import SubquadError
from subquad.measure.workers import ERROR, TIMEOUT
from subquad.places.base import LOST, Ended, Job
from subquad.places.doing import Answer, Doer, Errand, Hold
from subquad.places.nodes import Node, connect, find_nodes, inspect, only_on
from subquad.places.options import Placing
from subquad.places.relay import Relay, open_store

LIVES = 3
"""Number of times that a job is begun at most if its process or node is lost."""
PULL_SECONDS = 1.0
"""Time between two looks at the files of running jobs."""
PATIENCE_SECONDS = 60.0
"""Time without any node that could do a job after which the command ends."""
RELAY = ".relay"
"""Name of the folder in a run's folder through which files travel if no store is given."""


def hold_nothing() -> None:
    """What processes hold whose jobs share nothing."""


@dataclass(frozen=True)
class Terms:
    """Where jobs of a cluster run, and what each of them gets."""

    store: str
    cpus: float = 1.0
    gpus: float = 0.0
    jobs: int | None = None
    """Largest number of jobs side by side; None for as many as the nodes have room for."""


class _Busy:
    """A job that a process on a node does, or will do as soon as the process has started."""

    def __init__(self, job: Job, relay: Relay, actor: Any) -> None:
        self.job, self.relay = job, relay
        self.host = ""
        self.started = math.inf
        self.take(actor)

    def take(self, actor: Any) -> None:
        self.actor, self.answer = actor, actor.here.remote()

    def start(self, host: str, errand: Errand) -> None:
        self.host, self.started = host, time.monotonic()
        self.answer = self.actor.do.remote(errand)


class Cluster:
    """A workplace of nodes. Processes on them are kept for the jobs that follow."""

    def __init__(
        self, ray: Any, nodes: Sequence[Node], terms: Terms, hold: Hold = hold_nothing, tell: Callable[[str], None] = print
    ) -> None:
        """Starts no process yet.

        Args:
            ray: the package, connected to the cluster.
            nodes: nodes that were inspected.
            terms: store and resources.
            hold: makes what a process holds for all its jobs.
            tell: called with a sentence if a node is lost.
        """
        self.ray, self.nodes, self.terms, self.hold, self.tell = ray, list(nodes), terms, hold, tell
        self.remote = ray.remote(Doer)
        self.busy: list[_Busy] = []
        self.idle: list[Any] = []
        self.losses: dict[str, int] = {}
        self.shared: dict[str, Relay] = {}
        self.pulled = self.last_room = time.monotonic()

    @property
    def slots(self) -> int:
        """Number of jobs for which the nodes that are alive have room side by side."""
        known = {node.number for node in self.nodes}
        alive = [node for node in find_nodes(self.ray, self.terms.cpus, self.terms.gpus) if node["NodeID"] in known]
        room = sum(_room(node["Resources"], self.terms) for node in alive)
        return room if self.terms.jobs is None else min(room, self.terms.jobs)

    def has_room(self) -> bool:
        """Whether another job can begin now. Raises `SubquadError` if no node has been there for a while."""
        if slots := self.slots:
            self.last_room = time.monotonic()
        elif time.monotonic() - self.last_room > PATIENCE_SECONDS:
            raise SubquadError("no node of the Ray cluster is left: start some, and give the same command again to go on")
        return len(self.busy) < slots

    def begin(self, job: Job) -> None:
        """Begins a job. Files that it needs are stored first."""
        relay = Relay(self.terms.store, job.folder.name)
        relay.clear()
        if job.folder in job.needs:
            relay.push(job.folder)
        for folder in job.needs:
            if folder != job.folder and folder.name not in self.shared:
                self.shared[folder.name] = Relay(self.terms.store, folder.name)
                self.shared[folder.name].clear()
                self.shared[folder.name].push(folder)
        self.busy.append(_Busy(job, relay, self._actor(job)))

    def ended(self, seconds: float) -> list[Ended]:
        """Waits for at most so many seconds, copies files that jobs wrote, and returns the jobs that ended."""
        if not self.busy:
            time.sleep(seconds)
            return []
        self._use_idle()
        answers = {busy.answer: busy for busy in self.busy}
        ready, _ = self.ray.wait(list(answers), num_returns=1, timeout=seconds)
        if time.monotonic() - self.pulled > PULL_SECONDS:
            for busy in self.busy:
                busy.relay.pull(busy.job.folder)
            self.pulled = time.monotonic()
        ends = [self._look(answers[answer]) for answer in ready]
        ends += [self._end_late(busy) for busy in self.busy if time.monotonic() - busy.started > busy.job.limit_seconds]
        return [each for each in ends if each is not None]

    def close(self) -> None:
        """Ends all jobs and the connection. Files that jobs have stored are kept in their folders."""
        for actor in [*self.idle, *(busy.actor for busy in self.busy)]:
            self._kill(actor)
        for busy in self.busy:
            busy.relay.pull(busy.job.folder)
            busy.relay.clear()
        for relay in self.shared.values():
            relay.clear()
        system, root = open_store(self.terms.store)
        with suppress(OSError):  # it is not empty, or not a folder
            system.rmdir(root)
        self.busy, self.idle, self.shared = [], [], {}
        self.ray.shutdown()

    def _actor(self, job: Job) -> Any:
        """A process on a node, which is started if there is none without a job."""
        if self.idle and not job.node:
            return self.idle.pop()
        options: dict[str, Any] = {"num_cpus": self.terms.cpus, "num_gpus": self.terms.gpus}
        if job.node:
            node = next(node for node in self.nodes if node.number == job.node)
            options = {"num_cpus": node.cpus, "num_gpus": node.gpus, "scheduling_strategy": only_on(self.ray, job.node)}
        return self.remote.options(**options).remote(self.hold, str(Path.cwd()))

    def _look(self, busy: _Busy) -> Ended | None:
        """Takes the answer of a process: that it has started, or that its job ended."""
        try:
            answer = self.ray.get(busy.answer)
        except self.ray.exceptions.RayActorError as error:
            return self._lose(busy, error)
        except self.ray.exceptions.RayError as error:
            self._leave(busy, is_alive=False)
            return Ended(busy.job, [], ERROR, " ".join(str(error).split())[-300:])
        if not busy.host:
            busy.start(answer, self._errand(busy.job))
            return None
        return self._finish(busy, answer)

    def _finish(self, busy: _Busy, answer: Answer) -> Ended:
        busy.relay.pull(busy.job.folder)
        busy.relay.clear()
        self._leave(busy, is_alive=not busy.job.node)
        return Ended(busy.job, *answer)

    def _end_late(self, busy: _Busy) -> Ended:
        self._leave(busy, is_alive=False)
        busy.relay.pull(busy.job.folder)
        busy.relay.clear()
        return Ended(busy.job, [], TIMEOUT, f"it took longer than {busy.job.limit_seconds:.0f} s")

    def _lose(self, busy: _Busy, error: Exception) -> Ended | None:
        """Begins a job again whose process ended, on whatever node has room, unless that has happened too often."""
        job = busy.job
        self._leave(busy, is_alive=False)
        self.losses[job.name] = losses = self.losses.get(job.name, 0) + 1
        where = f" on {busy.host}" if busy.host else ""
        if losses >= LIVES or job.node:
            busy.relay.pull(job.folder)
            busy.relay.clear()
            return Ended(job, [], LOST, f"its process{where} was lost {losses} times: {' '.join(str(error).split())[:200]}")
        self.tell(f"{job.name}: the process{where} was lost; it goes on from what it stored")
        self.busy.append(_Busy(job, busy.relay, self._actor(job)))
        return None

    def _leave(self, busy: _Busy, *, is_alive: bool) -> None:
        self.busy.remove(busy)
        if not is_alive:
            self._kill(busy.actor)
        else:
            self.idle.append(busy.actor)

    def _use_idle(self) -> None:
        """Gives processes without a job to jobs whose own would never start, as there are more processes than CPUs for them.

        This happens if a node is lost: a job of it waits for CPUs, and another job that ends keeps its process.
        """
        waiting = [busy for busy in self.busy if not busy.host and not busy.job.node]
        if not waiting or not self.idle or len(self.busy) + len(self.idle) <= self.slots:
            return
        for busy, actor in zip(waiting, self.idle, strict=False):
            self._kill(busy.actor)
            busy.take(actor)
        self.idle = self.idle[len(waiting) :]

    def _kill(self, actor: Any) -> None:
        with suppress(Exception):  # it has ended already, or the cluster is gone
            self.ray.kill(actor)

    def _errand(self, job: Job) -> Errand:
        others = tuple(folder.name for folder in job.needs if folder != job.folder)
        root = os.path.abspath(job.folder.parent)  # noqa: PTH100, links are kept
        return Errand(job.work, self.terms.store, job.folder.name, root, others)


def _room(resources: dict[str, float], terms: Terms) -> int:
    """Number of jobs for which one node has room."""
    cpus = int(resources.get("CPU", 0.0) / terms.cpus)
    return min(cpus, int(resources.get("GPU", 0.0) / terms.gpus)) if terms.gpus else cpus


def open_cluster(
    where: Placing,
    folder: Path,
    *,
    hold: Hold = hold_nothing,
    tell: Callable[[str], None] = print,
    jobs: int | None = None,
    paths: Sequence[Path] = (),
) -> Cluster:
    """Connects to the cluster that --on names, and checks its nodes. Raises `SubquadError` if they cannot do the work.

    Args:
        where: options of the command.
        folder: folder of the run.
        hold: makes what a process holds for all its jobs.
        tell: called with a sentence if a node is lost.
        jobs: largest number of jobs side by side.
        paths: data that every node must have.
    """
    terms = Terms(_store(where.store, folder), where.cpus, where.gpus, jobs)
    ray = connect(where.on)
    try:
        nodes = inspect(ray, terms.store, cpus=terms.cpus, gpus=terms.gpus, paths=paths)
    except BaseException:
        ray.shutdown()
        with suppress(OSError):  # of the folder of a run that has not begun, nothing is left
            os.removedirs(terms.store)
        raise
    return Cluster(ray, nodes, terms, hold, tell)


def _store(given: str, folder: Path) -> str:
    """The store of a run: a place of its own in the one that is given, or a folder in that of the run."""
    path = folder.resolve()
    if not given:
        return str(path / RELAY)
    name = f"{path.name}-{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    return f"{given.rstrip('/')}/{name}" if "://" in given else str(Path(given).resolve() / name)
