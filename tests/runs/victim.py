"""`python -m tests.runs.victim FILE COUNT COMMAND ...` runs a command that kills itself at its COUNT-th change of files.

With 0 it does not. At the end, FILE has how many changes there were, and after how many seconds the first one was. Rows and
checkpoints are written at such short intervals that a tiny run has several, and `reproduce copy` has a scale of a few steps.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

BEGUN = time.time()
WRITING = os.O_WRONLY | os.O_RDWR
CHANGES = {"os.rename", "os.mkdir", "os.rmdir", "os.remove", "os.link", "os.truncate"}


class Killer:
    """Counts the changes, and kills the process at one of them."""

    def __init__(self, at: int) -> None:
        self.at, self.count, self.first = at, 0, 0.0

    def hear(self, event: str, given: tuple[Any, ...]) -> None:
        """Is told of everything that Python does to the system."""
        if event in CHANGES or (event == "open" and isinstance(given[2], int) and given[2] & WRITING):
            self.count += 1
            self.first = self.first or time.time() - BEGUN
            if self.count == self.at:
                os.kill(os.getpid(), signal.SIGKILL)


def main(file: Path, at: int, words: list[str]) -> int:
    """Runs the command."""
    from subquad import cli
    from subquad.conversion import engine, quality
    from subquad.experiments import copying
    from subquad.training import loop
    from tests.runs.words import TINY

    copying.SCALES["tiny"] = TINY
    engine.CHECKPOINT_SECONDS = loop.FLUSH_SECONDS = 0.01
    quality.DRAWS = 10
    killer = Killer(at)
    sys.addaudithook(killer.hear)
    code = cli.main(words)
    file.write_text(json.dumps({"changes": killer.count, "seconds": killer.first}))
    return code


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]))
