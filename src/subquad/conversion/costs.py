"""Time and memory of a model before and after a conversion, against the length of a text."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import torch
from transformers.utils import logging

from subquad.hub.files import load
from subquad.hub.positions import extend_positions
from subquad.measure import workers
from subquad.measure.timing import median
from subquad.results import Row

LENGTHS = (128, 256, 512, 1024, 2048, 4096, 8192)
TINY = 8  # tokens, to warm up
TURNS = 3
"""Of each model at each length, at least."""


def costs(
    before: str | Path,
    after: str | Path,
    lengths: Sequence[int] = LENGTHS,
    *,
    threads: int = 1,
    seconds: float = 2.0,
    run_seconds: float = 120.0,
) -> Iterator[Row]:
    """Seconds and peak bytes of one text through two models in folders, for each length, the models taking turns.

    Each is in a process of its own, which loads it, gives it enough positions (`extend_positions`), and runs it without its
    head: logits over a vocabulary would be most of what is measured. `seconds` is the time for turns beyond the fewest. What
    takes longer than `run_seconds`, or more memory than half of what is free, leaves a row that says so.
    """
    workers.context(["torch", "transformers", __name__])
    limits = workers.Limits(psutil.virtual_memory().available // 2, run_seconds, seconds, threads, least_turns=TURNS)
    given = {"before": before, "after": after}
    for length in lengths:
        candidates = {
            which: workers.Candidate(partial(_work, path, length), partial(_work, path, TINY))
            for which, path in given.items()
        }
        for which, outcome in workers.visit(candidates, limits).items():
            yield from _rows(outcome, {"length": length, "model": which, "threads": threads})


def _rows(outcome: workers.Outcome, about: Mapping[str, Any]) -> Iterator[Row]:
    if outcome.failure:
        yield {
            "metric": "failure",
            "value": 1.0,
            "unit": "",
            "failure": outcome.failure,
            "message": outcome.message,
            **about,
        }
        return
    taken = median(outcome.seconds)
    yield {"metric": "seconds", "value": taken.middle, "low": taken.low, "high": taken.high, "unit": "s", **about}
    if outcome.peak_bytes is not None:
        held = float(outcome.peak_bytes)
        yield {"metric": "bytes", "value": held, "low": held, "high": held, "unit": "B", **about}


def _work(path: str | Path, length: int) -> workers.Work:
    """In a child, without transformers' bars: their locks would outlive it."""
    logging.disable_progress_bar()
    model = extend_positions(load(path), length)
    body: Any = model.get_encoder() if model.config.is_encoder_decoder else model.base_model
    rows = int(torch.as_tensor(model.get_input_embeddings().weight).shape[0])
    tokens = torch.randint(rows, (1, length), generator=torch.Generator().manual_seed(0))
    given = {} if model.config.is_encoder_decoder else {"use_cache": False}

    def run() -> None:
        with torch.inference_mode():
            body(input_ids=tokens, attention_mask=None, **given)

    return workers.Work(run)
