"""A run that is stopped before its last checkpoint and goes on."""

import shutil
from pathlib import Path

from subquad.cli import main
from subquad.results import Run


def check_it_goes_on(run: Path) -> None:
    """Takes the last of two checkpoints out of a run of six steps, and goes on: its rows are the same but for the speed."""
    whole = Run.open(run).rows()
    (last,) = (run / "checkpoint").glob("step-*6")
    shutil.rmtree(last)
    assert main(["train", "--resume", str(run)]) == 0
    again = Run.open(run).rows()
    speed = "tokens_per_second"
    assert [row for row in again if row["metric"] != speed] == [row for row in whole if row["metric"] != speed]
