"""Processes that do jobs: side by side, with failures, kills and limits of time that others survive."""

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from subquad.choose.workers import Job, Pool, Work
from subquad.errors import DivergedError
from subquad.results import Row
from subquad.tasks.base import Task, TaskOptions
from subquad.tasks.recall import Recall

TASK = Recall(length=12, pairs=2, keys=4, values=3)


def prepare(variant: TaskOptions | None) -> Task[Any]:
    return (variant or TASK).prepare()


def answer(task: Task[Any], folder: Path, number: int) -> list[Row]:
    return [{"metric": "answer", "value": number, "kind": task.kind}]


def fail(task: Task[Any], folder: Path) -> list[Row]:
    raise DivergedError("the loss is nan")


def die(task: Task[Any], folder: Path) -> list[Row]:
    os.kill(os.getpid(), signal.SIGKILL)
    return []


def allocate(task: Task[Any], folder: Path) -> list[Row]:
    return [{"metric": "size", "value": len(bytearray(2**33))}]


def sleep(task: Task[Any], folder: Path) -> list[Row]:
    time.sleep(600)
    return []


@pytest.fixture(params=["fork", "server"])
def pool(request: pytest.FixtureRequest) -> Iterator[Pool]:
    """Forked processes know what is not picklable; those of a server take seconds to start once."""
    source = (lambda variant: TASK) if request.param == "fork" else prepare
    made = Pool(source, 2, 2**30, is_forked=request.param == "fork")
    yield made
    made.close()


def test_jobs_end_with_rows_or_reasons(pool: Pool) -> None:
    works: dict[str, Work] = {"first": partial(answer, number=1), "fail": fail, "die": die, "large": allocate, "late": sleep}
    works["last"] = partial(answer, number=2)
    jobs = [Job(name, work, Path(), 1.0 if name == "late" else 60.0) for name, work in works.items()]
    ended = {each.job.name: each for each in pool.run(jobs, lambda job: True)}
    assert {name: each.failure for name, each in ended.items()} == {
        "first": "",
        "fail": "not finite",
        "die": "killed",
        "large": "out of memory",
        "late": "timeout",
        "last": "",
    }
    assert ended["last"].rows == [{"metric": "answer", "value": 2, "kind": "recall"}]
    assert ended["fail"].message == "the loss is nan"


def length(task: Task[Any], folder: Path) -> list[Row]:
    return [{"metric": "length", "value": int(task.lengths()["drawn"].max())}]


def test_a_job_gets_the_task_of_its_options() -> None:
    pool = Pool(prepare, 1, 2**31)
    variants = {"whole": None, "cut": replace(TASK, length=8), "again": None}
    jobs = [Job(name, length, Path(), 60.0, variant) for name, variant in variants.items()]
    lengths = [each.rows[0]["value"] for each in pool.run(jobs, lambda job: True)]
    pool.close()
    assert lengths == [12, 8, 12]


def test_jobs_that_may_not_start_are_left_out() -> None:
    pool = Pool(prepare, 2, 2**30)
    assert list(pool.run([Job("some", fail, Path(), 1.0)], lambda job: False)) == []
    assert pool.workers == []
