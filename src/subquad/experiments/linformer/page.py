"""The page of the experiment on Linformer: perplexity, classifiers, spectrum and speed."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import altair as alt

from subquad.compare.views import Comparison
from subquad.experiments.base import part_rows
from subquad.experiments.linformer.errors import OUTPUT_ERROR
from subquad.experiments.linformer.grid import LINFORMER, NOTHING, SCALES, SHARINGS, SOFTMAX, Grid, Variant
from subquad.experiments.linformer.measuring import slot_rows
from subquad.experiments.linformer.needed import aims, over_seeds
from subquad.experiments.linformer.runs import Pretrained, above_unigram, accuracies, nats, pretrained, spectra
from subquad.experiments.linformer.slot_charts import projection_pictures, slot_pictures
from subquad.experiments.linformer.slot_tables import closeness_table, error_table, needed_table
from subquad.experiments.linformer.verdicts import WORDS, judge, layer_shares
from subquad.report import tables, training
from subquad.report.curves import curves
from subquad.report.page import Chapter, Fold, Page, Picture, paragraph, table
from subquad.report.spectrum import spectrum_charts
from subquad.report.tables import Cell, Table
from subquad.report.training import value_on_test
from subquad.report.verdicts import verdict_answer, verdict_fold
from subquad.results import Row
from subquad.statistics import Interval, geometric_mean, geometric_ratio, mean_over_seeds
from subquad.words import between

TITLE = "Linformer: slots, sharing and length"
MISSING = tables.NOTHING
CLASSIFIER_NOTE = "Each classifier learns the classes of texts, from the weights of a language model or from none."
SLOTS_NOTE = (
    "Errors are those of one softmax model's attention, on texts cut to each length, when k slots take the place of all "
    "positions. The best matrix of rank k, by singular value decomposition, needs the whole matrix of each text. All other "
    "ways have the same slots for every text: the leading singular vectors of all matrices of training texts; random "
    "combinations of positions; Linformer's E and F, fitted to this attention on training texts, for each head; Linformer "
    "with means of neighbouring positions."
)
PROJECTION_NOTE = (
    "Shares of squared weights, each between 0 and 1. The mean of all positions is one direction; means of neighbours span "
    "k directions, as do the k positions with most weight and the k leading singular vectors of softmax's matrices "
    "on training texts. So fresh weights have a share of about k / n in each of these three."
)
SPECTRUM_NOTE = "Softmax models on held-out texts, beside the same models before they learned anything."
SPECTRUM_CAPTIONS = {
    "spectrum_cumulative": "Softmax, the first seed. Trained: heads thin, their mean by layer thick. Fresh weights: dashed",
    "spectrum_share-trained": "Softmax, trained: what the first quarter holds",
    "spectrum_share-random": "Softmax, fresh weights: what the first quarter holds",
}


def linformer_page(folder: Path, scale: str) -> Page:
    """Returns the page: perplexity by slots, sharing and length, then the attention matrices, then tables."""
    runs, grid, verdicts = pretrained(folder), SCALES[scale], judge(folder, scale)
    pictures = [Picture(name, _caption(name), chart) for name, chart in perplexity_charts(runs, grid).items()]
    by_seed = spectra(folder)
    matrices = [
        Picture(f"spectrum_{name}", SPECTRUM_CAPTIONS[f"spectrum_{name}"], chart)
        for name, chart in (spectrum_charts(by_seed[min(by_seed)]) if by_seed else {}).items()
    ]
    chapters = [Chapter("Perplexity on development texts", pictures[1:])] if pictures[1:] else []
    slots = slot_rows(folder)
    if needed := list(slot_pictures(slots, runs, grid)):
        chapters.append(Chapter("How many slots for a length", needed, SLOTS_NOTE))
    if learned := list(projection_pictures(slots, grid)):
        chapters.append(Chapter("What E and F learn", learned, PROJECTION_NOTE))
    chapters += [Chapter("Attention matrices", matrices, SPECTRUM_NOTE)] if matrices else []
    folds = [verdict_fold(verdicts), _perplexity_fold(runs, grid)]
    folds += slot_folds(slots, runs, grid)
    folds.append(Fold("After pretraining", [paragraph(CLASSIFIER_NOTE), table(downstream_table(accuracies(folder)))]))
    if by_seed:
        folds.append(Fold("Attention matrices", [paragraph(SPECTRUM_NOTE), table(spectrum_table(by_seed))]))
    grids = list(tables.linformer_grids(Comparison(part_rows(folder / "timing", "compare") or [])))
    folds += [Fold("Speed-up and memory", list(map(table, grids)))] if grids else []
    return Page(
        TITLE,
        verdict_answer(verdicts),
        about=f"Scale {scale}; after Wang et al. 2020. Every training is a run in the same folder.",
        picture=pictures[0] if pictures else None,
        chapters=chapters,
        folds=folds,
    )


def _caption(chart: str) -> str:
    kind, _, length = chart.partition("_")
    return {
        "slots": f"Perplexity on development texts by step, n={length}",
        "sharing": "Perplexity by step, for each way of sharing projections",
        "length": "Perplexity by step, for each length",
    }[kind]


def _perplexity_fold(runs: Sequence[Pretrained], grid: Grid) -> Fold:
    """Tables of perplexity by slots, by sharing and by length, and some answers."""
    note = (
        "Perplexity of tokens that were taken out of test texts: geometric means over seeds with their 95% intervals. Every "
        f"model was given up to {grid.step_tokens:,} tokens in each of as many steps. The best weights on development texts "
        "are taken."
    )
    parts = [paragraph(note)]
    for length, slots in grid.slots.items():
        parts.append(table(quality_table(f"By slots, n={length}", runs, [Variant(length, k) for k in (0, *slots)])))
    parts.append(table(quality_table(f"By sharing, n={grid.shared.length}, k={grid.shared.k}", runs, _ways(grid))))
    grown = [Variant(length, k) for length in grid.lengths for k in (0, grid.fixed_slots)]
    parts.append(table(quality_table(f"By length, k={grid.fixed_slots}", runs, grown)))
    parts.append(table(training.sample_table(_labelled(runs, [grid.shared.baseline, grid.shared], first=True))))
    return Fold("Perplexity", parts)


def slot_folds(rows: Sequence[Row], runs: Sequence[Pretrained], grid: Grid) -> list[Fold]:
    """Tables of slots by length, of errors at the longest length, and of what projections learn."""
    folds = []
    parts = [needed_table(needed)] if any(map(over_seeds, (needed := aims(rows, runs, grid)).values())) else []
    if lengths := [row["length"] for row in rows if row["metric"] == OUTPUT_ERROR]:
        parts.append(error_table(rows, max(lengths)))
    if parts:
        folds.append(Fold("Slots for a length", [paragraph(SLOTS_NOTE), *map(table, parts)]))
    if (learned := closeness_table(rows, grid)).rows:
        folds.append(Fold("What E and F learn", [paragraph(PROJECTION_NOTE), table(learned)]))
    return folds


def _ways(grid: Grid) -> list[Variant]:
    """Softmax, and every way of sharing projections."""
    return [grid.shared.baseline, *(grid.shared._replace(sharing=sharing) for sharing in SHARINGS)]


def perplexity_charts(runs: Sequence[Pretrained], grid: Grid) -> dict[str, alt.LayerChart]:
    """Charts of perplexity by step: for each number of slots, way of sharing, and length."""
    shown = {f"slots_{length}": [Variant(length, k) for k in (0, *slots)] for length, slots in grid.slots.items()}
    shown["sharing"] = _ways(grid)
    shown["length"] = [Variant(length, k) for k in (0, grid.fixed_slots) for length in grid.lengths]
    return {
        name: curves(training.points(_labelled(runs, variants), "perplexity"), "perplexity", log=True)
        for name, variants in shown.items()
        if _labelled(runs, variants)
    }


def _labelled(runs: Sequence[Pretrained], variants: Sequence[Variant], *, first: bool = False) -> list[training.Trained]:
    """The runs of the given models with their labels, of all seeds or of the first only."""
    labelled = []
    for variant in variants:
        models = [model for model in runs if model.variant == variant]
        for model in models[:1] if first else models:
            labelled.append(training.Trained(model.run, model.rows, name_of(variant, variants)))
    return labelled


def name_of(variant: Variant, among: Sequence[Variant]) -> str:
    """Label of a model: its attention and what distinguishes it among others."""
    slots = f"{LINFORMER} k={variant.k}" if variant.k else SOFTMAX
    length = f", n={variant.length}" if len({other.length for other in among}) > 1 else ""
    ways = {other.sharing for other in among if other.k}
    return slots + length + (f", one for {WORDS[variant.sharing]}" if variant.k and len(ways) > 1 else "")


def quality_table(caption: str, runs: Sequence[Pretrained], variants: Sequence[Variant]) -> Table:
    """Perplexity of each model, absolute and relative to softmax and to a unigram model, and accuracy."""
    rows = []
    for variant in variants:
        model_runs = [model_run for model_run in runs if model_run.variant == variant]
        if not model_runs:
            continue
        beside = geometric_ratio(nats(runs, variant), nats(runs, variant.baseline)) if variant.k else None
        accuracy = mean_over_seeds([value_on_test(model_run.rows, "accuracy") or 0.0 for model_run in model_runs])
        model = model_runs[0].run.about["options"]["model"]
        learned = variant.projections(model["layers"], model["heads"]) if variant.k else 0
        rows.append(
            [
                Cell(name_of(variant, variants)),
                Cell(str(len(model_runs)), len(model_runs)),
                Cell(str(learned), learned) if learned else MISSING,
                _cell(geometric_mean(nats(runs, variant)), ".1f"),
                _cell(beside),
                _cell(geometric_mean(above_unigram(runs, variant))),
                _cell(accuracy),
            ]
        )
    columns = ["model", "seeds", "projections", "perplexity", "times softmax's", "times the unigram's", "accuracy"]
    return Table(caption, columns, rows)


def _cell(interval: Interval | None, form: str = ".3f") -> Cell:
    return MISSING if interval is None else Cell(between(interval, form), interval.value)


def downstream_table(accuracies: Mapping[str, Mapping[int, float]]) -> Table:
    """Accuracy of classifiers on their test texts, by what they start from."""
    names = {SOFTMAX: "softmax, pretrained", LINFORMER: "linformer, pretrained", NOTHING: "softmax, from nothing"}
    rows = []
    for start, name in names.items():
        if by_seed := accuracies.get(start):
            rows.append([Cell(name), Cell(str(len(by_seed)), len(by_seed)), _cell(mean_over_seeds(list(by_seed.values())))])
    return Table("Accuracy on the test, which is another for each seed", ["model", "seeds", "accuracy"], rows)


def spectrum_table(spectra: Mapping[int, Sequence[Row]]) -> Table:
    """Share of the first singular values by layer: mean over heads, and over seeds with its interval."""
    rows = []
    shares = {model: [layer_shares(layers, model) for layers in spectra.values()] for model in ("trained", "random")}
    for layer in shares["trained"][0]:
        cells = [_cell(mean_over_seeds([layers[layer] for layers in by_seed])) for by_seed in shares.values()]
        rows.append([Cell(str(layer), layer), *cells])
    place = next(row for layers in spectra.values() for row in layers if row["metric"] == "share_at_index")
    caption = f"The share of the first {place['index']:.0f} of {place['length']:.0f} singular values"
    return Table(caption, ["layer", "trained", "fresh weights"], rows)
