"""Verdicts on Linformer's speed-up and memory saved, length by length (Wang et al. 2020, table 3)."""

from collections.abc import Iterator, Mapping

from subquad.compare.linformer_table import PUBLISHED, entry, layer_view, name_of, slots
from subquad.compare.views import MATERIALISED, Comparison
from subquad.statistics import Interval, Verdict, all_held, at_least
from subquad.words import between, digits


def judge_table(comparison: Comparison) -> Iterator[Verdict]:
    """Yields verdicts by length: time of a layer against both forms of softmax, and memory against the matrix."""
    view = layer_view(comparison)
    if view is None:
        return
    for length in sorted({n for k in slots(comparison) for n in comparison.lengths(view, name_of(k))}):
        known = [k for k in slots(comparison) if length in comparison.lengths(view, name_of(k))]
        published = {k: published_pair for k in known if (published_pair := PUBLISHED.get(length, {}).get(k))}
        over = {k: comparison.speedup(view, name_of(k), length, MATERIALISED) for k in published}
        claim = f"n={length}: a layer is as many times as fast as with the materialised matrix as was published"
        yield from _speedups(claim, over, {k: times for k, (times, _) in published.items()}, "published ")
        over = {k: comparison.speedup(view, name_of(k), length) for k in known}
        claim = f"n={length}: a layer is faster than with fused softmax, with any number of slots"
        yield from _speedups(claim, over, dict.fromkeys(known, 1.0), "")
        saved = {k: entry(comparison, view, length, k).memory_saved for k in published}
        yield from _savings(length, saved, {k: times for k, (_, times) in published.items()})


def _speedups(
    claim: str, speedups: Mapping[int, Interval | None], wanted: Mapping[int, float], beside: str
) -> Iterator[Verdict]:
    """Yields a verdict on the speed-ups at one length, which holds if it holds for every number of slots."""
    measured = {k: interval for k, interval in speedups.items() if interval is not None}
    if not measured:
        return
    held = [at_least(interval, wanted[k]) for k, interval in measured.items()]
    targets = {k: f", {beside}{wanted[k]:g}" if beside else "" for k in measured}
    figures = [f"k={k}: {between(interval)}{targets[k]}" for k, interval in measured.items()]
    yield Verdict(claim, all_held(held), "; ".join(figures))


def _savings(length: int, savings: Mapping[int, float | None], wanted: Mapping[int, float]) -> Iterator[Verdict]:
    measured = {k: times for k, times in savings.items() if times is not None}
    if measured:
        claim = f"n={length}: a layer takes as many times less memory than the materialised matrix as was published"
        figures = [f"k={k}: {digits(times)}, published {wanted[k]:g}" for k, times in measured.items()]
        yield Verdict(claim, all(times >= wanted[k] for k, times in measured.items()), "; ".join(figures))
