"""Reading sequences of symbols: lines of text, tables with a row for each sequence or each symbol, arrays, FASTA."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Int
from numpy import ndarray

from subquad.checking import excerpt
from subquad.data.arrays import ARRAYS, read_labelled_array
from subquad.data.columns import is_missing
from subquad.data.datasets import TABLES, told_splits
from subquad.data.splits import SplitName
from subquad.data.tables import STORED, Chunk, StoredColumn, Tally, find_column, listed, read_table
from subquad.data.texts import LeftOut, files_at, text_of
from subquad.data.times import WRITTEN, day_is_first, guess, is_ambiguous, lenient, numbers
from subquad.errors import SubquadError
from subquad.tasks.tokens.forms import Form, recognise_form

FASTA = (".fa", ".fasta", ".fna", ".ffn", ".faa", ".fa.gz", ".fasta.gz", ".fna.gz")
LINES = (".txt", ".tokens", ".log", ".seq", ".txt.gz", ".log.gz", ".seq.gz")
SUFFIXES = (*LINES, *TABLES, *ARRAYS, *FASTA)
"""Ends of names of files that are read in a folder. A single file with another name is read as lines of text."""

SEQUENCES = ("sequence", "tokens", "seq", "symbols", "input_ids", "text", "path")
"""Usual names of the column of a table that has a row for each sequence."""
TOKENS = ("token", "symbol", "item", "event", "page", "action", "type", "code")
"""Usual names of the column of a table that has a row for each symbol."""
IDS = ("id", "sequence_id", "sequence", "session", "session_id", "user", "user_id", "client", "case", "case_id", "name")
"""Usual names of the column that says which sequence a row belongs to."""
ORDERS = ("order", "position", "index", "step", "time", "timestamp", "date")
"""Usual names of the column by which the symbols of a sequence are ordered."""
LABELS = ("label", "labels", "class", "target", "y")
"""Usual names of the column of labels."""


class Columns(NamedTuple):
    """Names of the columns of a table. An empty name stands for the usual ones."""

    sequence: str = ""
    token: str = ""
    id: str = ""
    order: str = ""
    label: str = ""
    needs_label: bool = True
    """Whether a table without the column that `label` names is refused."""

    def of_table(self, names: Sequence[str]) -> "Columns":
        """The names without that of a column of labels that is not needed and not there."""
        return self if self.needs_label or self.label in names else self._replace(label="")


class Written(NamedTuple):
    """Sequences as they are written in a file: texts, lists of symbols, or numbers."""

    names: list[str]
    texts: Sequence[str] | Sequence[Sequence[str]]
    labels: list[str] | None
    form: Form | None
    """Form of the texts; None for one that is to be recognised."""
    said: str = ""
    """Which columns were taken, for people."""


class SymbolSequences(NamedTuple):
    """Sequences of symbols as indices into an alphabet, with labels if there are some."""

    names: list[str]
    sequences: list[Int[ndarray, "n"]]
    alphabet: list[str]
    labels: list[str | None] | None
    form: Form
    told: dict[SplitName, list[int]]
    """Indices of the sequences of each split, if the names of files tell the splits."""
    said: tuple[str, ...] = ()
    """What was recognised, for people."""
    complaints: tuple[str, ...] = ()

    @property
    def lengths(self) -> Int[ndarray, "sequences"]:
        """Number of symbols of each sequence."""
        return np.array([len(sequence) for sequence in self.sequences], np.int64)

    def take(self, places: Sequence[int]) -> "SymbolSequences":
        """The sequences at these places."""
        labels = None if self.labels is None else [self.labels[at] for at in places]
        names, sequences = [self.names[at] for at in places], [self.sequences[at] for at in places]
        return self._replace(names=names, sequences=sequences, labels=labels, told={})


def load_symbols(
    path: Path, columns: Columns | None = None, *, form: Form | None = None, keep_empty: bool = False, labels: bool = True
) -> SymbolSequences:
    """Reads all sequences at a path. `form` says how they are written; with None it is recognised.

    Sequences without symbols are left out unless `keep_empty`. Without `labels`, a column of labels may be missing.
    """
    columns = (columns or Columns())._replace(needs_label=labels)
    files, left_out, tallied = list(files_at(path, SUFFIXES)), LeftOut(), list[str]()
    told_of = told_splits([name for _, name in files], SUFFIXES)
    alphabet: dict[str, int] = {}
    names, sequences, written_labels, said = list[str](), list[ndarray](), list[str | None](), list[str]()
    told: dict[SplitName, list[int]] = {}
    for file, name in files:
        if told_of and name not in told_of:
            left_out.add("file", "as its name tells no split", name)
            continue
        written = _read(file, name, columns, left_out, tallied, alone=file == path)
        file_form = written.form or form or recognise_form([text for text in written.texts if isinstance(text, str)])
        said += [] if written.said in said or not written.said else [written.said]
        form = form or file_form  # the form of the first file is that of all
        for at, text in enumerate(written.texts):
            sequence = _numbered(file_form, text, alphabet)
            if not len(sequence) and not keep_empty:
                left_out.add("sequence", "without symbols", f"{name}: {written.names[at]}")
                continue
            if told_of:
                told.setdefault(told_of[name], []).append(len(names))
            names.append(written.names[at] if len(files) == 1 else f"{name}: {written.names[at]}")
            sequences.append(sequence)
            written_labels.append(None if written.labels is None else _label(written.labels[at]))
    if not sequences:
        why = [*left_out.sentences(path), *tallied]
        raise SubquadError(f"{path} has no sequence that can be used: {why[0] if why else 'it is empty'}")
    assert form is not None
    known = written_labels if any(label is not None for label in written_labels) else None
    complaints = (*left_out.sentences(path), *tallied)
    return SymbolSequences(names, sequences, list(alphabet), known, form, told, tuple(said), complaints)


def _numbered(form: Form, text: str | Sequence[str], alphabet: dict[str, int]) -> Int[ndarray, "n"]:
    """The number of each symbol of a text or list; new symbols are added to the alphabet."""
    if form.characters and isinstance(text, str):  # without an object for each character, because genomes are long
        codes = np.frombuffer(text.strip().encode("utf-32-le", errors="replace"), np.uint32)
        different, places = np.unique(codes, return_inverse=True)
        known = [alphabet.setdefault(chr(code), len(alphabet)) for code in different.tolist()]
        return np.array(known, np.int32)[places]
    symbols = form.split(text) if isinstance(text, str) else text
    return np.fromiter((alphabet.setdefault(symbol, len(alphabet)) for symbol in symbols), np.int32, len(symbols))


def _label(text: str) -> str | None:
    return None if is_missing(text.strip()) else text.strip()


def _read(file: Path, name: str, columns: Columns, left_out: LeftOut, tallied: list[str], *, alone: bool) -> Written:
    lowered = name.lower()
    if lowered.endswith(ARRAYS):
        return _read_arrays(file)
    if lowered.endswith(TABLES):
        return _read_columns(file, columns, tallied)
    text = text_of(file, left_out, alone=alone, name=name)
    if text is None:
        return Written([], [], None, None)
    if lowered.endswith(FASTA):
        return _read_fasta(file, text)
    lines = [(number, line) for number, line in enumerate(text.split("\n"), start=1) if line.strip()]
    return Written([f"line {number}" for number, _ in lines], [line for _, line in lines], None, None)


def _read_fasta(file: Path, text: str) -> Written:
    """Records of FASTA: a line with ``>`` and a name, then lines of characters. Upper and lower case are the same."""
    names, parts = list[str](), list[list[str]]()
    for line in text.splitlines():
        if line.startswith(">"):
            names.append(line[1:].split()[0] if line[1:].split() else f"record {len(names) + 1}")
            parts.append([])
        elif line.strip() and not line.startswith(";"):
            if not names:
                raise SubquadError(f"{file} does not begin with > and a name: it is no FASTA file")
            parts[-1].append(line.strip().upper())
    return Written(names, ["".join(lines) for lines in parts], None, Form(characters=True))


def _read_arrays(file: Path) -> Written:
    """Rows of whole numbers; negative ones at the end of a row fill it up."""
    inputs, labels = read_labelled_array(file)
    if inputs.ndim > 2 or inputs.dtype.kind not in "iub":
        raise SubquadError(
            f"{file} holds an array of shape {inputs.shape} and type {inputs.dtype}: sequences of symbols are rows of whole "
            "numbers; for real numbers, use the task series"
        )
    rows = inputs.reshape(1, -1) if inputs.ndim == 1 else inputs
    if labels is not None and len(labels) != len(rows):
        raise SubquadError(f"{file} has {len(rows):,} sequences and {len(labels):,} labels: there should be one for each")
    ends = [len(row) if row[-1] >= 0 else int(np.flatnonzero(np.append(0, row) >= 0)[-1]) for row in rows.astype(np.int64)]
    texts = [[str(number) for number in row[:end].tolist()] for row, end in zip(rows, ends, strict=True)]
    said = "negative numbers at the end of a row are taken for padding" if min(ends) < rows.shape[1] else ""
    return Written([f"row {at}" for at in range(1, len(rows) + 1)], texts, labels, Form(), said)


def _read_columns(file: Path, columns: Columns, tallied: list[str]) -> Written:
    tally = Tally(file, "row" if file.suffix.lower() in STORED else "line")
    roles: dict[str, str] = {}

    def choose(names: list[str]) -> dict[str, str]:
        roles.update(choose_columns(file, names, columns))
        return roles

    chunks = list(read_table(file, choose, tally, quoted=file.suffix.lower() != ".tsv"))
    tallied += tally.sentences()
    if chunks and "order" in roles and guess(cells := chunks[0].columns["order"]) == "day-first" and is_ambiguous(cells):
        tallied.append(day_is_first(file.name, can_choose=False))
    said = "columns: " + ", ".join(f"{role} {excerpt(name)}" for role, name in roles.items())
    return (_joined(file, chunks) if "token" in roles else _by_row(chunks))._replace(said=said)


def choose_columns(path: Path, names: Sequence[str], columns: Columns) -> dict[str, str]:
    """The columns of a table by role: sequence, or token and id, with order and label if there are such."""

    def usual(known: Iterable[str], *taken: str | None) -> str | None:
        lowered = {name.lower(): name for name in reversed(names) if name not in taken}
        return next((lowered[name] for name in known if name in lowered), None)

    columns = columns.of_table(names)
    for option in ("sequence", "token", "id", "order", "label"):
        if name := getattr(columns, option):
            find_column(path, names, name, (), f"--{option}-column", option)
    label = columns.label or usual(LABELS)
    token = columns.token or usual(TOKENS, label)
    identifier = columns.id or usual(IDS, label, token)
    order = columns.order or usual(ORDERS, label, token, identifier)
    sequence = columns.sequence or usual(SEQUENCES, label, token)
    is_long = bool(token and identifier) and (order is not None or sequence in (None, identifier))
    if columns.token or (is_long and not columns.sequence):
        if identifier is None:
            raise SubquadError(
                f"{path} has no column that names the sequence of a token but {listed(names)}: give --id-column"
            )
        chosen = {"token": token, "id": identifier, "order": order, "label": label}
    else:
        others = [name for name in names if name not in (label, identifier)]
        sequence = sequence or (others[0] if len(others) == 1 else None)
        if sequence is None:
            raise SubquadError(
                f"{path} has no column of sequences but {listed(names)}: name it by --sequence-column, or --token-column "
                "and --id-column for a table with a row for each token"
            )
        chosen = {"sequence": sequence, "id": identifier if identifier != sequence else None, "label": label}
    return {role: name for role, name in chosen.items() if name}


def _by_row(chunks: Sequence[Chunk]) -> Written:
    """A sequence in each row."""
    cells = [cell for chunk in chunks for cell in _cells(chunk.columns["sequence"])]
    lines = [f"line {line}" for chunk in chunks for line in chunk.lines]
    has_names, has_labels = (all(role in chunk.columns for chunk in chunks) for role in ("id", "label"))
    named = [text.strip() for chunk in chunks for text in chunk.columns["id"]] if has_names else lines
    names = [name or line for name, line in zip(named, lines, strict=True)]
    labels = [text for chunk in chunks for text in chunk.columns["label"]] if has_labels and chunks else None
    has_lists = any(not isinstance(cell, str) for cell in cells)
    return Written(names, cells, labels, Form() if has_lists else None)


def _cells(column: Sequence[str]) -> Sequence[str] | list[list[str]]:
    """The sequences of a column: texts, or lists as they are stored, whose symbols may have spaces in them."""
    lists = column.lists if isinstance(column, StoredColumn) else None
    if lists is None:
        return column
    texts = ([str(symbol).strip() for symbol in cell or () if symbol is not None] for cell in lists.to_pylist())
    return [[text for text in each if text] for each in texts]


def _joined(file: Path, chunks: Sequence[Chunk]) -> Written:
    """Sequences from a table with a row for each symbol, in the order of a column or of the rows."""
    tokens: dict[str, list[str]] = {}
    orders: dict[str, list[float]] = {}
    labels: dict[str, str] = {}
    has_labels = bool(chunks) and "label" in chunks[0].columns
    for chunk, places in zip(chunks, _places(file, chunks), strict=True):
        columns = chunk.columns
        cells = zip(columns["id"], columns["token"], places, columns.get("label", columns["id"]), strict=True)
        for name, token, place, label in cells:
            if is_missing(token.strip()):
                continue
            tokens.setdefault(name.strip(), []).append(token.strip())
            orders.setdefault(name.strip(), []).append(place)
            if has_labels and not is_missing(label.strip()):
                labels.setdefault(name.strip(), label)
    sequences = [[symbols[at] for at in np.argsort(orders[name], kind="stable")] for name, symbols in tokens.items()]
    return Written(list(tokens), sequences, [labels.get(name, "") for name in tokens] if has_labels else None, Form())


def _places(file: Path, chunks: Sequence[Chunk]) -> Iterator[Sequence[float]]:
    """Yields the place of each row of each chunk in its sequence: times or numbers in a column, or the lines."""
    form: str | None = None
    for chunk in chunks:
        if "order" not in chunk.columns:
            yield chunk.lines.tolist()
            continue
        cells = chunk.columns["order"]
        form = form or guess(cells)
        if form is None:
            raise SubquadError(
                f"{file}: the column by which tokens are ordered has neither numbers nor dates, such as "
                f"{excerpt(cells[0])}: name another one by --order-column"
            )
        read = lenient(form) if form in WRITTEN else float
        yield np.nan_to_num(numbers(cells, read), nan=np.inf).tolist()
