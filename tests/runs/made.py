"""One run of each kind, as small as can be, made in this process."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from subquad.cli import main, trainings
from subquad.experiments import copying
from subquad.experiments.compare import plan
from subquad.measure.workers import OUT_OF_MEMORY, Outcome
from subquad.training import checkpoints
from tests.cli import test_events, test_mlm
from tests.experiments.test_linformer_study import Done

SIZE = ("--layers", "1", "--heads", "1", "--width", "4", "--batch", "4", "--steps", "6")
EVERY = ("--evaluate-every", "2", "--checkpoint-every", "2", "--no-page")
COPY = ("copy", *SIZE, *EVERY, "--length", "6", "--held-out", "2", "--dropout", "0.1")
SETTING = ("--heads", "1", "--width", "2", "--threads", "1")
COMPARE = (*SETTING, "--mechanisms", "linear", "favor", "--lengths", "8", "16", "--what", "forward", "step", "--causal")
GRID = (*SETTING, "--grid", "linformer", "--lengths", "512", "1024")
TINY = replace(
    copying.SCALES["quick"],
    attentions=("softmax", "linear"),
    lengths=(6,),
    seeds=(0,),
    arguments=("--layers", "1", "--heads", "1", "--width", "4", "--batch", "4", "--steps", "4", "--held-out", "2"),
    timing=("--what", "update", *SETTING, "--mechanisms", "linear", "--lengths", "8", "16"),
    timing_budget=300,
    own={},
)


def visit(candidates: dict[str, Any], limits: object, running: object = None) -> dict[str, Outcome]:
    """What a visit to cells finds, without a process: favor runs out of memory at 16 tokens."""
    outcomes = {}
    for name, candidate in candidates.items():
        length = candidate.prepare.args[0].length
        costs = {"softmax": length**2, "linear": 10 * length}
        fails = name == "favor" and length > 8
        outcomes[name] = Outcome(failure=OUT_OF_MEMORY, message="no") if fails else Outcome([costs.get(name, 99) * 1e-6], 9)
    return outcomes


@contextmanager
def cheaply() -> Iterator[None]:
    """Inside the block, no process is started, and all checkpoints are kept, so that any moment can be gone back to."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan, "visit", visit)
        patch.setattr(plan, "context", lambda preload: None)
        patch.setattr(trainings, "_start", Done)
        patch.setitem(copying.SCALES, "tiny", TINY)
        patch.setattr("subquad.conversion.quality.DRAWS", 10)
        patch.setattr("subquad.conversion.engine.CHECKPOINT_SECONDS", 0.0)
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


def events(folder: Path) -> Path:
    data = test_events.write(folder / "events.csv")
    return make("train", "events", "--data", str(data), *SIZE, *EVERY, "--inner", "4", "--chunk", "3", out=folder / "run")


def converted(folder: Path) -> Path:
    few = ("--steps", "2", "--tune-steps", "2", "--texts", "4", "--batch-tokens", "24", "--cost-lengths")
    hybrid = ("--attention", "hybrid", "--block", "4", "--no-page")
    return make("convert", str(masked(folder)), *hybrid, *few, out=folder / "run")


def looked_at(folder: Path) -> Path:
    return make("spectrum", str(masked(folder)), "--sequences", "1", "--length", "8", out=folder / "run")


def reproduced(folder: Path) -> Path:
    return make("reproduce", "copy", "--scale", "tiny", out=folder / "run")


MAKERS: dict[str, Callable[[Path], Path]] = {
    "compare": lambda folder: make("compare", *COMPARE, out=folder / "run"),
    "grid": lambda folder: make("compare", *GRID, out=folder / "run"),
    "copy": lambda folder: make("train", *COPY, out=folder / "run"),
    "mlm": masked,
    "events": events,
    "convert": converted,
    "spectrum": looked_at,
    "reproduce": reproduced,
}
"""What makes a run of each kind in a folder."""
