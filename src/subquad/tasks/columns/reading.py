"""Reads the columns of a table that have no role of their own, chunk by chunk."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from jaxtyping import Int
from numpy import ndarray

from subquad.data.column_values import ColumnReader, ColumnValues
from subquad.data.columns import Column, adapted, decide
from subquad.data.tables import Chunk, StoredColumn
from subquad.errors import SubquadError

FURTHER = "column "
"""Begin of the role of a column that is none of the known ones; its name follows."""
LONGEST_NAME = 500
"""Largest number of characters of the name of a further column."""


def further_roles(path: Path, names: Iterable[str], decided: Mapping[str, Column] | None) -> dict[str, str]:
    """The columns of a table that are read beside those with a known role, by role.

    Args:
        path: the table, for messages.
        names: names of the columns without a known role.
        decided: the columns that a run was trained with, which are all that is read; None to read every column.
    """
    left = [name for name in names if name and (decided is None or name in decided)]
    if too_long := [name for name in left if len(name) > LONGEST_NAME]:
        raise SubquadError(
            f"{path} has a column whose name has {len(too_long[0]):,} characters, more than {LONGEST_NAME}: rename it, "
            "or give --no-further-columns"
        )
    return {FURTHER + name: name for name in left}


class FurtherReaders:
    """Readers of the columns that have no known role, made when the first chunk is seen."""

    def __init__(self, kinds: Mapping[str, str], decided: Mapping[str, Column] | None) -> None:
        """`kinds` are those that a user named; `decided` the columns that a run was trained with, None to recognize them."""
        self.kinds, self.decided = kinds, decided
        self.readers: dict[str, ColumnReader] = {}
        self.unused: list[Column] = []
        self.is_decided = False

    def read(self, chunk: Chunk) -> dict[str, ndarray]:
        """The values of the columns in a chunk, by role."""
        cells = {role: self._marked(role, column) for role, column in chunk.columns.items() if role.startswith(FURTHER)}
        if not self.is_decided:
            self.is_decided = True
            names = {role.removeprefix(FURTHER): column for role, column in cells.items()}
            decided = self.decided
            columns = (
                decide(names, self.kinds)
                if decided is None
                else {name: adapted(decided[name], column) for name, column in names.items()}
            )
            self.unused = [column for column in columns.values() if column.kind == "unused"]
            self.readers = {
                FURTHER + name: ColumnReader(column) for name, column in columns.items() if column.kind != "unused"
            }
        return {role: reader.read(cells[role]) for role, reader in self.readers.items()}

    def _marked(self, role: str, cells: Sequence[str]) -> Sequence[str]:
        """Cells in which the values of lists can be told apart, unless a run was trained with lists as one value."""
        is_one = self.decided is not None and self.decided[role.removeprefix(FURTHER)].kind != "several"
        return cells if is_one or not isinstance(cells, StoredColumn) else cells.with_marks()

    def keep(self, values: Mapping[str, ndarray], good: ndarray) -> None:
        """Keeps the values of the rows that are good."""
        for role, reader in self.readers.items():
            reader.keep(values[role][good])

    def finished(self) -> list[ColumnValues]:
        """The values of all columns in all rows that were kept."""
        return [reader.finished() for reader in self.readers.values()]

    def sentences(self, file: str) -> list[str]:
        """Sentences about cells that were not of the kind of their column, or were cut."""
        can_choose = self.decided is None
        return [said for reader in self.readers.values() for said in reader.sentences(file, can_choose=can_choose)]


def is_constant(column: ColumnValues, starts: Int[ndarray, "sequences"], lengths: Int[ndarray, "sequences"]) -> bool:
    """Whether a column has the same value in all rows of each sequence, and there are rows that could differ."""
    if len(starts) < 2 or not (lengths > 1).any():
        return False
    firsts = column.values[starts].repeat(lengths, axis=0)
    return bool(((column.values == firsts) | ((column.values != column.values) & (firsts != firsts))).all())
