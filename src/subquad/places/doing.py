"""The side of a node: does jobs in temporary folders, whose files go to the store as they are written."""

import os
import shutil
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from subquad.places.base import Work, explained
from subquad.places.relay import Relay
from subquad.results import Row

PUSH_SECONDS = 1.0
"""Time between two looks at the files of a job that have changed."""
PREFIX = "subquad-node-"
"""Beginning of the names of temporary folders, which the id of their process follows."""

Hold = Callable[[], Any]
"""Makes what a process holds for all its jobs, such as data. It must be picklable."""
Answer = tuple[list[Row], str, str]
"""Rows of a job, the reason of its failure, and a message."""


class Errand(NamedTuple):
    """A job as it is sent to a node."""

    work: Work
    store: str
    name: str
    """Name of the job's folder, and of its copy in the store."""
    root: str
    """Path, on the machine that gave the command, of the folder around that of the job."""
    needs: tuple[str, ...]
    """Names of other folders that the work reads."""


class Doer:
    """A process on a node that does jobs one after the other."""

    def __init__(self, hold: Hold, directory: str) -> None:
        """Starts in the working directory of the command, if the node has it."""
        if Path(directory).is_dir():
            os.chdir(directory)
        self.hold, self.held = hold, None
        _sweep()

    def here(self) -> str:
        """The name of this machine, once the process has started."""
        return socket.gethostname()

    def do(self, errand: Errand) -> Answer:
        """Does a job and returns its rows, or the reason of its failure."""
        with _scratch() as root:
            folder = root / errand.name
            relay = Relay(errand.store, errand.name, here=str(root), there=errand.root)
            relay.pull(folder)
            for name in errand.needs:
                Relay(errand.store, name, here=str(root), there=errand.root).pull(root / name)
            try:
                with _relaying(relay, folder):
                    if self.held is None:
                        self.held = self.hold()
                    return errand.work(self.held, folder), "", ""
            except Exception as error:
                failure, message = explained(error)
                return [], failure, message.replace(str(root), errand.root)


@contextmanager
def _relaying(relay: Relay, folder: Path) -> Iterator[None]:
    """Stores the files of a folder while the block runs, and once more at its end, whether it succeeds or not."""
    is_over = threading.Event()

    def push_again_and_again() -> None:
        while not is_over.wait(PUSH_SECONDS):
            with suppress(OSError):  # what is wrong for longer is raised at the end
                relay.push(folder)

    thread = threading.Thread(target=push_again_and_again, daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
        relay.push(folder)


@contextmanager
def _scratch() -> Iterator[Path]:
    """A temporary folder of this process."""
    folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-")).resolve()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _sweep() -> None:
    """Deletes temporary folders of processes that were killed."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*-*"):
        number = folder.name.removeprefix(PREFIX).partition("-")[0]
        if number.isdecimal() and not psutil.pid_exists(int(number)):
            shutil.rmtree(folder, ignore_errors=True)
