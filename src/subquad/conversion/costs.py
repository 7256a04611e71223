"""Time and memory of a model before and after a conversion, against the length of a text."""

import math
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import torch
from transformers.utils import logging

from subquad.hub.files import load
from subquad.hub.positions import extend_positions
from subquad.measure import workers
from subquad.results import Row
from subquad.statistics import median_interval

TINY = 8  # tokens, to warm up
TURNS = 3
"""Smallest number of turns of each model."""
TURN_SECONDS, RUN_SECONDS = 2.0, 120.0
"""Longest time for turns beyond the fewest, and for one run."""


def costs(
    before: str | Path, after: str | Path, length: int, seconds: float = math.inf, *, threads: int = 1
) -> Iterator[Row]:
    """Seconds and peak bytes of one text of a length through two models in folders, the models taking turns.

    Each is in a process of its own, which loads it, gives it enough positions (`extend_positions`), and runs it without its
    head: logits over a vocabulary would be most of what is measured. What takes longer than `seconds` or two minutes for one
    run, or more memory than half of what is free, leaves a row that says so.
    """
    workers.context(["torch", "transformers", __name__])
    memory = psutil.virtual_memory().available // 2
    run, turns = min(RUN_SECONDS, seconds), min(TURN_SECONDS, seconds / 4)
    candidates = {
        which: workers.Candidate(partial(_work, path, length), partial(_work, path, TINY))
        for which, path in (("before", before), ("after", after))
    }
    found = workers.visit(candidates, workers.Limits(memory, run, turns, threads, least_turns=TURNS))
    for which, outcome in found.items():
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
    yield {"metric": "seconds", **median_interval(outcome.seconds)._asdict(), "unit": "s", **about}
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
