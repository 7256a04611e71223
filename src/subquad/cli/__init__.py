"""The commands. Each is a module with a `main`, imported when it is asked for, so that `subquad --help` answers at once."""

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
    USER_MISTAKE: "something that the user can mend: a sentence on standard error says what",
    BUG: "a bug in subquad",
    INTERRUPTED: "interrupted by Ctrl-C or SIGTERM; what was done is kept",
}


class Command(NamedTuple):
    """Where a command is, and what it does."""

    module: str
    about: str


COMMANDS: dict[str, Command] = {
    "compare": Command(
        "subquad.cli.compare", "from which length each attention pays on this machine, in time and in memory"
    ),
    "advise": Command("subquad.cli.advise", "which attention to use for a length, from what was measured on this machine"),
    "train": Command("subquad.cli.train", "a model on a task, with any attention"),
    "convert": Command("subquad.cli.convert", "a trained model to another attention, with what is left of its quality"),
    "predict": Command("subquad.cli.predict", "what a trained model answers to a sequence"),
    "spectrum": Command("subquad.cli.spectrum", "how low the rank of a model's attention is, by layer and head"),
    "reproduce": Command("subquad.cli.reproduce", "a published experiment, with a verdict on each of its claims"),
    "report": Command("subquad.cli.report", "the page of one or several runs, and each chart as PNG and SVG"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command and gives its exit code: see `EXIT_CODES`. Without arguments, those of this process are taken."""
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
    """Makes sentences of what else this process would print: warnings, and errors in threads. Libraries log errors only."""
    if not os.environ.get("SUBQUAD_DEBUG"):
        for library in ("HF_HUB", "TRANSFORMERS", "DATASETS"):
            os.environ.setdefault(f"{library}_VERBOSITY", "error")
        warnings.showwarning = lambda message, category, *_: say(f"{category.__name__}: {message}")
        threading.excepthook = lambda failure: say(_bug(failure.exc_value))
        sys.unraisablehook = lambda failure: say(_bug(failure.exc_value))


def _bug(error: BaseException | None) -> str:
    """The sentence for an error that is nobody's mistake but ours."""
    return (
        f"internal error, {type(error).__name__}: {str(error)[:200]}; this is a bug: run the command again with "
        "SUBQUAD_DEBUG=1 and report what it prints"
    )


def _explain(error: Exception) -> int:
    """Says what went wrong in one sentence, and gives the exit code."""
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
    """The exit code, in view of standard output: one that is full is a mistake, one that is read no further is none."""
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
    try:
        code: int = import_module(COMMANDS[words[0]].module).main(words[1:])
    except SystemExit as ended:  # the parser has printed help, or what is wrong with the command line
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
