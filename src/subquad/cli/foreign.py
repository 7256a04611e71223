"""Errors about data that name an option of another command: the command that was typed does not take it."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from typing import Any

from subquad.errors import SubquadError

OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]*")


@contextmanager
def options_of_train(command: type[Any], instead: str) -> Iterator[None]:
    """Adds to errors that name options which `command` does not have that they are options of `subquad train`.

    `instead` says what to do in the command.
    """
    try:
        yield
    except SubquadError as error:
        known = {f"--{field.name.replace('_', '-')}" for field in fields(command)}
        foreign = [name for name in dict.fromkeys(OPTION.findall(str(error))) if name not in known]
        if not foreign:
            raise
        are = "is an option" if len(foreign) == 1 else "are options"
        raise SubquadError(f"{error} ({', '.join(foreign)} {are} of `subquad train`; {instead})") from None
