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

TINY = 8  # length in tokens of the warm-up text
TURNS = 3
"""Smallest number of timed runs of each model."""
TURN_SECONDS, RUN_SECONDS = 2.0, 120.0
"""Time limits in seconds: for runs beyond the smallest number, and for a single run."""


def costs(
    before: str | Path, after: str | Path, length: int, seconds: float = math.inf, *, threads: int = 1
) -> Iterator[Row]:
    """Measures seconds and peak bytes of two models for one text of `length` tokens; the models take turns.

    Each model runs in its own process, with its positions extended to the length (`extend_positions`) and without its
    language-model head, whose logits would dominate the cost. A model that takes longer than `seconds` or two minutes for
    one run, or more than half of the free memory, gives a row with the reason.
    """
    workers.context(["torch", "transformers", __name__])
    memory = psutil.virtual_memory().available // 2
    run, turns = min(RUN_SECONDS, seconds), min(TURN_SECONDS, seconds / 4)
    candidates = {
        model: workers.Candidate(partial(_work, path, length), partial(_work, path, TINY))
        for model, path in (("before", before), ("after", after))
    }
    outcomes = workers.visit(candidates, workers.Limits(memory, run, turns, threads, least_turns=TURNS))
    for model, outcome in outcomes.items():
        yield from _rows(outcome, {"length": length, "model": model, "threads": threads})


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
    """Returns the measured call. Progress bars of transformers are disabled: their locks outlive the child process."""
    logging.disable_progress_bar()
    model = extend_positions(load(path), length)
    body: Any = model.get_encoder() if model.config.is_encoder_decoder else model.base_model
    rows = int(torch.as_tensor(model.get_input_embeddings().weight).shape[0])
    tokens = torch.randint(rows, (1, length), generator=torch.Generator().manual_seed(0))
    options = {} if model.config.is_encoder_decoder else {"use_cache": False}

    def run() -> None:
        with torch.inference_mode():
            body(input_ids=tokens, attention_mask=None, **options)

    return workers.Work(run)
