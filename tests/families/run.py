"""Runs the matrix over all families, each class in a process of its own that may be killed.

Rows go to a file as they come, one for each cell, so that a run that was stopped goes on with `--resume`. At the end the
page `docs/families.md` is written from them.
"""

import gc
import json
import math
import os
import resource
import selectors
import signal
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers.models.llama.modeling_llama
import transformers.trainer  # noqa: F401
from transformers.utils import logging

from subquad import SubquadError, hub
from subquad.results import append_rows, read_rows
from tests.families.catalog import Entry, entries, first_of_each
from tests.families.cells import judge
from tests.families.matrix import MATRIX
from tests.families.models import CannotBuildError, build
from tests.families.page import write_page

PAGE = Path(__file__).parent.parent.parent / "docs" / "families.md"
BUILT, SWAPPED = "built", "swapped"
"""What comes before the cells: whether there is a model, and whether it has attention to swap."""


@dataclass(frozen=True)
class Options:
    """Builds every family of the installed transformers small, and writes down what works with another attention."""

    out: Path = Path("runs/families.jsonl")  # file of rows
    resume: bool = False  # keeps the rows that are there and goes on
    only: tuple[str, ...] = ()  # families or classes to run; all if none is named
    first: bool = False  # runs one class of each family, the one that can do the most
    parallel: int = 2  # processes at a time
    seconds: int = 60  # limit for one cell, of the processor's time; of the clock's it is ten times as long
    gigabytes: int = 4  # limit for one process
    page: Path | None = PAGE  # page that is written from the rows at the end


@dataclass
class Child:
    """A process that works on one class of models."""

    entry: Entry
    pid: int
    pipe: int
    rest: bytes = b""
    cell: str = BUILT
    done: set[str] = field(default_factory=set)
    is_finished: bool = False


def main(options: Options) -> int:
    """Runs what is left to run; 1 if something is silently wrong or crashes."""
    if options.out.exists() and not options.resume:
        raise SubquadError(f"{options.out} holds a run already: go on with --resume, or name another file with --out")
    done = _done(options.out) if options.out.exists() else {}
    every = first_of_each(entries()) if options.first else entries()
    wanted = [entry for entry in every if not options.only or {entry.family, entry.class_name} & set(options.only)]
    waiting = [(entry, cells) for entry in wanted if None not in (cells := done.get(entry.class_name, set()))]
    _quiet()
    gc.freeze()
    for number, (entry, rows) in enumerate(_in_parallel(waiting, options), start=1):
        counts = Counter(row["status"] for row in rows)
        print(
            f"{number}/{len(waiting)} {entry.class_name}: {', '.join(f'{count} {name}' for name, count in counts.items())}",
            flush=True,
        )
    rows = read_rows(options.out)
    if options.page is not None:
        write_page(options.page, rows)
    wrong = [row for row in rows if row["status"] in ("silent error", "crash")]
    print(f"{len(rows)} rows in {options.out}; {len(wrong)} silent errors and crashes")
    return int(bool(wrong))


def _done(path: Path) -> dict[str, set[Any]]:
    """The cells of each class that a file holds; None among them where a class is finished."""
    found: dict[str, set[Any]] = {}
    for row in read_rows(path):
        cells = found.setdefault(row["class_name"], set())
        cells.add(row["cell"])
        if (row["cell"] in (BUILT, SWAPPED) and row["status"] != "works") or cells >= {BUILT, SWAPPED, *MATRIX}:
            cells.add(None)
    return found


def _in_parallel(waiting: list[tuple[Entry, set[Any]]], options: Options) -> Iterator[tuple[Entry, list[dict[str, Any]]]]:
    """Each class with its rows, as it is finished. A process that dies is followed by one that goes on behind its cell."""
    ready = selectors.DefaultSelector()
    queue = list(reversed(waiting))
    rows: dict[str, list[dict[str, Any]]] = {}
    while queue or ready.get_map():
        while queue and len(ready.get_map()) < options.parallel:
            entry, done = queue.pop()
            child = _forked(entry, done, options)
            ready.register(child.pipe, selectors.EVENT_READ, child)
        for key, _ in ready.select():
            child = key.data
            data = os.read(child.pipe, 1 << 16)
            if data:
                rows.setdefault(child.entry.class_name, []).extend(_kept(child, data, options))
                continue
            ready.unregister(child.pipe)
            os.close(child.pipe)
            _, status = os.waitpid(child.pid, 0)
            if not child.is_finished:
                row = _row(child.entry, child.cell, "crash", None, _death(status, options))
                append_rows(options.out, [row])
                rows.setdefault(child.entry.class_name, []).append(row)
                child.done.add(child.cell)
                if child.cell not in (BUILT, SWAPPED):
                    queue.append((child.entry, child.done))
                    continue
            yield child.entry, rows.pop(child.entry.class_name, [])


