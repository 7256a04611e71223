"""Seconds and peak memory of reading, splitting and batching many clients from Parquet, on Linux.

`python benchmarks/read_clients.py` writes ten million events of 200,000 clients, in the order of time as a bank has them,
with eight columns, and reads them in a fresh process.
"""

import argparse
import multiprocessing
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

import numpy as np

ROWS = 500_000  # number of rows that are written at a time
CITIES, CODES = 3000, 180


class Took(NamedTuple):
    """Seconds of each part of the work, and megabytes of the process before it and at most."""

    read: float
    learned: float
    batches: float
    before: float
    peak: float
    clients: int
    events: int


def main() -> None:
    """Writes the file, reads it, and prints what that took."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=200_000)
    parser.add_argument("--events", type=int, default=10_000_000)
    parser.add_argument("--batches", type=int, default=200)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "events.parquet"
        write(path, options.clients, options.events)
        print(f"{options.events:,} events of {options.clients:,} clients, {path.stat().st_size / 1e6:.0f} MB", flush=True)
        took = measure(path, options.batches)
    assert took.events == options.events, f"{took.events:,} events were read"
    print(
        f"read and split in {took.read:.1f} s, vocabularies and scales in {took.learned:.1f} s, {options.batches} batches "
        f"of 32 in {took.batches:.1f} s; {took.peak:.0f} MB at most, {took.before:.0f} before"
    )


def write(path: Path, clients: int, events: int) -> None:
    """Writes events in the order of time, with a label that the codes tell a little about."""
    import pyarrow
    from pyarrow import parquet

    rng = np.random.default_rng(0)
    cities = np.array([f"city {number}" for number in range(CITIES)])
    schema = pyarrow.schema(
        {
            **{"client": "string", "time": pyarrow.timestamp("s"), "code": "int32", "amount": "float64"},
            **{"city": "string", "online": "bool", "balance": "float32", "label": "int8"},
        }
    )
    with parquet.ParquetWriter(path, schema) as writer:
        for first in range(0, events, ROWS):
            rows = min(ROWS, events - first)
            client = rng.integers(0, clients, rows) if first else np.arange(rows) % clients
            times = np.sort(1_600_000_000 + (first + rng.random(rows) * rows) * 3.0).astype(np.int64)
            columns = [
                np.char.add("c", client.astype(str)),
                times.astype("datetime64[s]"),
                (rng.integers(0, CODES, rows) + client % 2).astype(np.int32),
                np.round(rng.lognormal(3.0, 1.0, rows), 2),
                cities[(rng.pareto(1.0, rows) * 10).astype(np.int64) % CITIES],
                rng.random(rows) < 0.3,
                rng.normal(1000.0, 300.0, rows).astype(np.float32),
                (client % 2).astype(np.int8),
            ]
            arrays = [pyarrow.array(column).cast(field.type) for column, field in zip(columns, schema, strict=True)]
            writer.write_table(pyarrow.Table.from_arrays(arrays, schema=schema))


def measure(path: Path, batches: int) -> Took:
    """What the work takes in a process of its own."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=read, args=(str(path), batches, theirs))
    process.start()
    theirs.close()
    took: Took = ours.recv()
    process.join()
    return took


def read(path: str, batches: int, answer: Connection) -> None:
    """Reads and splits the clients, learns features, draws batches, and sends what that took."""
    import torch

    from subquad.tasks import Transactions

    task = Transactions(data=path, wide="off").prepare()
    before, start = _peak(), time.perf_counter()
    histories, _ = task.data
    read_seconds = time.perf_counter() - start
    start = time.perf_counter()
    assert task.features.clients == len(histories.clients)
    learned_seconds = time.perf_counter() - start
    start = time.perf_counter()
    for number in range(batches):
        task.batch(32, torch.Generator().manual_seed(number))
    seconds = (read_seconds, learned_seconds, time.perf_counter() - start)
    answer.send(Took(*seconds, before, _peak(), len(histories.clients), len(histories.times)))


def _peak() -> float:
    """Largest resident size of this process so far, in megabytes."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1e3


if __name__ == "__main__":
    main()
