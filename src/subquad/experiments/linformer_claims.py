"""What came out of Linformer's study: perplexities, attention matrices and classifiers, and a verdict on each claim."""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from subquad.experiments import linformer
from subquad.experiments.compare.views import Comparison
from subquad.experiments.linformer_study import LINFORMER, NOTHING, SCALES, SHARINGS, SOFTMAX, USUAL, Grid, Variant
from subquad.experiments.trials import Verdict, at_least, at_most, at_test, between, finished, mean_interval
from subquad.measure.timing import Interval
from subquad.results import Row, Run

NEAR = 1.05
"""How many times another's perplexity still counts as its level."""
LOW = 0.9
"""The share of the singular values' sum that the first quarter of them holds in a matrix of low rank."""
POINT = 0.01
"""How much lower an accuracy still counts as kept."""


class Pretrained(NamedTuple):
    """A finished language model."""

    variant: Variant
    seed: int
    run: Run
    rows: list[Row]


def pretrained(folder: Path) -> list[Pretrained]:
    """Everything that came to its end."""
    found = []
    for path in sorted(folder.glob("mlm-*")):
        if finished(path):
            run = Run.open(path, "train")
            mechanism, length = run.about["options"]["mechanism"], run.about["options"]["task"]["length"]
            own = (mechanism["k"], mechanism["sharing"]) if mechanism["kind"] == LINFORMER else ()
            found.append(Pretrained(Variant(length, *own), run.about["seed"], run, run.rows()))
    return found


def accuracies(folder: Path) -> dict[str, dict[int, float]]:
    """Of finished classifiers on their tests: by what they start from, then by seed."""
    found: dict[str, dict[int, float]] = {}
    for path in sorted(folder.glob("classify-*")):
        if finished(path):
            _, start, seed = path.name.split("-")
            accuracy = at_test(Run.open(path, "train").rows(), "accuracy")
            assert accuracy is not None  # every classifier ends with it
            found.setdefault(start, {})[int(seed)] = accuracy
    return found


def spectra(folder: Path) -> dict[int, list[Row]]:
    """Rows of `subquad spectrum`, by seed."""
    found = {int(path.name.split("-")[1]): Run.open(path, "spectrum").rows() for path in sorted(folder.glob("spectrum-*"))}
    return {seed: rows for seed, rows in found.items() if rows}


def nats(runs: Sequence[Pretrained], variant: Variant, metric: str = "perplexity") -> dict[int, float]:
    """The logarithm of a model's perplexity on the test, by seed."""
    found = {one.seed: at_test(one.rows, metric) for one in runs if one.variant == variant}
    return {seed: math.log(value) for seed, value in found.items() if value is not None}


def above_unigram(runs: Sequence[Pretrained], variant: Variant) -> dict[int, float]:
    """The same beside what knows only how frequent tokens are: sequences of other lengths ask for other tokens."""
    known = nats(runs, variant, "perplexity_of_unigram")
    return {seed: value - known[seed] for seed, value in nats(runs, variant).items()}


def times(ours: Mapping[int, float], theirs: Mapping[int, float] | None = None) -> Interval | None:
    """The geometric mean over seeds of a perplexity, or of how many times another it is, with Student's interval."""
    seeds = ours.keys() if theirs is None else ours.keys() & theirs.keys()
    if not seeds:
        return None
    found = mean_interval([ours[seed] - (theirs[seed] if theirs else 0.0) for seed in sorted(seeds)])
    return Interval(*(math.exp(end) for end in (found.middle, found.low, found.high)))


def judge(folder: Path, scale: str) -> list[Verdict]:
    """A verdict on each claim."""
    runs, grid = pretrained(folder), SCALES[scale]
    found = [*close(runs, grid), *grows_better(runs, grid), *shared(runs, grid), *grown(runs, grid)]
    found += [*low_rank(spectra(folder)), *kept(accuracies(folder))]
    timing = folder / "timing"
    if (timing / "run.json").exists():
        found += linformer.judge(Comparison(Run.open(timing, "compare").rows()))
    return found


def close(runs: Sequence[Pretrained], grid: Grid) -> Iterator[Verdict]:
    """Whether so many slots do: perplexity beside softmax's."""
    for variant in sorted({one for one in grid.variants if one.k and one.sharing == USUAL}):
        found = times(nats(runs, variant), nats(runs, variant.baseline))
        ours, theirs = times(nats(runs, variant)), times(nats(runs, variant.baseline))
        if found is not None and ours is not None and theirs is not None:
            share = ", a quarter as in the paper" if 4 * variant.k == variant.length else ""
            claim = f"n={variant.length}, k={variant.k}{share}: perplexity is within {NEAR:g} times softmax's"
            figures = f"{between(found)} times, {ours.middle:.1f} against {theirs.middle:.1f}"
            yield Verdict(claim, at_most(found, NEAR), figures)


def grows_better(runs: Sequence[Pretrained], grid: Grid) -> Iterator[Verdict]:
    """Whether more slots are better."""
    for length, slots in grid.slots.items():
        few, many = min(slots), max(slots)
        found = times(nats(runs, Variant(length, many)), nats(runs, Variant(length, few)))
        if found is not None and few < many:
            claim = f"n={length}: perplexity is lower with k={many} than with k={few}"
            yield Verdict(claim, at_most(found, 1.0), f"{between(found)} times")


