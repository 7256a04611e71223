"""Standard input, output and error, made robust against closed or full streams and other encodings."""

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO, Any, cast

from subquad.files import because

LONGEST_SENTENCE = 2000
"""Largest number of characters of a sentence on standard error; longer ones are cut."""


def prepare_streams() -> None:
    """Replaces closed streams by the null device, and prints characters that an encoding lacks as "?"."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):  # in the order of file descriptors
        if getattr(sys, name) is None:
            stream = open(os.devnull, mode, encoding="utf-8")  # noqa: SIM115, PTH123, stays open to the end
            os.set_inheritable(stream.fileno(), True)  # else a child's first opened file would become its standard output
            setattr(sys, name, stream)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def is_stdin_closed() -> bool:
    """Whether `prepare_streams` replaced a closed standard input. An empty one is not closed."""
    return getattr(sys.stdin, "name", None) == os.devnull


def say(sentence: str) -> None:
    """Prints a sentence for the user on standard error, in one line and without control characters."""
    shown = "".join(map(_shown, sentence))
    cut = shown if len(shown) <= LONGEST_SENTENCE else f"{shown[:LONGEST_SENTENCE]}..."
    try:
        print(f"subquad: {cut}", file=sys.stderr, flush=True)
    except (OSError, ValueError):  # standard error cannot be written either
        silence(sys.stderr)


def _shown(letter: str) -> str:
    if letter.isprintable():
        return letter
    return " " if letter.isspace() else letter.encode("unicode_escape").decode()


def silence(stream: IO[str]) -> None:
    """Redirects a stream to the null device, so that flushing it at exit does not fail."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


class WatchedStdout:
    """Standard output that remembers the first error of writing, buffered or not."""

    def __init__(self, stream: Any) -> None:
        self.stream, self.problem = stream, cast(OSError | None, None)

    def write(self, text: str) -> int:
        """Writes to the stream, and remembers the first failure."""
        with self._remembering():
            return int(self.stream.write(text))

    def flush(self) -> None:
        """Flushes the stream, and remembers the first failure."""
        with self._remembering():
            self.stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    @contextmanager
    def _remembering(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.problem = self.problem or error
            raise


class TolerantStdout:
    """Standard output for commands whose work matters more than what they print.

    After the first failure, as with ``| head -1`` or on a full disk, further output is dropped and the command continues.
    """

    def __init__(self) -> None:
        self.stream, self.has_failed = sys.stdout, False

    def write(self, text: str) -> int:
        """Writes to the stream unless it has failed."""
        if not self.has_failed:
            with self._tolerating():
                self.stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Flushes the stream unless it has failed."""
        if not self.has_failed:
            with self._tolerating():
                self.stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    @contextmanager
    def _tolerating(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.has_failed = True
            silence(self.stream)  # flushing its buffer would fail again, for example before a fork
            say(f"{stdout_sentence(error)}; the work goes on without it")


def stdout_sentence(error: OSError) -> str:
    """Returns a sentence on why standard output cannot be written."""
    if isinstance(error, BrokenPipeError):
        return "nobody reads standard output any more"
    return f"cannot write standard output: {because(error)}"
