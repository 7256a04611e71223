"""The commands. Each is a module with a `main` that is imported on use, so that `subquad --help` is fast."""

import os
import sys
import threading
import traceback
import warnings
from collections.abc import Sequence
from contextlib import redirect_stdout, suppress
from importlib import import_module
from typing import Any, NamedTuple

from subquad.cli.explanations import explanation
from subquad.cli.signals import ends_like_ctrl_c
from subquad.cli.streams import WatchedStdout, prepare_streams, say, silence, stdout_sentence

CHECK_FAILED, USER_MISTAKE, BUG, INTERRUPTED = 1, 2, 70, 130
EXIT_CODES = {
    0: "done",
    CHECK_FAILED: "a check that was asked for did not hold",
    USER_MISTAKE: "a mistake in the input: a sentence on standard error says what to change",
    BUG: "a bug in subquad",
    INTERRUPTED: "interrupted by Ctrl-C or SIGTERM; what was done is kept",
}


class Command(NamedTuple):
    """The module of a command, and its description in the help."""

    module: str
    about: str


COMMANDS: dict[str, Command] = {
    "compare": Command("subquad.cli.compare", "measure from which length each attention pays, in time and memory"),
    "advise": Command("subquad.cli.advise", "say which attention to use for a length, from measurements on this machine"),
    "choose": Command("subquad.cli.choose", "race attentions on your sequences, and recommend one with its evidence"),
    "train": Command("subquad.cli.train", "train a model on a task, with any attention"),
    "convert": Command("subquad.cli.convert", "convert a trained model to another attention, and measure its quality"),
    "predict": Command("subquad.cli.predict", "print the answer of a trained model to a sequence"),
    "embed": Command("subquad.cli.embed", "write a vector for each client of a file, by a trained model"),
    "spectrum": Command("subquad.cli.spectrum", "measure the rank of a model's attention matrices, by layer and head"),
    "error": Command("subquad.cli.error", "measure how far FAVOR+ is from exact attention, by number of features"),
    "check": Command("subquad.cli.check", "ask whether an attention is what it says: padding, future, gradients, ..."),
    "reproduce": Command("subquad.cli.reproduce", "repeat a published experiment, with a verdict on each of its claims"),
    "report": Command("subquad.cli.report", "write the page of one or several runs, and each chart as PNG and SVG"),
}


WITHOUT_MECHANISMS = ("advise", "report")
"""Commands that only read rows."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit code (see `EXIT_CODES`). `arguments` defaults to those of this process."""
    prepare_streams()
    if arguments is None:
        _quiet_the_rest()
    words = list(sys.argv[1:] if arguments is None else arguments)
    stdout: Any = WatchedStdout(sys.stdout)
    with redirect_stdout(stdout):
        try:
            with ends_like_ctrl_c():
                code = _run(words)
        except KeyboardInterrupt:
            say("interrupted")
            code = INTERRUPTED
        except Exception as error:
            code = 0 if error is stdout.problem else _explain(error)
        return _finish(code, stdout)


def _quiet_the_rest() -> None:
    """Prints warnings and errors in threads as single sentences, and lets libraries log errors only."""
    if not os.environ.get("SUBQUAD_DEBUG"):
        for library in ("HF_HUB", "TRANSFORMERS", "DATASETS"):
            os.environ.setdefault(f"{library}_VERBOSITY", "error")
        warnings.showwarning = lambda message, category, *_: say(f"{category.__name__}: {message}")
        threading.excepthook = lambda failure: say(_bug(failure.exc_value))
        sys.unraisablehook = lambda failure: say(_bug(failure.exc_value))


def _bug(error: BaseException | None) -> str:
    """Returns the sentence for an error that is a bug in subquad."""
    return (
        f"internal error, {type(error).__name__}: {str(error)[:200]}; this is a bug: run the command again with "
        "SUBQUAD_DEBUG=1 and report what it prints"
    )


def _explain(error: Exception) -> int:
    """Prints what went wrong in one sentence, and returns the exit code."""
    if os.environ.get("SUBQUAD_DEBUG"):
        with suppress(OSError):
            traceback.print_exception(error)
    sentence = explanation(error)
    if sentence is None:
        say(_bug(error))
        return BUG
    say(sentence)
    return USER_MISTAKE


def _finish(code: int, stdout: WatchedStdout) -> int:
    """Returns the exit code: a standard output that cannot be written is a mistake, but not a closed pipe."""
    with suppress(OSError):
        stdout.flush()
    if stdout.problem is None:
        return code
    silence(stdout.stream)
    if isinstance(stdout.problem, BrokenPipeError):
        return code
    say(stdout_sentence(stdout.problem))
    return code or USER_MISTAKE


def _run(words: Sequence[str]) -> int:
    if not words or words[0] in ("-h", "--help"):
        print(_help())
        return 0
    if words[0] == "--version":
        from importlib.metadata import version

        print(f"subquad {version('subquad')}")
        return 0
    if words[0] not in COMMANDS:
        from subquad.cli.values import choose

        choose("command", words[0], COMMANDS)
    if words[0] not in WITHOUT_MECHANISMS:
        from subquad.cli.installed import join_installed

        join_installed(say)
    try:
        code: int = import_module(COMMANDS[words[0]].module).main(words[1:])
    except SystemExit as ended:  # the parser has printed help or an error message
        return ended.code if isinstance(ended.code, int) else 0
    return code


def _help() -> str:
    wide = max(map(len, COMMANDS))
    lines = [f"  {name:<{wide}}  {command.about}" for name, command in COMMANDS.items()]
    return "\n".join(
        [
            "usage: subquad COMMAND [options]",
            "",
            "Find out which attention your sequences need, then use it.",
            "",
            *lines,
            "",
            "`subquad COMMAND --help` lists a command's options.",
        ]
    )
