"""What the data hold: clients, events, the target, and each column with its kind, values and missing values."""

from collections.abc import Iterator

import numpy as np

from subquad.data.times import DAY
from subquad.tasks.columns.summary import Entry, column_entry, entry, used_columns
from subquad.tasks.targets.labels import UNLABELLED
from subquad.tasks.transactions.features import Features
from subquad.tasks.transactions.histories import Histories
from subquad.words import compact


def summarise(histories: Histories, features: Features) -> tuple[Entry, ...]:
    """Returns the lines of the summary: an overview, the target, the columns that are used, those that are not."""
    return (
        entry("clients", "overview", "", len(histories.clients), note=_lengths(histories)),
        entry("events", "overview", "", len(histories.times), note=_span(histories)),
        *_target(histories),
        *_roles(histories),
        *(column_entry(column, "event") for column in used_columns(histories.columns, features.further_columns)),
        *(column_entry(column, "client") for column in used_columns(histories.static, features.static_columns)),
        *(entry(name, "unused", "", 0, note=why) for name, why in features.unused),
    )


def _lengths(histories: Histories) -> str:
    shortest, middle, longest = np.quantile(histories.lengths, (0.0, 0.5, 1.0))
    return f"{shortest:.0f} to {longest:.0f} events each, {middle:.0f} in the middle"


def _span(histories: Histories) -> str:
    return f"over {compact(float(histories.times.max() - histories.times.min()) / DAY)} days"


def _target(histories: Histories) -> Iterator[Entry]:
    known = histories.labels != UNLABELLED
    if histories.label_names is None or not known.any():
        return
    truth, names = histories.targets[known], histories.label_names
    if histories.target_kind == "classes":
        counts = np.bincount(truth[:, 0].astype(int), minlength=len(names))
        note = ", ".join(f"{name}: {count:,}" for name, count in zip(names[:8], counts, strict=False))
        note += ", ..." if len(names) > 8 else ""
    elif histories.target_kind == "labels":
        shares = np.nanmean(truth, axis=0)
        note = ", ".join(f"{name}: {share:.0%}" for name, share in zip(names[:8], shares, strict=False))
    elif histories.target_kind == "event":
        note = (
            f"observed for {truth[:, 1].mean():.0%}, times from {compact(truth[:, 0].min())} to {compact(truth[:, 0].max())}"
        )
    else:
        note = f"{compact(truth.min())} to {compact(truth.max())}, mean {compact(truth.mean())}"
    yield entry("target", "target", histories.target_kind, int(known.sum()), float(1 - known.mean()), note)


def _roles(histories: Histories) -> Iterator[Entry]:
    for name, numbers, names in (
        ("code", histories.codes, histories.code_names),
        ("type", histories.types, histories.type_names),
    ):
        if name in histories.fields:
            missing = float((numbers == names.index("")).mean()) if "" in names else 0.0
            yield entry(name, "event", "category", len(set(names) - {""}), missing)
    if "amount" in histories.fields:
        known = histories.amounts[~np.isnan(histories.amounts)]
        note = f"{compact(float(known.min()))} to {compact(float(known.max()))}" if len(known) else ""
        missing = 1.0 - len(known) / len(histories.amounts)
        yield entry("amount", "event", "number", len(np.unique(known[:100_000])), missing, note)
