"""One run of each kind, as small as can be, made in this process."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from subquad.cli import main, trainings
from subquad.compare import plan
from subquad.experiments.copy.grid import SCALES
from subquad.measure import fits
from subquad.measure.workers import OUT_OF_MEMORY, Outcome
from subquad.training import checkpoints
from tests.cli import test_events, test_mlm
from tests.experiments.test_linformer import Done
from tests.runs.words import COMPARE, CONVERSION_CHECKPOINT_SECONDS, COPY, ERROR, EVERY, GRID, REPRODUCE, SIZE, TINY


def visit(candidates: dict[str, Any], limits: object, running: object = None) -> dict[str, Outcome]:
    """What a visit to cells finds, without a process: favor runs out of memory at 16 tokens."""
    outcomes = {}
    for name, candidate in candidates.items():
        length = candidate.prepare.args[0].length
        costs = {"softmax": length**2, "linear": 10 * length}
        fails = name == "favor" and length > 8
        outcomes[name] = Outcome(failure=OUT_OF_MEMORY, message="no") if fails else Outcome([costs.get(name, 99) * 1e-6], 9)
    return outcomes


def write_pages_quickly(patch: pytest.MonkeyPatch) -> None:
    """Charts of pages are made, but neither checked against their grammar nor packed with what draws them."""
    patch.setattr("altair.utils.schemapi.validate_jsonschema", lambda *given, **named: None)
    patch.setattr("subquad.report.page._scripts", lambda charts, script: iter(()))
    patch.setattr(fits.draw_costs, "__defaults__", (10,))


@contextmanager
def cheaply() -> Iterator[None]:
    """Inside the block, no process is started, and all checkpoints are kept, so that any moment can be gone back to."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan, "visit", visit)
        patch.setattr(plan, "context", lambda preload: None)
        patch.setattr(trainings, "start_process", Done)
        patch.setitem(SCALES, "tiny", TINY)
        patch.setattr("subquad.conversion.vectors.DRAWS", 10)
        patch.setattr("subquad.compare.error.PAIR_DRAWS", 10)
        patch.setattr(CONVERSION_CHECKPOINT_SECONDS, 0.0)
        patch.setattr(checkpoints, "KEEP", 1000)
        patch.setattr(checkpoints.save, "__kwdefaults__", {"keep": 1000})
        patch.setattr("time.sleep", lambda seconds: None)
        yield


def make(*words: str, out: Path) -> Path:
    """Runs a command that makes a run."""
    with cheaply():
        assert main([*words, "--out", str(out)]) == 0
    return out


def masked(folder: Path) -> Path:
    """A masked language model, to convert and to look at."""
    texts = test_mlm.write(folder / "texts")
    (texts / "picture.txt").unlink()
    options = ("--text", str(texts), "--vocabulary", "characters", "--attention", "softmax")
    size = ("--length", "12", "--held-out", "2", "--tested", "2")
    return make("train", "mlm", *SIZE, *EVERY, *size, *options, out=folder / "mlm")


def events_words(folder: Path) -> tuple[str, ...]:
    """The command that trains on events, for which there is data in the folder then."""
    data = test_events.write(folder / "events.csv")
    return ("train", "events", "--data", str(data), *SIZE, *EVERY, "--inner", "4", "--chunk", "3")


def convert_words(folder: Path) -> tuple[str, ...]:
    """The command that converts a model, which is in the folder then."""
    few = ("--steps", "2", "--tune-steps", "2", "--texts", "4", "--batch-tokens", "24", "--cost-lengths")
    return ("convert", str(masked(folder)), "--attention", "hybrid", "--block", "4", "--no-page", *few)


def looked_at(folder: Path) -> Path:
    """A spectrum."""
    return make("spectrum", str(masked(folder)), "--sequences", "1", "--length", "8", out=folder / "run")


MAKERS: dict[str, Callable[[Path], Path]] = {
    "compare": lambda folder: make("compare", *COMPARE, out=folder / "run"),
    "grid": lambda folder: make("compare", *GRID, out=folder / "run"),
    "copy": lambda folder: make("train", *COPY, out=folder / "run"),
    "mlm": masked,
    "events": lambda folder: make(*events_words(folder), out=folder / "run"),
    "convert": lambda folder: make(*convert_words(folder), out=folder / "run"),
    "spectrum": looked_at,
    "error": lambda folder: make(*ERROR, out=folder / "run"),
    "reproduce": lambda folder: make(*REPRODUCE, out=folder / "run"),
}
"""What makes a run of each kind in a folder."""
