"""How time and memory grow with the length: the exponents, measured in processes as `subquad compare` measures."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch

from subquad.check.findings import Finding, Verdict, not_asked
from subquad.check.subjects import Subject
from subquad.errors import SubquadError
from subquad.measure.fits import draw_costs, growth, pooled_scatter, scaling
from subquad.measure.workers import Candidate, Limits, Outcome, Work, visit
from subquad.statistics import Interval, at_most
from subquad.words import between

VISITS = 3
"""Number of processes that measure each length, one after the other."""
FEWEST = 3
"""Smallest number of lengths for an exponent."""

MEASURABLE_BYTES = 2**20
"""Smallest peak of memory that counts: smaller ones are lost in what the allocator keeps."""


@dataclass(frozen=True)
class Grown:
    """Seconds and peak bytes of each visit, by length, and why there are no more lengths."""

    seconds: Mapping[int, Sequence[float]]
    peaks: Mapping[int, Sequence[float]]
    failure: str = ""

    def rows(self, form: str) -> list[dict[str, Any]]:
        """The measurements as rows of a run."""
        about = {"form": form} if form else {}
        return [
            {"metric": metric, "value": value, "unit": unit, "length": length, "visit": number, **about}
            for metric, unit, visits in (("seconds", "s", self.seconds), ("peak_memory", "bytes", self.peaks))
            for length, values in visits.items()
            for number, value in enumerate(values)
        ]


Make = Callable[[int], Subject]
"""Builds a subject for sequences of up to a length. It must be picklable."""


def measure_growth(make: Make, lengths: Sequence[int], tiny: int, limits: Limits, seconds: float) -> Grown:
    """Measures one forward pass of a sequence at each length, shortest first, until `seconds` have passed.

    Each process warms up with `tiny` positions: memory of a longer sequence would be used again without being counted.
    """
    start = time.perf_counter()
    known: dict[int, list[Outcome]] = {}
    failure = ""
    for number in range(VISITS):
        for length in sorted(lengths) if number == 0 else list(known):
            if known.get(length) is None and time.perf_counter() - start > seconds:
                failure = failure or f"no time was left for {length} positions"
                break
            candidate = Candidate(partial(_work, make, length), partial(_work, make, tiny))
            outcome = visit({"subject": candidate}, limits)["subject"]
            if outcome.failure:
                failure = failure or f"{outcome.failure} at {length} positions: {outcome.message}"
                known.pop(length, None)
                break
            known.setdefault(length, []).append(outcome)
        if time.perf_counter() - start > seconds:
            break
    medians = {length: [float(np.median(found.seconds)) for found in outcomes] for length, outcomes in known.items()}
    peaks = {length: [float(found.peak_bytes or 0) for found in outcomes] for length, outcomes in known.items()}
    return Grown(medians, peaks, failure)


def _work(make: Make, length: int) -> Work:
    """The forward pass of one sequence, in float32."""
    torch.set_num_threads(1)
    subject = make(length)
    subject.to(torch.float32)
    x = subject.cast(subject.draw(1, length), torch.float32)
    return Work(torch.no_grad()(lambda: subject.mix(x)))


class Exponent(NamedTuple):
    """The power of the length that a cost grows with, between two lengths."""

    interval: Interval
    lengths: tuple[int, int]
    is_ruled: bool = False
    """Whether fixed costs make up most of it, which could not be taken off: the power may be larger then."""


def exponent(visits: Mapping[int, Sequence[float]], seed: int = 0) -> Exponent | None:
    """Fits the power of the length beyond fixed costs. Returns None for fewer than three lengths."""
    if len(visits) < FEWEST:
        return None
    costs = draw_costs(visits, pooled_scatter(list(visits.values())), np.random.default_rng(seed))
    with np.errstate(over="ignore"):  # costs that do not grow have no slope to divide by
        fitted = scaling(costs)
    if fitted is not None:
        return Exponent(fitted.exponent, (int(fitted.first_length), int(fitted.last_length)))
    upper = growth(costs)
    if upper is None or upper.exponent is None:
        return None
    return Exponent(upper.exponent, (int(costs.lengths[0]), int(costs.lengths[-1])), is_ruled=True)


def judge_growth(check: str, visits: Mapping[int, Sequence[float]], limit: float | None, failure: str) -> Finding:
    """The finding for "time" or "memory": the exponent, and whether it stays within the limit if there is one."""
    problem = failure
    if check == "memory":
        visits = {length: peaks for length, peaks in visits.items() if min(peaks) >= MEASURABLE_BYTES}
        problem = failure or f"at fewer than {FEWEST} lengths did it need 1 MB: make --lengths or --head-dim larger"
    found = exponent(visits)
    if found is None:
        return not_asked(check, problem or f"fewer than {FEWEST} lengths could be measured")
    held = None if limit is None else at_most(found.interval, limit)
    if found.is_ruled and held:
        held = None
    verdict: Verdict = "measured" if limit is None else "not decided" if held is None else "holds" if held else "fails"
    first, last = found.lengths
    sentence = f"{check} grows as the length to the power {between(found.interval)}, from {first} to {last} positions"
    if found.is_ruled:
        sentence += "; fixed costs make up most of it: make --lengths longer"
    if failure:
        sentence += f"; {failure}"
    value, low, high = map(float, found.interval)
    return Finding(check, verdict, sentence, value=value, allowed=limit, low=low, high=high)


def check_lengths(lengths: Sequence[int]) -> None:
    """Raises `SubquadError` for too few lengths to see growth."""
    if len(set(lengths)) < FEWEST:
        raise SubquadError(f"--lengths needs at least {FEWEST} lengths to see how costs grow")
