"""Labels of clients: from the texts in a table to classes, several labels, numbers, or times to an event."""

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray

from subquad.checking import excerpt
from subquad.data.columns import FEW, NUMBERS, TRUTHS, is_missing, number_form, split_cell
from subquad.data.tables import Chunk, listed
from subquad.data.times import attempt
from subquad.errors import SubquadError

TargetChoice = Literal["auto", "classes", "labels", "number", "event"]
ColumnTarget = Literal["auto", "classes", "labels", "number"]
LABEL, OBSERVED = "label", "observed"
UNLABELLED = -1
"""Number of the class of what has no label."""
MOST_CLASSES = 200
"""Largest number of classes or labels."""


class LabelTexts:
    """The label of each client as texts, one for each column of labels. Clients with contradicting texts have none."""

    def __init__(self, path: Path, columns: Sequence[str] = ("",)) -> None:
        """`columns` are the names of the columns; the role of the column at a place is that of `roles`."""
        self.path, self.columns = path, list(columns)
        self.of: dict[str, tuple[str, ...]] = {}
        self.twice: dict[str, None] = {}

    @property
    def roles(self) -> list[str]:
        """The roles of the columns in a chunk of rows."""
        return label_roles(len(self.columns))

    def add(self, chunk: Chunk) -> None:
        """Adds the labels of a chunk of rows. Labels all of whose texts are empty are ignored."""
        cells = [chunk.columns[role] for role in (*self.roles, *([OBSERVED] if OBSERVED in chunk.columns else []))]
        for client, *texts in dict.fromkeys(zip(chunk.columns["client"], *cells, strict=True)):
            client, label = client.strip(), tuple(text.strip() for text in texts)
            if any(label) and client and self.of.setdefault(client, label) != label:
                self.twice[client] = None

    def sentences(self) -> list[str]:
        """A sentence about clients with contradicting labels."""
        if not self.twice:
            return []
        return [f"{self.path.name}: {count(self.twice, 'client')} not trained on, with two labels: {first(self.twice)}"]

    def texts(self, clients: Sequence[str]) -> list[tuple[str, ...] | None]:
        """The texts of each client; None for a client without a label."""
        return [self.of.get(client) if client not in self.twice else None for client in clients]


def label_roles(columns: int) -> list[str]:
    """Roles of so many columns of labels."""
    return [LABEL] if columns == 1 else [f"{LABEL} {at}" for at in range(columns)]


class Labelled(NamedTuple):
    """What is predicted of each client."""

    kind: str
    names: tuple[str, ...]
    numbers: Int[ndarray, "clients"]
    """Number of the class, 0 where another target is known, -1 for a client without a target."""
    truth: Float[ndarray, "clients k"] | None
    """The target where it is no class."""
    complaints: list[str]

    @property
    def targets(self) -> Float[ndarray, "clients k"]:
        """The targets as numbers: the number of the class where there are classes."""
        return self.numbers[:, None].astype(np.float64) if self.truth is None else self.truth


def label_column(source: str, texts: Sequence[str | None], target: ColumnTarget = "auto") -> Labelled:
    """Reads the labels in one column, None where one is missing, as the kind of target that they are, or that is named."""
    labels = LabelTexts(Path(source))
    written = [None if text is None else (text,) for text in texts]
    kind = target if target != "auto" else _recognise(written, labels)
    labelled = _read_kind(kind, labels.path, written, labels, None)
    missing = int((labelled.numbers == UNLABELLED).sum())
    said = [f"{missing:,} sequences without a label are not used"] if missing else []
    return labelled._replace(complaints=[*labelled.complaints, *said])


def read_labels(
    path: Path, clients: list[str], labels: LabelTexts, target: TargetChoice, order: tuple[str, str] | None = None
) -> Labelled:
    """Reads the labels of the clients as the kind of target that they are, or that is named."""
    written = labels.texts(clients)
    kind = target if target != "auto" else _recognise(written, labels)
    labelled = _read_kind(kind, path, written, labels, order)
    return labelled._replace(complaints=[*labelled.complaints, *labels.sentences(), *_unmatched(clients, labelled, labels)])


def _read_kind(
    kind: str,
    path: Path,
    written: Sequence[tuple[str, ...] | None],
    labels: LabelTexts,
    order: tuple[str, str] | None,
) -> Labelled:
    if kind == "event":
        return _event(path, written)
    if kind == "number":
        return _number(path, written)
    return _labels(path, written, labels) if kind == "labels" else _classes(path, written, order)


def _recognise(written: Sequence[tuple[str, ...] | None], labels: LabelTexts) -> str:
    known = [texts for texts in written if texts is not None]
    if known and len(known[0]) > len(labels.columns):
        return "event"
    if len(labels.columns) > 1:
        return "labels"
    values = {texts[0] for texts in known if not is_missing(texts[0])}
    if len(values) > FEW and None not in _numbers(values).values():
        return "number"
    parts = {part for text in values for part in split_cell(text, "|")}
    return "labels" if any("|" in text for text in values) and len(parts) < len(values) + 2 else "classes"


def _numbers(texts: Iterable[str]) -> dict[str, float | None]:
    """The numbers in texts that are all written in one way, by text; None for what is no number."""
    counts = Counter(text for text in texts if not is_missing(text))
    read = NUMBERS[number_form(counts)[0]]
    return {text: value if np.isfinite(value := attempt(read, text)) else None for text in counts}


