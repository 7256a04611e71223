"""Standard input, output and error, in whatever state a command finds them: closed, full, or without UTF-8."""

import io
import os
import sys
from contextlib import suppress
from typing import IO

from subquad.files import because

LONGEST_SENTENCE = 2000
"""Characters of a sentence on standard error, after which it is cut: names in it can be of any length."""


def prepare_streams() -> None:
    """Makes the three streams usable: a closed one leads nowhere, and letters that its encoding lacks become "?"."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):  # in the order of their file descriptors
        if getattr(sys, name) is None:
            stream = open(os.devnull, mode, encoding="utf-8")  # noqa: SIM115, PTH123, stays open to the end
            os.set_inheritable(stream.fileno(), True)  # else a file that a child opens would become its standard output
            setattr(sys, name, stream)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def is_stdin_closed() -> bool:
    """Whether `prepare_streams` found no standard input. An empty one is not closed."""
    return getattr(sys.stdin, "name", None) == os.devnull


def say(sentence: str) -> None:
    """Prints a sentence for the user on standard error, in one line and without control characters."""
    shown = "".join(map(_shown, sentence))
    cut = shown if len(shown) <= LONGEST_SENTENCE else f"{shown[:LONGEST_SENTENCE]}..."
    try:
        print(f"subquad: {cut}", file=sys.stderr, flush=True)
    except (OSError, ValueError):  # where standard error cannot be written, there is nobody to tell
        silence(sys.stderr)


def _shown(letter: str) -> str:
    if letter.isprintable():
        return letter
    return " " if letter.isspace() else letter.encode("unicode_escape").decode()


def stdout_problem() -> OSError | None:
    """Why standard output cannot be written, if it cannot: nobody reads it any more, or the disk is full."""
    try:
        sys.stdout.flush()
    except OSError as error:
        return error
    return None


def silence(stream: IO[str]) -> None:
    """Sends what is still printed nowhere, so that flushing it at exit does not fail."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


class TolerantStdout(io.TextIOBase):
    """Standard output for commands whose work is worth more than what they print.

    Once it cannot be written, as behind ``| head -1`` or on a full disk, the work goes on without it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.stream, self.has_failed = sys.stdout, False

    def write(self, text: str) -> int:
        if not self.has_failed:
            try:
                self.stream.write(text)
            except OSError as error:
                self._give_up(error)
        return len(text)

    def flush(self) -> None:
        if not self.has_failed:
            try:
                self.stream.flush()
            except OSError as error:
                self._give_up(error)

    def isatty(self) -> bool:
        return self.stream.isatty()

    def fileno(self) -> int:
        return self.stream.fileno()

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self.stream.encoding

    def _give_up(self, error: OSError) -> None:
        self.has_failed = True
        is_unread = isinstance(error, BrokenPipeError)
        why = "nobody reads standard output any more" if is_unread else f"cannot write standard output: {because(error)}"
        say(f"{why}; the work goes on without it")