def _kept(child: Child, data: bytes, options: Options) -> list[dict[str, Any]]:
    """The rows that a process has sent, which are written to the file at once."""
    *lines, child.rest = (child.rest + data).split(b"\n")
    found = []
    for line in lines:
        told = json.loads(line)
        if "begins" in told:
            child.cell = told["begins"]
        elif "ends" in told:
            child.is_finished = True
        else:
            child.done.add(told["cell"])
            found.append(told)
    append_rows(options.out, found)
    return found


def _forked(entry: Entry, done: set[Any], options: Options) -> Child:
    reading, writing = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writing)
        return Child(entry, pid, reading, done=set(done))
    try:
        os.close(reading)
        for stream in (1, 2):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
        limit = options.gigabytes << 30
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        _work(entry, done, writing, options.seconds)
    finally:
        os._exit(0)


def _work(entry: Entry, done: set[Any], pipe: int, seconds: int) -> None:
    """What a process does: builds the model and puts it through the cells that are left."""

    def tell(**told: Any) -> None:
        os.write(pipe, json.dumps(told).encode() + b"\n")

    def keep(cell: str, status: str, value: float | None = None, says: str = "", began: float | None = None) -> None:
        tell(**_row(entry, cell, status, value, says, None if began is None else time.monotonic() - began))

    _limit(seconds)
    began = time.monotonic()
    try:
        subject = build(entry)
    except (CannotBuildError, MemoryError, RuntimeError) as error:  # PyTorch says RuntimeError where memory is short
        keep(BUILT, "cannot be built", None, str(error) or type(error).__name__, began)
        return tell(ends=True)
    if BUILT not in done:
        reads = ", ".join(f"{name} {'x'.join(map(str, each.shape))}" for name, each in subject.inputs.items())
        keep(BUILT, "works", None, f"{str(subject.model.dtype).removeprefix('torch.')}: {reads}", began)
    try:
        modules = hub.attention_modules(subject.model)
    except SubquadError as error:
        keep(SWAPPED, "refused", None, str(error))
        return tell(ends=True)
    if SWAPPED not in done:
        keep(SWAPPED, "works", len(modules))
    for name, (cell, prepare) in MATRIX.items():
        if name not in done:
            tell(begins=name)
            _limit(seconds)
            began = time.monotonic()
            result = judge(cell, subject, prepare)
            keep(name, result.status, result.value, result.says, began)
    tell(ends=True)


def _limit(seconds: int) -> None:
    """Ends the process where its next task takes too long."""
    signal.setitimer(signal.ITIMER_PROF, seconds)
    signal.alarm(10 * seconds)


def _row(
    entry: Entry, cell: str, status: str, value: float | None, says: str, seconds: float | None = None
) -> dict[str, Any]:
    known: dict[str, Any] = {"metric": "family", "family": entry.family, "model_type": entry.model_type, "kind": entry.head}
    number = None if value is None or not math.isfinite(value) else value
    known |= {"class_name": entry.class_name, "cell": cell, "status": status, "message": says}
    known |= {} if number is None else {"value": number}
    return known | ({} if seconds is None else {"seconds": round(seconds, 3)})


def _death(status: int, options: Options) -> str:
    if not os.WIFSIGNALED(status):
        return f"the process ended with code {os.waitstatus_to_exitcode(status)}"
    name = signal.Signals(os.WTERMSIG(status)).name
    return f"it took longer than {options.seconds} s" if name in ("SIGPROF", "SIGALRM") else f"it was ended by {name}"


def _quiet() -> None:
    warnings.simplefilter("ignore")
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    torch.set_num_threads(1)
