"""Kills runs at random moments, goes on with them, and compares their ends with that of a run that was not killed."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import subquad
from tests.runs.made import convert_words, events_words
from tests.runs.states import same_rows, same_weights
from tests.runs.words import COPY, REPRODUCE, SETTING

ROOT = Path(__file__).parents[2]
LINGER_SECONDS = 5.0
"""How long processes of a killed command may live on."""
TOKEN = "SUBQUAD_KILLED"
"""The variable by which processes of a command are told from others: children inherit it."""
MOST = 8
"""Kills of one run, after which it is let go on to its end."""
COMPARE = ("compare", *SETTING, "--mechanisms", "linear", "--what", "forward", "--causal", "--lengths", "8", "16")
COMMANDS: dict[str, Callable[[Path], tuple[str, ...]]] = {
    "compare": lambda folder: (*COMPARE, "--budget", "600"),
    "copy": lambda folder: ("train", *COPY, "--steps", "60", "--checkpoint-every", "7"),
    "events": events_words,
    "convert": convert_words,
    "reproduce": lambda folder: REPRODUCE,
}
"""The words of each command, whose inputs are in the folder then."""


@dataclass
class Tally:
    """What was done, and where runs were killed."""

    kills: int = 0
    runs: int = 0
    moments: dict[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        where = ", ".join(f"{count} {name}" for name, count in sorted(self.moments.items()))
        return f"{self.kills} kills of {self.runs} runs: {where}"


class Case:
    """A command that makes a run, how it is gone on with, and a run of it that was not killed."""

    def __init__(self, name: str, folder: Path, seed: int) -> None:
        self.name, self.words, self.folder = name, COMMANDS[name](folder), folder
        self.random = random.Random(f"{name} {seed}")
        self.whole, self.told = folder / "whole", folder / "told.json"
        begun = time.monotonic()
        process = self.start(self.whole, 0)
        _, said = process.communicate(timeout=600)
        assert process.returncode == 0, said
        self.seconds = time.monotonic() - begun
        told = json.loads(self.told.read_text())
        self.changes, self.first = told["changes"], told["seconds"]

    def start(self, run: Path, kill_at: int) -> "subprocess.Popen[str]":
        """Starts the command, or goes on where there is a run already."""
        again = [self.words[0], "--resume", str(run)] if self.words[0] != "reproduce" else [*self.words, "--out", str(run)]
        words = again if (run / "run.json").exists() else [*self.words, "--out", str(run)]
        paths = (str(Path(subquad.__file__).parents[1]), str(ROOT))
        return subprocess.Popen(
            [sys.executable, "-m", "tests.runs.victim", str(self.told), str(kill_at), *words],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1", TOKEN: str(run)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )

    def torment(self, kills: int) -> Tally:
        """Kills runs so many times in all, and checks the end of each."""
        tally, number = Tally(), 0
        while tally.kills < kills:
            run = self.folder / f"run-{number}"
            number += 1
            for _ in range(min(MOST, kills - tally.kills)):
                if not self.kill(run, tally):
                    break
            else:
                process = self.start(run, 0)
                _, said = process.communicate(timeout=600)
                assert process.returncode == 0, f"{self.name} does not go on: {said}"
            tally.runs += 1
            assert same_rows(run, self.whole), f"{run} has other rows than {self.whole}"
            assert same_weights(run, self.whole), f"{run} has other weights than {self.whole}"
            shutil.rmtree(run)
        return tally

    def kill(self, run: Path, tally: Tally) -> bool:
        """Runs the command until it is killed at a random moment. Gives whether it was, or came to its end before."""
        way = self.random.choice(("any time", "while it works", "at a change of files"))
        delay = self.random.uniform(0.0 if way == "any time" else self.first, self.seconds)
        by_time = way != "at a change of files"
        process = self.start(run, 0 if by_time else self.random.randint(1, self.changes))
        try:
            _, said = process.communicate(timeout=delay if by_time else 600)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            _, said = process.communicate()
        left = linger(run)
        assert not left, f"{self.name} left processes: {left}"
        if process.returncode != -signal.SIGKILL:
            assert process.returncode == 0, f"{self.name} does not go on: {said}"
            return False
        tally.kills += 1
        moment = _moment(run) if by_time else way
        tally.moments[moment] = tally.moments.get(moment, 0) + 1
        return True


def _moment(run: Path) -> str:
    """What a run that was just killed had come to, in words."""
    rows = run / "rows.jsonl"
    if not (run / "run.json").exists():
        return "before the run was there"
    if any(run.rglob("*.part")):
        return "while a file or a checkpoint was written"
    if not any(path.stat().st_size for path in run.rglob("rows.jsonl")):
        return "before the first row"
    if (run / "report.html").exists():
        return "after the page was written"
    return "before the first checkpoint" if rows.exists() and not any(run.rglob("checkpoint/step-*")) else "later"


def linger(run: Path) -> list[str]:
    """The processes of a command that are left after it was killed and some seconds have passed."""
    deadline = time.monotonic() + LINGER_SECONDS
    while (left := _processes(f"{TOKEN}={run}".encode())) and time.monotonic() < deadline:
        time.sleep(0.05)
    return left


def _processes(token: bytes) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if token in (path / "environ").read_bytes().split(b"\0") and b") Z" not in (path / "stat").read_bytes():
                found.append((path / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:  # it has ended
            continue
    return found
