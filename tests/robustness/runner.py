"""Runs each case in a forked child with limits on time and memory, and says what it did that it must not do.

The parent has imported everything and computed nothing, so that a child starts at once and its threads are its own.
"""

import hashlib
import os
import resource
import selectors
import shutil
import signal
import sys
import time
import traceback
import warnings
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from tests.robustness.cases import Case, Edit

ALLOWED = (0, 1, 2, 130)
REFUSED = 2
SECONDS = 60.0
"""Limit of one case. The slowest that is accepted takes a few seconds on an idle machine."""
MOST_BYTES = 3 * 2**30
"""Memory that a child may write to. Address space that is only set aside, as V8 does to draw a figure, does not count."""
STARTED = ("the loss is", "came to numbers that are not finite", "the disk")
"""Beginnings of sentences about work that was under way: the run's folder is kept then."""
LOCK = ".lock"
"""A command that goes on with a run may leave its lock file, which is empty and unlocked."""

STREAMS = {"stdin", "stdout", "stderr"}
"""Files beside the case's folder."""

Listing = dict[str, str]
"""What a folder holds: a digest for each path."""


class Outcome(NamedTuple):
    """What became of a case."""

    case: Case
    code: int | None
    """None where it was ended because its time was over."""
    problems: tuple[str, ...]
    stderr: str
    seconds: float


class _Child(NamedTuple):
    case: Case
    folder: Path
    pid: int
    before: Listing
    started: float


def run_all(cases: Sequence[Case], templates: Path, scratch: Path, jobs: int) -> Iterator[Outcome]:
    """Outcomes in the order in which the cases end, some at a time."""
    waiting = deque(enumerate(cases))
    running: dict[int, _Child] = {}
    with selectors.DefaultSelector() as ended:
        while waiting or running:
            while waiting and len(running) < jobs:
                number, case = waiting.popleft()
                child = _start(case, templates, scratch / f"case-{number}")
                handle = os.pidfd_open(child.pid)
                running[handle] = child
                ended.register(handle, selectors.EVENT_READ)
            ready = {key.fd for key, _ in ended.select(timeout=0.5)}
            for handle, child in list(running.items()):
                is_late = time.monotonic() - child.started > SECONDS
                if handle in ready or is_late:
                    ended.unregister(handle)
                    os.close(handle)
                    del running[handle]
                    yield _finish(child, is_late=handle not in ready)


def _start(case: Case, templates: Path, folder: Path) -> _Child:
    work = folder / "work"
    work.mkdir(parents=True)
    (folder / "home").mkdir()
    for name in case.templates:
        source = templates / name
        if source.is_dir():
            shutil.copytree(source, work / name, symlinks=True)
        else:
            shutil.copy(source, work / name)
    for edit in case.edits:
        _apply(edit, work)
    before = listing(folder)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python's, where the parent has threads
        pid = os.fork()
    if pid == 0:
        _be(case, folder)
    return _Child(case, folder, pid, before, time.monotonic())


def _apply(edit: Edit, work: Path) -> None:
    path = work / edit.path
    match edit.deed:
        case "write":
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(edit.content)
        case "remove":
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        case "folder":
            if path.exists():
                _apply(Edit("remove", edit.path), work)
            path.mkdir(parents=True)
        case "link":
            if path.exists():
                _apply(Edit("remove", edit.path), work)
            path.symlink_to(os.fsdecode(edit.content))
        case "rename":
            path.rename(path.with_name(os.fsdecode(edit.content)))