def shared(runs: Sequence[Pretrained], grid: Grid) -> Iterator[Verdict]:
    """Whether shared projections cost anything beside those of each head's own."""
    alone = grid.shared._replace(sharing="none")
    for sharing in SHARINGS[1:]:
        found = times(nats(runs, grid.shared._replace(sharing=sharing)), nats(runs, alone))
        if found is not None:
            about = f"n={alone.length}, k={alone.k}: one projection for {WORDS[sharing]}"
            claim = f"{about} leaves perplexity within {NEAR:g} times that with each head's own"
            yield Verdict(claim, at_most(found, NEAR), f"{between(found)} times")


WORDS = {
    "none": "each head and side",
    "heads": "all heads",
    "keys-values": "all heads, keys and values",
    "layerwise": "all heads, keys, values and layers",
}


def grown(runs: Sequence[Pretrained], grid: Grid) -> Iterator[Verdict]:
    """Whether perplexity depends on the slots and not on the length: by itself, and beside softmax."""
    short, long = (Variant(length, grid.fixed) for length in (min(grid.lengths), max(grid.lengths)))
    about = f"k={grid.fixed}: from n={short.length} to n={long.length}"
    found = times(above_unigram(runs, long), above_unigram(runs, short))
    theirs = times(above_unigram(runs, long.baseline), above_unigram(runs, short.baseline))
    if found is not None and theirs is not None:
        claim = f"{about} perplexity, relative to the unigram's on the same tokens, grows to at most {NEAR:g} times"
        yield Verdict(claim, at_most(found, NEAR), f"{between(found)} times; softmax's {between(theirs)} times")
    gaps = [_difference(nats(runs, one), nats(runs, one.baseline)) for one in (long, short)]
    wider, before, after = times(*gaps), times(gaps[1]), times(gaps[0])
    if wider is not None and before is not None and after is not None:
        claim = f"{about} the distance to softmax grows to at most {NEAR:g} times"
        figures = f"{between(wider)} times: from {between(before)} to {between(after)} times softmax's perplexity"
        yield Verdict(claim, at_most(wider, NEAR), figures)


def _difference(ours: Mapping[int, float], theirs: Mapping[int, float]) -> dict[int, float]:
    return {seed: ours[seed] - theirs[seed] for seed in ours.keys() & theirs.keys()}


def layer_shares(rows: Sequence[Row], model: str) -> dict[int, float]:
    """What the first singular values hold in each layer: the mean over heads."""
    found: dict[int, list[float]] = {}
    for row in rows:
        if row["metric"] == "share_at_index" and row["model"] == model:
            found.setdefault(row["layer"], []).append(row["value"])
    return {layer: sum(values) / len(values) for layer, values in sorted(found.items())}


def low_rank(spectra: Mapping[int, Sequence[Row]]) -> Iterator[Verdict]:
    """Whether few singular values hold most of softmax's matrices, more so than by chance, and more so in higher layers."""
    if not spectra:
        return
    trained, fresh = ([layer_shares(rows, model) for rows in spectra.values()] for model in ("trained", "random"))
    place = next(row for rows in spectra.values() for row in rows if row["metric"] == "share_at_index")
    about = f"the first {place['index']:.0f} of {place['length']:.0f} singular values of softmax's attention"
    shares, before = ([sum(one.values()) / len(one) for one in each] for each in (trained, fresh))
    share = mean_interval(shares)
    figures = f"{between(share)} of their sum, mean over layers and heads"
    yield Verdict(f"{about} hold at least {LOW:g} of all", at_least(share, LOW), figures)
    learned = mean_interval([one - other for one, other in zip(shares, before, strict=True)])
    figures = f"{between(learned, sign='+')} beside {between(mean_interval(before))} with fresh weights"
    yield Verdict(f"{about} hold more than before training", at_least(learned, 0.0), figures)
    first, last = min(trained[0]), max(trained[0])
    if first < last:
        more = mean_interval([one[last] - one[first] for one in trained])
        each = [mean_interval([one[layer] for one in trained]).middle for layer in (first, last)]
        figures = f"{between(more, sign='+')}: {each[0]:.3f} in layer {first}, {each[1]:.3f} in layer {last}"
        yield Verdict(f"{about} hold more in the last layer than in the first", at_least(more, 0.0), figures)


def kept(accuracies: Mapping[str, Mapping[int, float]]) -> Iterator[Verdict]:
    """Whether a classifier that starts from Linformer's language model is as good as one from softmax's."""
    ours, theirs = accuracies.get(LINFORMER, {}), accuracies.get(SOFTMAX, {})
    gaps = [gap for _, gap in sorted(_difference(ours, theirs).items())]
    if gaps:
        gap = mean_interval(gaps)
        means = {name: mean_interval(list(found.values())).middle for name, found in accuracies.items()}
        said = ", ".join(f"{name} {means[name]:.3f}" for name in (LINFORMER, SOFTMAX))
        without = f"; softmax without pretraining {means[NOTHING]:.3f}" if NOTHING in means else ""
        claim = f"fine-tuned, its accuracy is at most {POINT:g} below softmax's"
        yield Verdict(claim, at_least(gap, -POINT), f"{between(gap, sign='+')}: {said}{without}")
