"""`subquad compare --on ray`: the same comparison on every machine of a cluster, side by side on one page."""

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import zip_longest
from pathlib import Path

from rich.console import Console

from subquad.cli import INTERRUPTED
from subquad.cli.streams import say
from subquad.cli.trainings import problem_of, start_command
from subquad.errors import SubquadError
from subquad.places.base import Job, do_all
from subquad.places.cluster import Cluster, open_cluster
from subquad.places.nodes import Node
from subquad.places.options import Placing, Where
from subquad.report.compare import headline, load, write_comparison
from subquad.results import RUNS, Row, holds_run

POLL_SECONDS = 0.5
"""Longest pause between two looks at the measurements of nodes."""
OF_THE_DRIVER = ("--on", "--store", "--out", "--resume")
"""Options that are not passed on to nodes. Each takes one value."""


@dataclass(frozen=True)
class NodeWork:
    """A comparison on a node, as a job of a workplace."""

    words: tuple[str, ...]
    """Options of the comparison, without its folder."""
    threads: int

    def __call__(self, held: object, folder: Path) -> list[Row]:
        """Runs or resumes the comparison in a folder. Its rows are in the files that it writes."""
        place = ["--resume", str(folder)] if holds_run(folder) else ["--out", str(folder)]
        words = [word for word in self.words if word != "--verbose"]
        if problem := problem_of(start_command(["compare", *words, *place], self.threads)):
            raise SubquadError(problem.removeprefix("subquad: "))
        return []


def compare_nodes(arguments: Sequence[str], where: Where, out: Path | None, resume: Path | None, console: Console) -> int:
    """Measures on every machine of a cluster, and writes the page with all of them."""
    folder = resume or out or RUNS / f"compare-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    if resume is None and any(map(holds_run, [folder, *_parts(folder)])):
        raise SubquadError(f"{folder} holds runs already: continue them with --resume {folder}, or choose another --out")
    if resume is not None and not _parts(folder):
        raise SubquadError(f"{folder} has no runs of nodes: --resume with --on takes the folder of such a comparison")
    cluster = open_cluster(Placing(where.on, where.store), folder, tell=say)
    again = f"subquad compare --resume {shlex.quote(str(folder))} --on {where.on}"
    try:
        failures = _measure(cluster, folder, passed_on(arguments), console, is_resumed=resume is not None)
    except KeyboardInterrupt:
        say(f"interrupted; what was measured is kept, go on with: {again}")
        return INTERRUPTED
    finally:
        cluster.close()
        _show(folder, console)
    for failure in failures:
        raise SubquadError(f"{failure}; what was measured is kept, go on with: {again}")
    return 0


def passed_on(arguments: Sequence[str]) -> tuple[str, ...]:
    """The words of a command line without those that are not for nodes."""
    words: list[str] = []
    rest = iter(arguments)
    for word in rest:
        if word in OF_THE_DRIVER:
            next(rest, None)
        elif word.partition("=")[0] not in OF_THE_DRIVER:
            words.append(word)
    return tuple(words)


def _parts(folder: Path) -> list[Path]:
    """Folders of the runs of nodes."""
    return sorted(path.parent for path in folder.glob("*/run.json"))


def _measure(cluster: Cluster, folder: Path, words: tuple[str, ...], console: Console, *, is_resumed: bool) -> list[str]:
    """Measures on all nodes, those of one machine one after the other, and returns sentences about failures."""
    failures = []
    names = node_names(cluster.nodes)
    for turn in turns(cluster.nodes):
        jobs = []
        for node in turn:
            name = names[node.number]
            if is_resumed and not holds_run(folder / name):
                say(f"{name} was not among the nodes, and is left out: start a new comparison to have it too")
                continue
            needs = (folder / name,) if is_resumed else ()
            jobs.append(Job(name, NodeWork(words, max(1, int(node.cpus))), folder / name, needs=needs, node=node.number))
            console.print(f"measuring on {name}", soft_wrap=True)
        for ended in do_all(cluster, jobs, POLL_SECONDS):
            if ended.failure:
                failures.append(f"{ended.job.name}: {ended.message}")
    return failures


def node_names(nodes: Sequence[Node]) -> dict[str, str]:
    """Names of nodes by id: that of the machine, with a number from its second node on."""
    names: dict[str, str] = {}
    for node in nodes:
        before = sum(node.host == other.host for other in nodes[: list(nodes).index(node)])
        names[node.number] = node.host if not before else f"{node.host}-{before + 1}"
    return names


def turns(nodes: Sequence[Node]) -> Iterator[list[Node]]:
    """Nodes that measure at the same time: one of each machine, so that none disturbs another."""
    machines: dict[str, list[Node]] = {}
    for node in nodes:
        machines.setdefault(node.machine, []).append(node)
    for turn in zip_longest(*machines.values()):
        yield [node for node in turn if node is not None]


def _show(folder: Path, console: Console) -> None:
    """Prints the answer of each machine, and writes the page of all."""
    measured = [each for each in load(_parts(folder)) if each.comparison.views]
    if not measured:
        return
    for each in measured:
        console.print(f"{each.name}: {headline(each)}", soft_wrap=True)
    page = folder / "report.html"
    write_comparison(measured, page)
    console.print(f"The page: {page}", soft_wrap=True)