def _be(case: Case, folder: Path) -> None:
    """The child: never returns."""
    code = 70
    try:
        os.setsid()
        os.chdir(folder / "work")
        (folder / "stdin").write_text(case.stdin)
        for number, name, flags in (
            (0, "stdin", os.O_RDONLY),
            (1, "stdout", os.O_WRONLY | os.O_CREAT),
            (2, "stderr", os.O_WRONLY | os.O_CREAT),
        ):
            os.dup2(os.open(folder / name, flags, 0o600), number)
        sys.stdin, sys.stdout, sys.stderr = (
            open(number, mode, closefd=False, encoding="utf-8")  # noqa: SIM115, they stay open to the end
            for number, mode in ((0, "r"), (1, "w"), (2, "w"))
        )
        os.environ.update(HOME=str(folder / "home"), TMPDIR=str(folder / "home"), HF_HOME=str(folder / "home"))
        resource.setrlimit(resource.RLIMIT_DATA, (MOST_BYTES,) * 2)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        code = _call(case)
        sys.stdout.flush()
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(Exception):
            sys.stderr.flush()
        os._exit(code)


def _call(case: Case) -> int:
    """The exit code of what the case runs."""
    if case.entry == "script":
        variables: dict[str, Any] = {}
        exec(case.argv[0], variables)
        return int(variables["code"])
    if case.entry == "hub.load":
        return _load(case.argv[0])
    from subquad import cli

    return cli.main(list(case.argv))


def _load(folder: str) -> int:
    """Loads a model as a program would, and ends as a command does."""
    from transformers.utils import logging

    from subquad.errors import SubquadError
    from subquad.hub import load

    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        load(folder)
    except SubquadError as error:
        print(f"subquad: {error}", file=sys.stderr)
        return REFUSED
    return 0


def _finish(child: _Child, *, is_late: bool) -> Outcome:
    with suppress(ProcessLookupError):  # its children, too
        os.killpg(child.pid, signal.SIGKILL)
    _, status = os.waitpid(child.pid, 0)
    seconds = time.monotonic() - child.started
    code = None if is_late else os.waitstatus_to_exitcode(status)
    said = (child.folder / "stderr").read_text(errors="replace") if (child.folder / "stderr").exists() else ""
    problems = tuple(_problems(child, code, said))
    if not problems:
        shutil.rmtree(child.folder)
    return Outcome(child.case, code, problems, said, seconds)


def _problems(child: _Child, code: int | None, said: str) -> Iterator[str]:
    """What the case did that no command may do."""
    if code is None:
        yield f"not done after {SECONDS:.0f} s"
        return
    if code not in ALLOWED:
        yield f"exit code {code}"
    if "Traceback" in said:
        yield "a traceback"
    after = listing(child.folder)
    outside = {path for path in _changed(child.before, after) if not path.startswith("work/")}
    if outside:
        yield f"wrote outside of its folder: {sorted(outside)[:3]}"
    if code == REFUSED:
        yield from _refusal(child, said, after)


def _refusal(child: _Child, said: str, after: Listing) -> Iterator[str]:
    sentences = [line for line in said.splitlines() if line.strip()]
    if len(sentences) != 1 or not sentences[0].startswith("subquad: "):
        yield f"not one sentence but {len(sentences)} lines"
    elif len(sentences[0]) > 2020:
        yield f"a sentence of {len(sentences[0])} characters"
    if any(words in said for words in STARTED):
        return
    changed = {path for path in _changed(child.before, after) if path.startswith("work/")}
    changed = {path for path in changed if not (path.endswith(f"/{LOCK}") and path not in child.before)}
    if changed:
        yield f"refused, but changed {sorted(changed)[:3]}"


def _changed(before: Listing, after: Listing) -> set[str]:
    """The paths that differ. The files that the child's streams lead to do not count."""
    return {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)} - STREAMS


def listing(folder: Path) -> Listing:
    """Every path below a folder, with a digest of what is there."""
    found: Listing = {}
    for place, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = Path(place) / name
            relative = str(path.relative_to(folder))
            if relative.startswith("home/"):
                continue
            if path.is_symlink():
                found[relative] = f"link to {path.readlink()}"
            elif path.is_dir():
                found[relative] = "folder"
            else:
                found[relative] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found
