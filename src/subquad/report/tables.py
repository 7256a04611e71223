"""Tables of a comparison, for the terminal and for the page."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

from subquad.compare import linformer_table as linformer
from subquad.compare.sentences import longest_speedups, pays_from
from subquad.compare.views import (
    BASELINE,
    FORMS,
    MATERIALISED,
    WHATS,
    WORDS,
    Comparison,
    View,
    name_setting,
    name_view,
)
from subquad.words import amount, between, digits, duration, memory_ratio


class Cell(NamedTuple):
    """The text of a cell, and the number to sort by."""

    text: str
    value: float | None = None


class Table(NamedTuple):
    """A caption, the heads of its columns, and rows of cells."""

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]


NOTHING = Cell("-")


SUMMARY_ROWS = 40
"""Largest number of rows in the summary: room for all attentions in both forms and the decoding step."""
SUMMARY_WORDS = {"step": "decoding step", "update": "training step"}


def summary(comparison: Comparison, views: Sequence[View]) -> Table:
    """Returns the summary: from which length each attention pays, and its speed and memory at the longest length."""
    rows: list[list[Cell]] = []
    for view in views:
        form = view.form if view.what == views[0].what else f"{view.form}, {view.what}"
        heading = Cell(", ".join(filter(None, (SUMMARY_WORDS.get(view.what, form), name_setting(view, views)))))
        attentions = [name for name in comparison.measured(view) if name not in (BASELINE, MATERIALISED)]
        added = [_summary_row(comparison, view, name) for name in attentions]
        if added and len(rows) + len(added) < SUMMARY_ROWS:
            rows += [[Cell(f"{heading.text}:"), *[Cell("")] * 3], *added]
    work = f": {WORDS[views[0].what]}" if views else ""
    return Table(f"Beside PyTorch's softmax{work}", ["attention", "pays from", "times as fast", "memory"], rows)


def _summary_row(comparison: Comparison, view: View, name: str) -> list[Cell]:
    crossing = comparison.crossover(view, name)
    start = NOTHING if crossing is None else Cell(pays_from(crossing, with_range=False), crossing.middle)
    longest_known = longest_speedups(comparison, view).get(name)
    if longest_known is None:
        return [Cell(name), start, NOTHING, NOTHING]
    length, speedup = longest_known
    ours, theirs = (comparison.peak(view, mechanism, length) for mechanism in (name, BASELINE))
    memory = NOTHING if ours is None or theirs is None else Cell(memory_ratio(ours, theirs), ours)
    return [Cell(name), start, Cell(f"{digits(speedup.value)}x at {length}", speedup.value), memory]


def crossovers(comparison: Comparison) -> Iterator[Table]:
    """Yields tables for each setting: from which length each mechanism is faster or needs less memory than softmax."""
    for setting in dict.fromkeys(view.setting for view in comparison.views):
        views = [view for view in comparison.views if view.setting == setting]
        label = name_setting(views[0], comparison.views)
        for caption, cell in (
            ("Pays from, tokens (range in which a repeated run would find it)", _crossover),
            ("Needs less memory from, tokens (the shortest measured length)", _memory_crossover),
        ):
            yield _by_work(comparison, views, caption + (f"; {label}" if label else ""), cell)


def _by_work(
    comparison: Comparison, views: Sequence[View], caption: str, cell: Callable[[Comparison, View | None, str], Cell]
) -> Table:
    """Returns a table with a row for each mechanism and form, and a column for each kind of work."""
    used = [what for what in WHATS if any(view.what == what for view in views)]
    rows = []
    for name, form in product((name for name in comparison.mechanisms if name != BASELINE), FORMS):
        cells = [cell(comparison, _find(views, form, what), name) for what in used]
        if any(entry is not NOTHING for entry in cells):
            rows.append([Cell(f"{name}, {form}"), *cells])
    return Table(caption, ["attention", *used], rows)


def _find(views: Sequence[View], form: str, what: str) -> View | None:
    return next((view for view in views if (view.form, view.what) == (form, what)), None)


def _crossover(comparison: Comparison, view: View | None, name: str) -> Cell:
    crossing = comparison.crossover(view, name) if view is not None else None
    return NOTHING if crossing is None else Cell(pays_from(crossing), crossing.middle or crossing.last_length * 2)


def _memory_crossover(comparison: Comparison, view: View | None, name: str) -> Cell:
    if view is None or name not in comparison.measured(view):
        return NOTHING
    shared = [
        length
        for length in comparison.lengths(view, name)
        if None not in [comparison.peak(view, each, length) for each in (name, BASELINE)]
    ]
    if not shared:
        return NOTHING
    start, last = comparison.memory_crossover(view, name), max(shared)
    return Cell(f"not up to {last}", 2 * last) if start is None else Cell(f"{start:.0f}", start)


def longest(comparison: Comparison) -> Table:
    """Returns the table of speed and memory at the longest length of each view with a baseline measurement."""
    rows = []
    for view in comparison.views:
        for name, (length, speedup) in longest_speedups(comparison, view).items():
            peaks = [_peak(comparison, view, mechanism, length) for mechanism in (name, BASELINE)]
            work = Cell(name_view(view, comparison.views))
            rows.append([work, Cell(name), Cell(str(length), length), Cell(between(speedup), speedup.value), *peaks])
    columns = ["work", "attention", "tokens", "times as fast as softmax", "memory", "softmax's"]
    return Table("At the longest length measured", columns, rows)


def _peak(comparison: Comparison, view: View, name: str, length: int) -> Cell:
    peak = comparison.peak(view, name, length)
    return NOTHING if peak is None else Cell(amount(peak), peak)


def view_table(comparison: Comparison, view: View) -> Table:
    """Returns the table of all measurements in one view."""
    rows = []
    for name in comparison.measured(view):
        for length, seconds in comparison.seconds(view, name).items():
            costs = comparison.speedup(view, name, length)
            middle = comparison.middle(view, name, length)
            rows.append(
                [
                    Cell(name),
                    Cell(str(length), length),
                    Cell(duration(middle), middle),
                    NOTHING if costs is None or name == BASELINE else Cell(between(costs), costs.value),
                    _peak(comparison, view, name, length),
                    Cell(str(len(seconds)), len(seconds)),
                ]
            )
    failures = [(name, failure) for (at, name), failure in comparison.failures.items() if at == view]
    rows += [
        [Cell(name), Cell(str(failure.length), failure.length), Cell(failure.failure), NOTHING, NOTHING, NOTHING]
        for name, failure in failures
    ]
    columns = ["attention", "tokens", "time", "times as fast as softmax", "memory", "visits"]
    return Table(name_view(view, comparison.views), columns, rows)


def growths(comparison: Comparison, traits: Mapping[str, Mapping[str, Any]]) -> Table:
    """Returns the table of the measured growth of time with the length, and the formulas."""
    rows = []
    for view in comparison.views:
        for name in comparison.measured(view):
            growth = comparison.growth(view, name)
            if growth is None or growth.exponent is None:
                continue
            about = traits.get(name, {})
            formula = about.get("time", "-")
            if view.what == "step" and not about.get("foreign"):
                formula = "constant" if about.get("constant_state", not about.get("exact")) else "L d"
            rows.append(
                [
                    Cell(name_view(view, comparison.views)),
                    Cell(name),
                    Cell(formula),
                    Cell(about.get("space", "-")),
                    Cell(between(growth.exponent), growth.exponent.value),
                    Cell(_polynomial(growth.constant, growth.linear, growth.quadratic)),
                ]
            )
    return Table(
        "Growth with the length L: formulas of one head (d: its width, m: features, k: slots) and the measured exponent",
        ["work", "attention", "time", "space", "exponent, upper half", "fit, µs"],
        rows,
    )


def _polynomial(constant: float, linear: float, quadratic: float) -> str:
    terms = [(constant * 1e6, ""), (linear * 1e6, " L"), (quadratic * 1e6, " L²")]
    return " + ".join(f"{value:.3g}{name}" for value, name in terms if value > 0) or "0"


def mutual(comparison: Comparison, view: View) -> Table | None:
    """Returns the table of lengths from which each mechanism is faster than each other; None for fewer than three."""
    names = comparison.measured(view)
    if len(names) < 3:
        return None
    rows = []
    for name in names:
        cells = [_mutual(comparison, view, name, other) for other in names]
        rows.append([Cell(name), *cells])
    return Table(
        f"Faster than each other from, tokens: {name_view(view, comparison.views)}",
        ["", *(f"than {name}" for name in names)],
        rows,
    )


def _mutual(comparison: Comparison, view: View, name: str, other: str) -> Cell:
    crossing = None if name == other else comparison.crossover(view, name, other)
    return NOTHING if crossing is None else Cell(pays_from(crossing), crossing.middle or crossing.last_length * 2)


def sizes(rows: Sequence[Mapping[str, Any]]) -> Table | None:
    """Returns the table of parameters and bytes of one transformer layer, by the length it is built for."""
    numbers = {(row["mechanism"], row["length"]): row["value"] for row in rows if row["metric"] == "parameters"}
    byte_sizes = {(row["mechanism"], row["length"]): row["value"] for row in rows if row["metric"] == "parameter_bytes"}
    if not numbers:
        return None
    lengths = sorted({length for _, length in numbers})
    names = list(dict.fromkeys(name for name, _ in numbers))
    both = numbers.keys() & byte_sizes.keys()  # a truncated run may have only one of the two

    def cell(name: str, at: float) -> Cell:
        is_known = (name, at) in both
        return (
            Cell(f"{digits(numbers[name, at] / 1e6)} M, {amount(byte_sizes[name, at])}", byte_sizes[name, at])
            if is_known
            else NOTHING
        )

    body = [[Cell(name), *(cell(name, at) for at in lengths)] for name in names]
    return Table(
        "Size of one transformer layer built for a length: numbers held, bytes", ["attention", *map(str, lengths)], body
    )


def linformer_grids(comparison: Comparison) -> Iterator[Table]:
    """Yields tables of Linformer's speed-up and memory by length and slots; none for a run without such a grid."""
    slots = linformer.slots(comparison)
    view = linformer.layer_view(comparison)
    if not slots or view is None:
        return
    lengths = sorted({length for k in slots for length in comparison.lengths(view, linformer.name_of(k))})
    if not lengths:
        return
    entries = {(n, k): linformer.entry(comparison, view, n, k) for n in lengths for k in slots}
    for caption, cell in (
        ("Linformer by length n and slots k, a whole layer: times as fast as fused softmax", _over_fused),
        ("The same: times as fast as materialised softmax | times less memory", _over_materialised),
        ("Published (Wang et al. 2020, table 3): times as fast as the Transformer | times less memory", _published),
    ):
        rows = [[Cell(str(n), n), *(cell(entries[n, k]) for k in slots)] for n in lengths]
        yield Table(caption, ["n", *(f"k={k}" for k in slots)], rows)


def _over_fused(entry: linformer.Entry) -> Cell:
    return NOTHING if entry.over_fused is None else Cell(digits(entry.over_fused), entry.over_fused)


def _over_materialised(entry: linformer.Entry) -> Cell:
    if entry.over_materialised is None or entry.memory_saved is None:
        return NOTHING
    return Cell(f"{digits(entry.over_materialised)} | {digits(entry.memory_saved)}", entry.over_materialised)


def _published(entry: linformer.Entry) -> Cell:
    return NOTHING if entry.published is None else Cell("{:g} | {:g}".format(*entry.published), entry.published[0])