def _classes(path: Path, written: Sequence[tuple[str, ...] | None], order: tuple[str, str] | None) -> Labelled:
    texts = [None if label is None or is_missing(label[0]) else label[0] for label in written]
    values = _sorted({text for text in texts if text is not None})
    if not 2 <= len(values) <= MOST_CLASSES:
        what = f"{len(values):,} values ({listed(values)})" if values else "no value at all"
        advice = "; for a number, give --target number" if len(values) > MOST_CLASSES else ""
        raise SubquadError(f"the label in {path} must have two to {MOST_CLASSES} values, but has {what}{advice}")
    names = order if order and set(values) <= set(order) else tuple(values)
    numbered = {name: at for at, name in enumerate(names)}
    numbers = np.array([UNLABELLED if text is None else numbered[text] for text in texts])
    return Labelled("classes", names, numbers, None, [])


def _sorted(texts: set[str]) -> list[str]:
    """Texts in the order of the numbers that they are, then all others in alphabetical order."""
    numbers = _numbers(texts)
    return sorted(texts, key=lambda text: (numbers.get(text) is None, numbers.get(text) or 0.0, text))


def _labels(path: Path, written: Sequence[tuple[str, ...] | None], labels: LabelTexts) -> Labelled:
    """Several columns with two values each, or one column with several values in a cell."""
    if len(labels.columns) > 1:
        names = tuple(labels.columns)
        truth = np.stack([_truths(path, name, written, at) for at, name in enumerate(names)], axis=1)
    else:
        cells = [None if label is None else split_cell(label[0], "|") for label in written]
        names = tuple(_sorted({part for parts in cells if parts is not None for part in parts}))
        truth = np.array([[np.nan if parts is None else float(name in parts) for name in names] for parts in cells])
    if not 2 <= len(names) <= MOST_CLASSES:
        raise SubquadError(f"{path} must have two to {MOST_CLASSES} different labels, but has {len(names):,}")
    known = ~np.isnan(truth).all(1)
    return Labelled("labels", names, np.where(known, 0, UNLABELLED), truth, [])


def _truths(path: Path, name: str, written: Sequence[tuple[str, ...] | None], at: int) -> Float[ndarray, "clients"]:
    texts = ["" if label is None else label[at].lower() for label in written]
    values = sorted({text for text in texts if not is_missing(text)})
    pair = next((pair for pair in TRUTHS if set(values) <= set(pair)), None)
    if pair is None and len(values) == 2:
        pair = (values[0], values[1])
    if pair is None or not values:
        raise SubquadError(f"the label {name!r:.60} in {path} must have two values, but has {listed(values)}")
    return np.array([{pair[0]: 0.0, pair[1]: 1.0}.get(text, np.nan) for text in texts])


def _number(path: Path, written: Sequence[tuple[str, ...] | None]) -> Labelled:
    numbers = _first_numbers(written)
    truth = np.array([np.nan if number is None or abs(number) > 1e30 else number for number in numbers])[:, None]
    known = ~np.isnan(truth[:, 0])
    unreadable = [
        label[0]
        for label, is_known in zip(written, known, strict=True)
        if label is not None and not is_known and not is_missing(label[0])
    ]
    if len(np.unique(truth[known])) < 2:
        raise SubquadError(f"the label in {path} must have two numbers or more, but has {len(np.unique(truth[known]))}")
    said = [f"{count(unreadable, 'label')} no number and left out: {first(unreadable)}"] if unreadable else []
    return Labelled("number", (), np.where(known, 0, UNLABELLED), truth, said)


def _first_numbers(written: Sequence[tuple[str, ...] | None]) -> list[float | None]:
    """The number in the first text of each client; None for a client without one."""
    numbers = _numbers(label[0] for label in written if label is not None)
    return [None if label is None else numbers.get(label[0]) for label in written]


def _event(path: Path, written: Sequence[tuple[str, ...] | None]) -> Labelled:
    if any(label is not None and len(label) < 2 for label in written):
        raise SubquadError(
            "--target event needs to know whether the event was observed: name the column by --observed-column"
        )
    times = _first_numbers(written)
    observed = _truths(path, OBSERVED, [None if label is None else label[1:] for label in written], 0)
    truth = np.stack([np.array([np.nan if time is None else time for time in times]), observed], axis=1)
    known = ~np.isnan(truth).any(1) & (truth[:, 0] >= 0)
    if not truth[known, 1].any():
        raise SubquadError(f"no event of {path}'s clients was observed: there is nothing to learn")
    left = int(sum(label is not None for label in written) - known.sum())
    said = [f"{left:,} clients left out whose time is no number from 0 on, or not known to be observed"] if left else []
    return Labelled("event", (), np.where(known, 0, UNLABELLED), np.where(known[:, None], truth, np.nan), said)


def _unmatched(clients: list[str], labelled: Labelled, labels: LabelTexts) -> list[str]:
    complaints = []
    without = [clients[at] for at in np.flatnonzero(labelled.numbers == UNLABELLED)]
    if without:
        complaints.append(f"{count(without, 'client')} not trained on, without a label: {first(without)}")
    known = set(clients)
    eventless = [client for client in labels.of if client not in known]
    if eventless:
        complaints.append(
            f"{labels.path.name}: {count(eventless, 'client')} with a label but without events: {first(eventless)}"
        )
    return complaints


def count(names: Iterable[str], noun: str) -> str:
    """A number of things with the verb, such as `3 clients are`."""
    number = len(list(names))
    return f"1 {noun} is" if number == 1 else f"{number:,} {noun}s are"


def first(names: Iterable[str]) -> str:
    """The only name, or the first of several and that it is the first."""
    all_names = list(names)
    return excerpt(all_names[0]) if len(all_names) == 1 else f"the first is {excerpt(all_names[0])}"
