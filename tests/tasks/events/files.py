"""Files of events, in every format that is read."""

import json
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import pytest

from subquad.tasks.events import EventSequences


def write(tmp_path: Path, text: str, name: str = "t.csv") -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


def of(sequences: EventSequences, name: str) -> list[tuple[float, str]]:
    at = sequences.names.index(name)
    events = range(sequences.offsets[at], sequences.offsets[at + 1])
    return [(float(sequences.times[event]), sequences.type_names[sequences.types[event]]) for event in events]


def record(times: list[Any], types: list[Any], number: int = 0, kinds: int = 3) -> dict[str, Any]:
    gaps = [0.0, *(right - left for left, right in pairwise(times))] if None not in times else []
    return {
        "dim_process": kinds,
        "seq_idx": number,
        "seq_len": len(types),
        "time_since_start": times,
        "time_since_last_event": gaps,
        "type_event": types,
    }


def easytpp(tmp_path: Path, *, lines: bool = False, development: str = "valid") -> Path:
    parts = {
        "train": [record([0.0, 1.5, 2.0], [0, 1, 1]), record([0.0, 0.25], [1, 0], 1)],
        development: [record([0.0, 3.0], [1, 1])],
        "test": [record([0.0, 0.5], [0, 0])],
    }
    for name, records in parts.items():
        text = "".join(json.dumps(one) + "\n" for one in records) if lines else json.dumps(records)
        write(tmp_path, text, f"{name}.json")
    return tmp_path


def lines(tmp_path: Path, fold: int = 1) -> Path:
    train = range(20)
    write(tmp_path, "".join(f"0 {number + 0.5} 40.25\n" for number in train), f"time-{fold}-train.txt")
    write(tmp_path, "".join("1 2 1\n" for _ in train), f"event-{fold}-train.txt")
    write(tmp_path, "0.1 0.2 \n0.5 1.5\n\n", f"time-{fold}-test.txt")
    write(tmp_path, "1 4 \n2.0 2\n", f"event-{fold}-test.txt")
    return tmp_path


def many(tmp_path: Path, kind: str, sequences: int) -> Path:
    """As many sequences of three events."""
    folder = tmp_path / f"{kind}-{sequences}"
    folder.mkdir()
    names = range(sequences)
    if kind == "json":
        for split in ("train", "test"):
            write(folder, json.dumps([record([0.0, 1.0, 2.0], [0, 1, 2], name) for name in names]), f"{split}.json")
    elif kind == "text":
        for split, (what, line) in product(("train", "test"), (("time", "0 1 2\n"), ("event", "1 2 1\n"))):
            write(folder, line * sequences, f"{what}-1-{split}.txt")
    else:
        rows = [(f"s{name}", float(time), "ab"[time % 2]) for name in names for time in range(3)]
        write(folder, "id,time,type\n" + "".join(f"{name},{time},{kind}\n" for name, time, kind in rows), "t.csv")
        if kind == "parquet":
            pyarrow, parquet = (pytest.importorskip(name) for name in ("pyarrow", "pyarrow.parquet"))
            columns = dict(zip(("id", "time", "type"), map(list, zip(*rows, strict=True)), strict=True))
            parquet.write_table(pyarrow.table(columns), folder / "t.parquet")
        return folder / f"t.{kind}"
    return folder
