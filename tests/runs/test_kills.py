"""Runs that are killed again and again come to the same end, and leave no processes."""

import sys
from pathlib import Path

import pytest

from tests.runs.killing import Case

KILLS = {"compare": 36, "copy": 56, "events": 40, "convert": 40, "reproduce": 28}
"""How often each command is killed by `make test-kills`: 200 times in all."""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes that are left are found in /proc")


@pytest.mark.kills
@pytest.mark.parametrize("part", range(2))
@pytest.mark.parametrize("name", KILLS)
def test_killed_runs(name: str, part: int, tmp_path: Path) -> None:
    """In two parts, so that they can be done at the same time."""
    tally = Case(name, tmp_path, seed=part).torment(KILLS[name] // 2)
    print(f"{name}: {tally}")


def test_a_few_kills(tmp_path: Path) -> None:
    assert Case("copy", tmp_path, seed=10).torment(4).kills == 4
