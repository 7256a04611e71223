"""Seconds and peak memory of reading many events, format by format: `python benchmarks/read_events.py`, on Linux.

Every format is read in a fresh process, whose peak is the largest resident size that the system saw. What the same process
holds after its imports alone is printed beside it.
"""

import argparse
import json
import multiprocessing
import random
import tempfile
import time
from collections.abc import Iterator
from itertools import pairwise
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

TYPES = 20
SPLITS = ("train", "dev", "test")
Sequences = list[tuple[list[float], list[int]]]


class Took(NamedTuple):
    """What reading took: seconds, megabytes of the process before and at most, and how many events there were."""

    seconds: float
    busy_seconds: float
    before: float
    peak: float
    events: int


def main() -> None:
    """Writes the files, reads each, and prints a line for it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sequences", type=int, default=100_000)
    parser.add_argument("--events", type=int, default=1_000_000)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        drawn = draw(given.sequences, given.events)
        for name, source in write(Path(folder), drawn):
            took = measure(source)
            assert took.events == sum(len(times) for times, _ in drawn), f"{took.events:,} events were read"
            times = f"{took.seconds:.1f} s ({took.busy_seconds:.1f} of the processor)"
            print(f"{name}: {times}, {took.peak:.0f} MB at most, {took.before:.0f} before reading", flush=True)


def draw(sequences: int, events: int) -> Sequences:
    """Sequences of about the same length, with at least two events each."""
    drawing = random.Random(0)
    found = []
    for _ in range(sequences):
        length = max(2, round(events / sequences * (0.5 + drawing.random())))
        times, now = [], 0.0
        for _ in range(length):
            now += drawing.expovariate(1.0)
            times.append(round(now, 6))
        found.append((times, [drawing.randrange(1, TYPES + 1) for _ in times]))
    return found


def write(folder: Path, drawn: Sequences) -> Iterator[tuple[str, Path]]:
    """The same events in every format, each with the path that is read."""
    parts = dict(zip(SPLITS, (drawn[at::3] for at in range(3)), strict=True))
    for name, lines in (("EasyTPP's JSON", False), ("EasyTPP's JSON lines", True)):
        own = folder / f"json-{lines}"
        own.mkdir()
        for split, part in parts.items():
            records = [json.dumps(record(number, *one)) for number, one in enumerate(part)]
            (own / f"{split}.json").write_text("\n".join(records) if lines else f"[{', '.join(records)}]")
        yield name, own
    own = folder / "text"
    own.mkdir()
    for split, part in (("train", drawn[1::2]), ("test", drawn[::2])):
        (own / f"time-1-{split}.txt").write_text("".join(" ".join(map(str, times)) + "\n" for times, _ in part))
        (own / f"event-1-{split}.txt").write_text("".join(" ".join(map(str, types)) + "\n" for _, types in part))
    yield "text pairs", own
    rows = [(f"s{number}", *event) for number, one in enumerate(drawn) for event in zip(*one, strict=True)]
    (folder / "e.csv").write_text("sequence,time,type\n" + "".join(f"{name},{time},{kind}\n" for name, time, kind in rows))
    yield "CSV", folder / "e.csv"
    import pyarrow
    from pyarrow import parquet

    columns = zip(("sequence", "time", "type"), zip(*rows, strict=True), strict=True)
    parquet.write_table(pyarrow.table({name: list(column) for name, column in columns}), folder / "e.parquet")
    yield "Parquet", folder / "e.parquet"


def record(number: int, times: list[float], types: list[int]) -> dict[str, object]:
    """As EasyTPP has it."""
    gaps = [0.0, *(right - left for left, right in pairwise(times))]
    sizes = {"dim_process": TYPES, "seq_idx": number, "seq_len": len(types)}
    return {**sizes, "time_since_start": times, "time_since_last_event": gaps, "type_event": types}


def measure(source: Path) -> Took:
    """What reading takes in a process of its own."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=read, args=(str(source), theirs))
    process.start()
    found: Took = ours.recv()
    process.join()
    return found


def read(source: str, answer: Connection) -> None:
    """Reads the events and sends what it took."""
    from subquad.tasks.events import load_splits

    before, start, worked = _peak(), time.perf_counter(), time.process_time()
    splits = load_splits(source)
    seconds, busy = time.perf_counter() - start, time.process_time() - worked
    answer.send(Took(seconds, busy, before, _peak(), sum(len(part.times) for part in splits)))


def _peak() -> float:
    """Megabytes. Linux's other figure, `ru_maxrss`, would count the process that started this one."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1e3


if __name__ == "__main__":
    main()
