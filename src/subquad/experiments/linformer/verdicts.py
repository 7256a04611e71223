"""Verdicts on Linformer: perplexities by slots, sharing and length, attention matrices, classifiers, and speed."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from subquad.compare.views import Comparison
from subquad.experiments.base import part_rows
from subquad.experiments.linformer.grid import LINFORMER, NOTHING, SCALES, SHARINGS, SOFTMAX, USUAL, Grid, Variant
from subquad.experiments.linformer.learned import judge_projections
from subquad.experiments.linformer.measuring import slot_rows
from subquad.experiments.linformer.needed import judge_slots
from subquad.experiments.linformer.runs import Pretrained, above_unigram, accuracies, nats, pretrained, spectra
from subquad.experiments.linformer.speed import judge_table
from subquad.results import Row
from subquad.statistics import (
    Verdict,
    at_least,
    at_most,
    geometric_mean,
    geometric_ratio,
    mean_over_seeds,
    paired_difference,
    paired_gaps,
)
from subquad.words import between

NEAR = 1.05
"""Largest ratio of two perplexities that counts as the same level."""
LOW = 0.9
"""Share of the sum of singular values that the first quarter of them has in a matrix of low rank."""
POINT = 0.01
"""Largest loss of accuracy that counts as none."""


def judge(folder: Path, scale: str) -> list[Verdict]:
    """Returns a verdict on each claim."""
    runs, grid = pretrained(folder), SCALES[scale]
    verdicts = [*close(runs, grid), *grows_better(runs, grid), *shared(runs, grid), *grown(runs, grid)]
    rows = slot_rows(folder)
    verdicts += [*judge_slots(rows, runs, grid), *judge_projections(rows, grid)]
    verdicts += [*low_rank(spectra(folder)), *kept(accuracies(folder))]
    return [*verdicts, *judge_table(Comparison(part_rows(folder / "timing", "compare") or []))]


def close(runs: Sequence[Pretrained], grid: Grid) -> Iterator[Verdict]:
    """Whether the perplexity with k slots is close to softmax's."""
    for variant in sorted({model for model in grid.variants if model.k and model.sharing == USUAL}):
        ratio = geometric_ratio(nats(runs, variant), nats(runs, variant.baseline))
        ours, theirs = geometric_mean(nats(runs, variant)), geometric_mean(nats(runs, variant.baseline))
        if ratio is not None and ours is not None and theirs is not None:
            share = ", a quarter as in the paper" if 4 * variant.k == variant.length else ""
            claim = f"n={variant.length}, k={variant.k}{share}: perplexity is within {NEAR:g} times softmax's"
            figures = f"{between(ratio, '.3f')} times, {ours.value:.1f} against {theirs.value:.1f}"
            yield Verdict(claim, at_most(ratio, NEAR), figures)


def grows_better(runs: Sequence[Pretrained], grid: Grid) -> Iterator[Verdict]:
    """Whether more slots give a lower perplexity."""
    for length, slots in grid.slots.items():
        few, many = min(slots), max(slots)
        ratio = geometric_ratio(nats(runs, Variant(length, many)), nats(runs, Variant(length, few)))
        if ratio is not None and few < many:
            claim = f"n={length}: perplexity is lower with k={many} than with k={few}"
            yield Verdict(claim, at_most(ratio, 1.0), f"{between(ratio, '.3f')} times")


def shared(runs: Sequence[Pretrained], grid: Grid) -> Iterator[Verdict]:
    """Whether shared projections give a higher perplexity than one projection for each head."""
    alone = grid.shared._replace(sharing="none")
    for sharing in SHARINGS[1:]:
        ratio = geometric_ratio(nats(runs, grid.shared._replace(sharing=sharing)), nats(runs, alone))
        if ratio is not None:
            about = f"n={alone.length}, k={alone.k}: one projection for {WORDS[sharing]}"
            claim = f"{about} leaves perplexity within {NEAR:g} times that with each head's own"
            yield Verdict(claim, at_most(ratio, NEAR), f"{between(ratio, '.3f')} times")


WORDS = {
    "none": "each head and side",
    "heads": "all heads",
    "keys-values": "all heads, keys and values",
    "layerwise": "all heads, keys, values and layers",
}


