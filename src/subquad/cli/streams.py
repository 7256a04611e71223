"""Standard input, output and error, in whatever state a command finds them: closed, full, or without UTF-8."""

import io
import os
import sys
from contextlib import suppress


def prepare_streams() -> None:
    """Makes the three streams usable: a closed one leads nowhere, and letters that its encoding lacks become "?"."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):  # in the order of their file descriptors
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115, PTH123, stays open to the end
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def say(sentence: str) -> None:
    """Prints a sentence for the user on standard error."""
    with suppress(OSError, ValueError):  # where standard error cannot be written, there is nobody to tell
        print(f"subquad: {sentence}", file=sys.stderr, flush=True)


def silence_stdout() -> None:
    """Sends what is still printed nowhere, so that flushing it at exit does not fail."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
