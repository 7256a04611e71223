"""The commands. Each is a module with a `main`, imported when it is asked for, so that `subquad --help` answers at once."""

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import NamedTuple

from subquad.errors import SubquadError

USER_MISTAKE, INTERRUPTED = 2, 130


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
    """Runs a command. Its exit code: 0, 2 for a mistake that the user can mend, 130 for Ctrl-C."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        if not given or given[0] in ("-h", "--help"):
            print(_help())
            return 0
        if given[0] == "--version":
            from importlib.metadata import version

            print(f"subquad {version('subquad')}")
            return 0
        return _run(given[0], given[1:])
    except SubquadError as error:
        print(f"subquad: {error}", file=sys.stderr)
        return USER_MISTAKE
    except KeyboardInterrupt:
        print("subquad: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # the reader of our output, such as `head`, has gone
        sys.stdout = None
        return 0


def _run(name: str, rest: Sequence[str]) -> int:
    if name not in COMMANDS:
        from subquad.cli.values import choose

        choose("command", name, COMMANDS)
    code: int = import_module(COMMANDS[name].module).main(rest)
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
