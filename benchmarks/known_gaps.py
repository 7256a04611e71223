"""Event models on gaps whose true likelihood is known: nearly equal, repeated, whole numbers with ties, heavy-tailed.

    python benchmarks/known_gaps.py
    python benchmarks/known_gaps.py --sets reviews heavy --steps 300

Gaps depend on the previous type, and types on the previous one. A model that were better than the true process would be
rewarded for spikes that are narrower than the resolution of the times. Prints nats per event on the test sequences. Runs
that are already in --out are not made again.
"""

import argparse
import csv
import math
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from scipy.stats import norm

from subquad.experiments.base import is_finished
from subquad.results import Run
from subquad.statistics import Interval
from subquad.words import between

Rng = np.random.Generator
Gap = tuple[float, float]
"""A gap and the logarithm of its density, or for one that is recorded on a grid, of its probability by the cell's width."""

AFTER = np.array([[0.7, 0.1, 0.1, 0.1], [0.1, 0.7, 0.1, 0.1], [0.1, 0.1, 0.7, 0.1], [0.25, 0.25, 0.25, 0.25]])
"""Probability of each type after each type."""
PARTS = {"train": 500, "dev": 100, "test": 150}
"""Number of sequences of each split."""
EVENTS = 40
"""Number of events of a sequence."""
RESOLUTION = 1e-5
"""Width of the cell of a gap relative to the gap, where times are on no grid."""


def reviews(kind: int, rng: Rng) -> Gap:
    """Most gaps within half a percent of .8, the others exponential."""
    regular, width = (0.95 if kind < 2 else 0.6), 0.005
    gap = float(0.8 * np.exp(width * rng.standard_normal()) if rng.random() < regular else rng.exponential())
    near = norm.pdf(math.log(gap / 0.8) / width) / width / gap
    return gap, math.log(regular * near + (1 - regular) * math.exp(-gap))


def seconds(kind: int, rng: Rng) -> Gap:
    """Whole seconds, many of them exactly a day."""
    daily, rate = (0.6 if kind < 2 else 0.2), 1 / 40_000
    gap = 86_400.0 if rng.random() < daily else float(rng.geometric(rate))
    return gap, math.log(daily * (gap == 86_400.0) + (1 - daily) * rate * (1 - rate) ** (gap - 1))


def days(kind: int, rng: Rng) -> Gap:
    """Whole days, with ties, whose cell is half as wide as the others."""
    tied, rate = (0.5 if kind == 3 else 0.2), 0.4
    if rng.random() < tied:
        return 0.0, math.log(2 * tied)
    gap = float(rng.geometric(rate))
    return gap, math.log((1 - tied) * rate * (1 - rate) ** (gap - 1))


def atoms(kind: int, rng: Rng) -> Gap:
    """Continuous gaps, of which three tenths are exactly 1 whatever the type: a static mixture is the true process."""
    return _atom(0.3, rng)


def typed_atoms(kind: int, rng: Rng) -> Gap:
    """Continuous gaps, of which a share that depends on the type is exactly 1."""
    return _atom((0.7, 0.1, 0.3, 0.02)[kind], rng)


def _atom(share: float, rng: Rng) -> Gap:
    if rng.random() < share:
        return 1.0, math.log(share / RESOLUTION)
    gap = float(rng.exponential())
    return gap, math.log(1 - share) - gap


def heavy(kind: int, rng: Rng) -> Gap:
    """Lomax gaps: their variance is infinite."""
    power, scale = 1.2, (1.0, 10.0, 0.1, 3.0)[kind]
    gap = scale * float((1 - rng.random()) ** (-1 / power) - 1)
    return gap, math.log(power / scale) - (power + 1) * math.log1p(gap / scale)


def decades(kind: int, rng: Rng) -> Gap:
    """Log-normal gaps over ten orders of magnitude."""
    middle, width = (0.0, 2.0, -2.0, 1.0)[kind], 3.0
    z = float(rng.standard_normal())
    gap = math.exp(middle + width * z)
    return gap, float(norm.logpdf(z)) - math.log(width * gap)


SETS: dict[str, Callable[[int, Rng], Gap]] = {
    "reviews": reviews,
    "seconds": seconds,
    "days": days,
    "atoms": atoms,
    "typed-atoms": typed_atoms,
    "heavy": heavy,
    "decades": decades,
}


def main() -> None:
    """Trains a model on each set and prints it beside the true process and the baseline without the history of gaps."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS))
    parser.add_argument("--attention", default="linear")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--out", type=Path, default=Path("runs/known-gaps"))
    options = parser.parse_args()
    print("nats per event: the true process; the model minus it, 95% interval; the model; renewal-markov; model minus that,")
    print("and of which the times are")
    for name in options.sets:
        truth = write(options.out / "data" / name, SETS[name])
        words = ["--data", str(options.out / "data" / name), "--attention", options.attention, "--steps", str(options.steps)]
        rows = {row["metric"]: row for row in train(options.out / name, words).rows() if row.get("split") == "test"}
        model, above = rows["nll"], rows["nll_above_renewal-markov"]
        losses = [row for row in Run.open(options.out / name, "train").rows() if row["metric"] == "sequence_nll"]
        gaps = np.array([row["value"] for row in losses]) - truth
        beyond = Interval(gaps.mean(), *norm.interval(0.95, gaps.mean(), gaps.std() / math.sqrt(len(gaps))))
        beyond = Interval(*(end / (EVENTS - 1) for end in beyond))
        print(
            f"{name}: {truth.mean() / (EVENTS - 1):.3f}; {between(beyond, '+.3f')}; {model['value']:.3f}; "
            f"{rows['nll_of_renewal-markov']['value']:.3f}; {between(Interval.of_row(above), '+.3f')}; "
            f"{rows['nll_time']['value'] - rows['nll_of_renewal-markov']['time']:+.3f}",
            flush=True,
        )


def write(folder: Path, draw: Callable[[int, Rng], Gap]) -> np.ndarray:
    """Writes the splits of a set as tables and returns the true negative log-likelihood of each test sequence."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    truth: list[float] = []
    for part, count in PARTS.items():
        with (folder / f"{part}.csv").open("w", newline="") as file:
            table = csv.writer(file)
            table.writerow(["sequence", "time", "type"])
            for number in range(count):
                loss, events = _sequence(draw, rng)
                table.writerows([f"{part}-{number:04}", repr(time), f"type {kind}"] for time, kind in events)
                truth += [loss] if part == "test" else []
    return np.array(truth)


def _sequence(draw: Callable[[int, Rng], Gap], rng: Rng) -> tuple[float, Sequence[tuple[float, int]]]:
    """The negative log-likelihood of all events but the first of a random sequence, and its events."""
    time, kind, loss = 0.0, int(rng.integers(len(AFTER))), 0.0
    events = [(time, kind)]
    for _ in range(EVENTS - 1):
        gap, log_density = draw(kind, rng)
        following = int(rng.choice(len(AFTER), p=AFTER[kind]))
        loss -= log_density + math.log(AFTER[kind, following])
        time, kind = time + gap, following
        events.append((time, kind))
    return loss, events


def train(folder: Path, words: list[str]) -> Run:
    """Trains a model into a folder, or takes the one that is there."""
    if not is_finished(folder):
        command = [sys.executable, "-m", "subquad", "train", "events", *words, "--no-page", "--out", str(folder)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return Run.open(folder, "train")


if __name__ == "__main__":
    main()
