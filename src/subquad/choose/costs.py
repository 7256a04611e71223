"""Costs of attentions at the lengths of the data, measured with the instruments of `subquad compare`."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median

import psutil

from subquad.attention import Softmax
from subquad.choose.standings import LONGEST, READ_AT, SHORTEST_MEASURED
from subquad.compare.cells import Setting
from subquad.compare.plan import Plan, measure
from subquad.compare.runs import describe_run
from subquad.compare.views import BASELINE, Comparison, What
from subquad.measure.workers import Limits
from subquad.models import ModelOptions
from subquad.results import Row, Run, holds_run
from subquad.types import AttentionOptions

MEASURED_AT = (0.5, READ_AT, LONGEST)
"""Quantiles of the lengths at which costs are measured."""
RUN_SECONDS = 10.0
"""Longest duration of one run of a measurement."""
SECONDS: tuple[What, ...] = ("layer", "training", "step")
"""Kinds of work: a forward pass of a layer, attention forward and backward, one decoding step."""


def cost_lengths(quantiles: Mapping[float, float], cuts: Iterable[int] = ()) -> list[int]:
    """Three lengths or more: those of the data and of cuts, and shorter ones if these are too much alike for a curve."""
    lengths = {max(SHORTEST_MEASURED, round(quantiles[at])) for at in MEASURED_AT if at in quantiles}
    lengths |= {length for length in cuts if length < max(lengths)}
    while len(lengths) < 3 and min(lengths) >= 8:
        lengths.add(min(lengths) // 2)
    return sorted(lengths)


def deciding_lengths(quantiles: Mapping[float, float], cuts: Iterable[int] = ()) -> list[int]:
    """The lengths at which times and memory are compared, and those of cuts, which are measured before all others."""
    read_at, longest = (max(SHORTEST_MEASURED, round(quantiles[at])) for at in (READ_AT, LONGEST))
    return list(dict.fromkeys([read_at, *(length for length in cuts if length < longest), longest]))


def measure_costs(
    folder: Path,
    attentions: Mapping[str, AttentionOptions],
    model: ModelOptions,
    quantiles: Mapping[float, float],
    *,
    batch: int,
    is_causal: bool,
    budget: float,
    cuts: Mapping[str, int] | None = None,
) -> list[Row]:
    """Measures for at most `budget` seconds, in a run of `subquad compare`, and returns rows with each attention's costs.

    Args:
        folder: where the run of `subquad compare` is kept.
        attentions: what is measured, by the name of the contestant.
        model: the size of the models.
        quantiles: quantiles of the lengths of the sequences.
        batch: number of sequences at once.
        is_causal: whether attention is used in its causal form.
        budget: seconds for everything.
        cuts: the length to which softmax attention is cut, by the name of the contestant, which is not among `attentions`.
    """
    cut_to = tuple((cuts or {}).values())
    lengths, first = cost_lengths(quantiles, cut_to), deciding_lengths(quantiles, cut_to)
    variants: dict[str, AttentionOptions] = {
        BASELINE: Softmax(),
        **{name: part for parts in _parts(attentions, model).values() for name, part, _ in parts},
    }
    setting = Setting(batch=batch, heads=model.attention_heads, head_dim=model.head_dim)
    whats: tuple[What, ...] = SECONDS if is_causal else SECONDS[:2]
    plan = Plan(variants, lengths, ("causal" if is_causal else "bidirectional",), whats, [setting], first=first)
    limits = Limits(memory_bytes=psutil.virtual_memory().available // 2, run_seconds=RUN_SECONDS)
    run = Run.open(folder, "compare") if holds_run(folder) else Run.create(folder, "compare", describe_run(plan, limits, ""))
    with run.writing():
        measure(plan, run, budget=budget, limits=limits)
    comparison = Comparison(run.rows())
    whole = list(cost_rows(comparison, {BASELINE: Softmax()}, model)) if cuts else []
    return [*cost_rows(comparison, attentions, model), *cut_rows(whole, cuts or {}, lengths)]


def cut_rows(softmax: Sequence[Row], cuts: Mapping[str, int], lengths: Sequence[int] = ()) -> Iterator[Row]:
    """Yields the costs of softmax attention that is cut to a length, by the costs of the whole: longer ones cost no more.

    `lengths` are all lengths, at some of which the whole may not have been measured.
    """
    by_length = {(row["what"], row["form"], row["length"]): row["value"] for row in softmax}
    for name, cut in cuts.items():
        for row in softmax:
            value = by_length.get((row["what"], row["form"], min(cut, row["length"])))
            if value is not None:
                yield row | {"mechanism": name, "value": value}
            if row["length"] == cut:
                longer = [at for at in lengths if at > cut and (row["what"], row["form"], at) not in by_length]
                yield from (row | {"mechanism": name, "length": at} for at in longer)


def cost_rows(comparison: Comparison, attentions: Mapping[str, AttentionOptions], model: ModelOptions) -> Iterator[Row]:
    """Yields seconds and bytes of each attention by length: of all layers, or of one attention for training."""
    for name, parts in _parts(attentions, model).items():
        for view in comparison.views:
            weights = {part: count if view.what == "layer" else count / model.layers for part, _, count in parts}
            medians = {part: comparison.seconds(view, part) for part in weights}
            for length in sorted(set.intersection(*(set(known) for known in medians.values()))):
                about = {"mechanism": name, "length": length, "form": view.form}
                seconds = sum(weight * median(medians[part][length]) for part, weight in weights.items())
                yield {"metric": "cost", "what": view.what, "value": seconds, "unit": "s", **about}
                peaks = [comparison.peak(view, part, length) for part in weights]
                if view.what == "training" and None not in peaks:
                    peak = max(known or 0.0 for known in peaks)
                    yield {"metric": "cost", "what": "memory", "value": peak, "unit": "bytes", **about}


def _parts(
    attentions: Mapping[str, AttentionOptions], model: ModelOptions
) -> dict[str, list[tuple[str, AttentionOptions, int]]]:
    """The mechanisms of each attention with a name and the number of its layers; the name is the attention's for one."""
    return {
        name: [
            (name if len(options.parts) == 1 else f"{name}: {part.name}", part, count)
            for part, count in options.counts(model.layers)
        ]
        for name, options in attentions.items()
    }
