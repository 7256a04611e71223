"""Jobs of a race on the nodes of a Ray cluster."""

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from subquad.choose.race import memory_share
from subquad.choose.workers import POLL_SECONDS, Ended, Held, Job, MayStart, Source, Work
from subquad.machine import cores
from subquad.measure.memory import limit_memory
from subquad.places import base
from subquad.results import Row, holds_run
from subquad.tasks.base import TaskOptions


class Remote:
    """Does jobs in a workplace whose processes hold the task with its data, by `hold_tasks`."""

    def __init__(self, workplace: base.Workplace) -> None:
        self.workplace = workplace

    def run(self, jobs: Sequence[Job], may_start: MayStart) -> Iterator[Ended]:
        """Does jobs in their order, side by side; see `subquad.choose.workers.Workers`."""
        by_name = {job.name: job for job in jobs}
        sent = map(_sent, jobs)
        for ended in base.do_all(self.workplace, sent, POLL_SECONDS, lambda job: may_start(by_name[job.name])):
            yield Ended(by_name[ended.job.name], ended.rows, ended.failure, ended.message)

    def close(self) -> None:
        """Ends all work."""
        self.workplace.close()


def _sent(job: Job) -> base.Job:
    """The job as a workplace takes it. A run that was begun before goes on, and its folder is named like the job."""
    needs = (job.folder,) if job.folder.name == job.name and holds_run(job.folder) else ()
    work = partial(_do, work=job.work, variant=job.variant)
    return base.Job(job.name, work, job.folder, job.limit_seconds, needs)


def _do(held: Held, folder: Path, *, work: Work, variant: TaskOptions | None) -> list[Row]:
    return work(held.of(variant), folder)


def hold_tasks(source: Source, threads: int) -> Held:
    """Runs in a process on a node: sets its threads, limits its memory to its share, and returns the tasks."""
    import torch

    torch.set_num_threads(threads)
    limit_memory(memory_share(max(1, cores() // threads)))
    return Held(source)
