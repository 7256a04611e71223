"""`python -m tests.runs`: kills runs of every command at random moments, and says how often, when, and what came of it."""

import argparse
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from pathlib import Path
from random import Random

from tests.importing import import_everything
from tests.runs.killing import COMMANDS, Story, Whole, shorten, summary, torment

KILLS = {"compare": 34, "copy": 52, "events": 50, "convert": 48, "reproduce": 16}
"""How often each command is killed, 200 times in all."""
CHAIN = (1, 1, 2, 3)
"""How often one run is killed, drawn at random."""


def main() -> int:
    """The exit code is 1 if a run did not come to the same end, or left a process."""
    options = _parser().parse_args()
    os.environ |= {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    begun = time.monotonic()
    import_everything()
    shorten()
    kills = dict(options.kills) or KILLS
    with tempfile.TemporaryDirectory(prefix="subquad-kills-") as scratch, _pool(options.jobs) as pool:
        wholes = {name: pool.submit(Whole.make, name, Path(scratch) / name) for name in kills}
        ready = {name: whole.result() for name, whole in wholes.items()}
        for whole in ready.values():
            print(f"{whole.command}, not killed: {whole.seconds:.1f} s, {whole.changes} changes of files", flush=True)
        stories = []
        for story in _torment_all(pool, options.jobs, ready, kills, options.seed, Path(scratch)):
            stories.append(story)
            for problem in story.problems:
                print(f"FAILED {story.command} {story.number}, killed {story.phases} {story.changes}: {problem}", flush=True)
    for name in kills:
        print(f"{name}: {summary([story for story in stories if story.command == name])}")
    print(f"{sum(len(story.phases) for story in stories)} kills in {time.monotonic() - begun:.0f} s")
    return 1 if any(story.problems for story in stories) else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.runs")
    usual = " ".join(f"{name}={count}" for name, count in KILLS.items())
    parser.add_argument("kills", nargs="*", type=_kills, metavar="COMMAND=COUNT", help=f"{usual} unless told")
    parser.add_argument("--seed", type=int, default=0, help="of the random moments")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="runs at a time")
    return parser


def _kills(words: str) -> tuple[str, int]:
    name, _, count = words.partition("=")
    if name not in COMMANDS:
        raise argparse.ArgumentTypeError(f"there is no command {name}: choose from {', '.join(COMMANDS)}")
    return name, int(count)


def _pool(jobs: int) -> ProcessPoolExecutor:
    """Processes that are forked from this one, which has imported everything and computed nothing."""
    return ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("fork"))


def _torment_all(
    pool: ProcessPoolExecutor, jobs: int, wholes: Mapping[str, Whole], kills: Mapping[str, int], seed: int, scratch: Path
) -> Iterator[Story]:
    """Stories in the order in which they end. A run that came to its end before it was killed gives way to another one."""
    left = dict(kills)
    running: dict[Future[Story], int] = {}
    number = 0
    while running or any(left.values()):
        while len(running) < jobs and any(left.values()):
            name = max(left, key=lambda name: left[name] / kills[name])
            random = Random(f"{seed} {name} {number}")
            count = min(left[name], random.choice(CHAIN))
            left[name] -= count
            running[pool.submit(torment, wholes[name], number, count, random, scratch / f"{name}-{number}")] = count
            number += 1
        for ended in wait(running, return_when=FIRST_COMPLETED).done:
            story, count = ended.result(), running.pop(ended)
            left[story.command] += 0 if story.problems else count - len(story.phases)
            yield story


if __name__ == "__main__":
    sys.exit(main())
