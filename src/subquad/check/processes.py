"""A process that answers questions about code of others, so that whatever this code does, the command goes on."""

import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any, Self

import psutil

from subquad.attention.outside.importing import sentence_of
from subquad.errors import SubquadError
from subquad.measure.memory import limit_memory
from subquad.measure.workers import context, interrupts_wait, join_parent, silence_output, start_child

PRELOAD = ("torch", "torch.fx.experimental.symbolic_shapes", "subquad.check.suite")
"""Modules that every process needs, imported once in the server that processes are forked from."""
END_SECONDS = 3.0
"""Time in which a process that waits for a question ends by itself before it is killed."""
START_SECONDS = 180.0
"""Time in which a process must be ready: the first one imports PyTorch, which takes long on a busy machine."""


class BrokenCallError(Exception):
    """Code of others raised, hung, or ended its process. The message is the rest of a sentence that begins with "it"."""


class Helper:
    """Answers questions in a process of its own, which is started again after it hung or ended."""

    def __init__(self, memory_bytes: int, preload: Sequence[str] = PRELOAD) -> None:
        self.memory_bytes = memory_bytes
        self.process: Any = None
        self.connection: Any = None
        self.is_waiting = False
        context(preload)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def ask(self, question: Callable[..., Any], *arguments: Any, seconds: float) -> Any:
        """Returns ``question(*arguments)``. Raises its `SubquadError`, or `BrokenCallError` for anything else."""
        if self.process is None:
            with interrupts_wait():
                self.process, self.connection = start_child(_serve, self.memory_bytes)
            self._receive(START_SECONDS)
        self.is_waiting = False
        with suppress(BrokenPipeError):  # a missing answer is detected below
            self.connection.send((question, arguments))
        kind, answer = self._receive(seconds)
        if kind == "refused":
            raise SubquadError(answer)
        if kind == "raised":
            raise BrokenCallError(answer)
        return answer

    def close(self) -> None:
        """Ends the process and those that it started, whatever they are doing.

        A process that waits for a question ends by itself: were it killed, Python would warn of what it leaves behind.
        """
        if self.process is None:
            return
        self.connection.close()
        if self.is_waiting:
            self.process.join(END_SECONDS)
        with suppress(psutil.NoSuchProcess):
            for child in psutil.Process(self.process.pid).children(recursive=True):
                with suppress(psutil.NoSuchProcess):
                    child.kill()
        self.process.kill()
        self.process.join()
        self.process, self.is_waiting = None, False

    def _receive(self, seconds: float) -> tuple[str, Any]:
        try:
            if not self.connection.poll(seconds):
                self.close()
                raise BrokenCallError(f"does not return within {seconds:.0f} s")
            answer: tuple[str, Any] = self.connection.recv()
        except (EOFError, ConnectionResetError):
            self.process.join()
            code = self.process.exitcode or 0
            self.close()
            raise BrokenCallError(_ended(code)) from None
        self.is_waiting = True
        return answer


def _ended(code: int) -> str:
    if code == -signal.SIGKILL:
        return "was killed, most likely for lack of memory"
    if code < 0:
        return f"crashes the process ({signal.Signals(-code).name})"
    return f"ends the process, with exit code {code}"


def _serve(parent: int, connection: Connection, memory_bytes: int) -> None:
    """Runs in the process: answers questions until it is ended."""
    import torch

    join_parent(parent)
    silence_output()
    torch.set_num_threads(1)
    limit_memory(memory_bytes)
    with suppress(EOFError, BrokenPipeError):
        connection.send(("", None))
        while True:
            question, arguments = connection.recv()
            connection.send(_answer(question, arguments))


def _answer(question: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[str, Any]:
    try:
        return "", question(*arguments)
    except SubquadError as error:
        return "refused", str(error)
    except SystemExit as ended:
        return "raised", f"ends the process (SystemExit: {ended.code})"
    except BaseException as error:  # code of others may raise anything
        return "raised", f"raises {sentence_of(error)}"
