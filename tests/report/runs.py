"""A run that never ran, as a folder."""

from pathlib import Path

from subquad.machine import describe
from subquad.results import Run
from tests.compare.rows import LENGTHS, TRAITS, failed, rows


def make_run(folder: Path, *, seed: int = 0) -> Run:
    """A comparison of softmax, linear and favor."""
    about = {
        "mechanisms": TRAITS,
        "machine": describe(),
        "versions": {"python": "3.11", "subquad": "0.1.0"},
        "command": "subquad compare --lengths 128..4096",
        "started": f"2026-01-01 12:00:0{seed} UTC",
    }
    run = Run.create(folder, "compare", about)
    run.append([*rows(seed=seed), failed("favor", "bidirectional", "training", 8192)])
    sizes = [("parameters", 3_150_000, "numbers"), ("parameter_bytes", 12_600_000, "bytes")]
    run.append(
        {
            "metric": metric,
            "value": value,
            "unit": unit,
            "mechanism": "softmax",
            "length": length,
            "heads": 8,
            "head_dim": 64,
        }
        for metric, value, unit in sizes
        for length in LENGTHS
    )
    return run
