"""The command `subquad embed`."""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import tyro

from subquad.checking import Checked, FilePath
from subquad.cli.foreign import options_of_train
from subquad.cli.lines import csv_text
from subquad.cli.parsing import parse
from subquad.cli.streams import say
from subquad.errors import SubquadError
from subquad.files import kind_of, write_whole
from subquad.runs import load
from subquad.tasks.base import Vectors

FORMS = (".parquet", ".npy", ".csv")


@dataclass(frozen=True)
class Embed(Checked):
    """Writes a vector for each client or event of a file: `subquad embed RUN --data clients.csv --output vectors.parquet`.

    The vectors are those from which the model predicts; what clients have in common shows in their distances. The vector of
    an event tells of all events of its sequence up to it.
    """

    run: Annotated[FilePath, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Folder of a run of `subquad train transactions`, with labels or without, or of `subquad train events`."""
    data: FilePath
    """File or folder in the format of the training data, labels or not."""
    output: FilePath
    """File for the vectors: .parquet or .csv with a column for the name, or .npy with a file of names beside it."""


def main(arguments: Sequence[str]) -> int:
    """Writes the vectors and says how many."""
    options = parse(Embed, arguments, prog="subquad embed")
    form = options.output.suffix.lower()
    if form not in FORMS:
        raise SubquadError(f"--output must end in {', '.join(FORMS)}, but is {options.output}")
    if kind_of(options.data) == "nothing":
        raise SubquadError(f"there is no file or folder {options.data}: check the path given by --data")
    trained = load(options.run, say=say)
    with options_of_train(Embed, "a run keeps those that it was trained with, so change the file, or train again"):
        embedded = trained.embed(options.data)
    for complaint in embedded.complaints:
        say(complaint)
    {".parquet": _write_parquet, ".npy": _write_npy, ".csv": _write_csv}[form](embedded, options.output)
    count, width = embedded.vectors.shape
    print(f"{count:,} vectors of {width} numbers: {options.output}")
    return 0


def _heads(embedded: Vectors) -> list[str]:
    places = [] if embedded.places is None else ["event"]
    return [embedded.unit, *places, *(f"v{at}" for at in range(embedded.vectors.shape[1]))]


def _keys(embedded: Vectors) -> list[list[str]]:
    """What identifies each vector: a name, and the number of the event if there are several for a name."""
    if embedded.places is None:
        return [[name] for name in embedded.names]
    return [[name, str(place)] for name, place in zip(embedded.names, embedded.places, strict=True)]


def _write_csv(embedded: Vectors, path: Path) -> None:
    rows = (
        [*key, *(f"{value:.7g}" for value in vector)] for key, vector in zip(_keys(embedded), embedded.vectors, strict=True)
    )
    write_whole(path, csv_text([_heads(embedded), *rows]))


def _write_parquet(embedded: Vectors, path: Path) -> None:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise SubquadError(f"{path} is a Parquet file: to write it, pip install 'subquad[data]'") from None
    places = [] if embedded.places is None else [embedded.places]
    columns = [pyarrow.array(column) for column in (embedded.names, *places, *embedded.vectors.T)]
    written = io.BytesIO()
    parquet.write_table(pyarrow.Table.from_arrays(columns, names=_heads(embedded)), written)
    write_whole(path, written.getvalue())


def _write_npy(embedded: Vectors, path: Path) -> None:
    written = io.BytesIO()
    np.save(written, embedded.vectors)
    write_whole(path, written.getvalue())
    write_whole(path.with_suffix(".names.txt"), "".join("\t".join(key) + "\n" for key in _keys(embedded)))