def grown(runs: Sequence[Pretrained], grid: Grid) -> Iterator[Verdict]:
    """Whether perplexity depends on the slots and not on the length, relative to the unigram and to softmax."""
    short, long = (Variant(length, grid.fixed_slots) for length in (min(grid.lengths), max(grid.lengths)))
    about = f"k={grid.fixed_slots}: from n={short.length} to n={long.length}"
    ratio = geometric_ratio(above_unigram(runs, long), above_unigram(runs, short))
    theirs = geometric_ratio(above_unigram(runs, long.baseline), above_unigram(runs, short.baseline))
    if ratio is not None and theirs is not None:
        claim = f"{about} perplexity, relative to the unigram's on the same tokens, grows to at most {NEAR:g} times"
        yield Verdict(
            claim, at_most(ratio, NEAR), f"{between(ratio, '.3f')} times; softmax's {between(theirs, '.3f')} times"
        )
    gaps = [paired_gaps(nats(runs, variant), nats(runs, variant.baseline)) for variant in (long, short)]
    wider, before, after = geometric_ratio(*gaps), geometric_mean(gaps[1]), geometric_mean(gaps[0])
    if wider is not None and before is not None and after is not None:
        claim = f"{about} the distance to softmax grows to at most {NEAR:g} times"
        ends = f"from {between(before, '.3f')} to {between(after, '.3f')} times softmax's perplexity"
        figures = f"{between(wider, '.3f')} times: {ends}"
        yield Verdict(claim, at_most(wider, NEAR), figures)


def layer_shares(rows: Sequence[Row], model: str) -> dict[int, float]:
    """Share of the first singular values in each layer, as the mean over heads."""
    by_layer: dict[int, list[float]] = {}
    for row in rows:
        if row["metric"] == "share_at_index" and row["model"] == model:
            by_layer.setdefault(row["layer"], []).append(row["value"])
    return {layer: sum(values) / len(values) for layer, values in sorted(by_layer.items())}


def low_rank(spectra: Mapping[int, Sequence[Row]]) -> Iterator[Verdict]:
    """Whether few singular values dominate softmax's matrices, more than before training, and more in higher layers."""
    if not spectra:
        return
    trained, fresh = ([layer_shares(rows, model) for rows in spectra.values()] for model in ("trained", "random"))
    place = next(row for rows in spectra.values() for row in rows if row["metric"] == "share_at_index")
    about = f"the first {place['index']:.0f} of {place['length']:.0f} singular values of softmax's attention"
    shares, before = ([sum(by_layer.values()) / len(by_layer) for by_layer in by_seed] for by_seed in (trained, fresh))
    share = mean_over_seeds(shares)
    figures = f"{between(share, '.3f')} of their sum, mean over layers and heads"
    yield Verdict(f"{about} hold at least {LOW:g} of all", at_least(share, LOW), figures)
    learned = mean_over_seeds([after - fresh_share for after, fresh_share in zip(shares, before, strict=True)])
    figures = f"{between(learned, '+.3f')} beside {between(mean_over_seeds(before), '.3f')} with fresh weights"
    yield Verdict(f"{about} hold more than before training", at_least(learned, 0.0), figures)
    first, last = min(trained[0]), max(trained[0])
    if first < last:
        more = mean_over_seeds([by_layer[last] - by_layer[first] for by_layer in trained])
        ends = [mean_over_seeds([by_layer[layer] for by_layer in trained]).value for layer in (first, last)]
        figures = f"{between(more, '+.3f')}: {ends[0]:.3f} in layer {first}, {ends[1]:.3f} in layer {last}"
        yield Verdict(f"{about} hold more in the last layer than in the first", at_least(more, 0.0), figures)


def kept(accuracies: Mapping[str, Mapping[int, float]]) -> Iterator[Verdict]:
    """Whether a classifier that starts from Linformer's language model is as good as one that starts from softmax's."""
    ours, theirs = accuracies.get(LINFORMER, {}), accuracies.get(SOFTMAX, {})
    gap = paired_difference(ours, theirs)
    if gap is not None:
        means = {name: mean_over_seeds(list(by_seed.values())).value for name, by_seed in accuracies.items()}
        pair = ", ".join(f"{name} {means[name]:.3f}" for name in (LINFORMER, SOFTMAX))
        without = f"; softmax without pretraining {means[NOTHING]:.3f}" if NOTHING in means else ""
        claim = f"fine-tuned, its accuracy is at most {POINT:g} below softmax's"
        yield Verdict(claim, at_least(gap, -POINT), f"{between(gap, '+.3f')}: {pair}{without}")
