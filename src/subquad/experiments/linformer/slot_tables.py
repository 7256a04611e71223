"""Tables of the number of slots for a length, of errors by slots, and of what the projections E and F learn."""

from collections.abc import Mapping, Sequence

from subquad.experiments.linformer.errors import OUTPUT_ERROR, WAYS
from subquad.experiments.linformer.grid import Grid
from subquad.experiments.linformer.learned import closeness_of
from subquad.experiments.linformer.needed import ERRORS, Needed, law, mean_errors, over_seeds
from subquad.experiments.linformer.projections import CHANGE, CLOSENESS, FRESH, LEARNED, TRAINED
from subquad.measure.lowrank import theorem_slots
from subquad.report.tables import NOTHING, Cell, Table
from subquad.results import Row
from subquad.statistics import Interval, mean_over_seeds
from subquad.words import between


def needed_table(needed_by_aim: Mapping[str, Needed]) -> Table:
    """Slots by aim and length, and the growth of slots with the length."""
    slots = {aim: over_seeds(needed) for aim, needed in needed_by_aim.items()}
    lengths = sorted({length for by_length in slots.values() for length in by_length})
    lines = []
    for aim, by_length in slots.items():
        growth = law(needed_by_aim[aim])
        laws = [NOTHING] * 4 if growth is None else list(map(cell, growth[1:]))
        lines.append([Cell(aim), *(cell(by_length.get(length)) for length in lengths), *laws])
    for error in ERRORS:
        promised = [theorem_slots(length, error) for length in lengths]
        lines.append([Cell(f"theorem 1: error {error:g}"), *(Cell(f"{k:.0f}", k) for k in promised), *[NOTHING] * 4])
    columns = ["aim", *(f"n={length}" for length in lengths), "for each doubling", "for each token", "exponent"]
    caption = "Slots that it takes: geometric means over seeds with 95% intervals; - if not reached with those tried"
    return Table(caption, [*columns, "misfit of log n, times that of n"], lines)


def error_table(rows: Sequence[Row], length: int) -> Table:
    """Errors of the output by slots and way, at one length."""
    counts = sorted({row["k"] for row in rows if row["metric"] == OUTPUT_ERROR and row["length"] == length})
    lines = [[Cell(way), *(cell(_over_seeds(mean_errors(rows, way, length, k)), ".3f") for k in counts)] for way in WAYS]
    caption = f"Relative error of softmax's output, n={length}: mean over layers and heads, over seeds with 95% intervals"
    return Table(caption, ["slots", *(f"k={k}" for k in counts)], lines)


def closeness_table(rows: Sequence[Row], grid: Grid) -> Table:
    """Closeness of every model's projections, trained and before, and the share of weights that is learned."""
    lines = []
    for variant in sorted(variant for variant in grid.variants if variant.k):
        pairs = [[closeness_of(rows, variant, metric, model) for model in (TRAINED, FRESH, CHANGE)] for metric in CLOSENESS]
        if all(interval is not None for pair in pairs for interval in pair):
            learned = closeness_of(rows, variant, LEARNED, CHANGE)
            name = [Cell(str(variant.length), variant.length), Cell(str(variant.k), variant.k), Cell(variant.sharing)]
            lines.append([*name, *map(_triple, pairs), cell(learned, ".3f")])
    columns = ["n", "k", "sharing", *CLOSENESS.values(), "learned"]
    caption = "Shares of squared weights: trained (fresh weights; what training changed), means over layers, heads and seeds"
    return Table(caption, columns, lines)


def _triple(intervals: Sequence[Interval | None]) -> Cell:
    trained, fresh, change = (interval.value if interval else 0.0 for interval in intervals)
    return Cell(f"{trained:.3f} ({fresh:.3f}; {change:.3f})", trained)


def _over_seeds(by_seed: Mapping[int, float]) -> Interval | None:
    return mean_over_seeds(list(by_seed.values())) if by_seed else None


def cell(interval: Interval | None, form: str = "") -> Cell:
    """A value with its interval, or a dash."""
    return NOTHING if interval is None else Cell(between(interval, form), interval.value)
