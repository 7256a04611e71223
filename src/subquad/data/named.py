"""Data sets by their name on the Hugging Face hub, where a path is expected otherwise."""

import re
import shutil
from pathlib import Path
from typing import Any

from subquad.data.tables import listed
from subquad.errors import SubquadError
from subquad.files import cannot_write, kind_of

_NAME = re.compile(r"(\w[\w.-]*/\w[\w.-]*)(?::(\w[\w.-]*))?")
"""An owner and a name, and after a colon the name of a configuration, as in nyu-mll/glue:sst2."""
FOLDER = "subquad"
"""Folder in the cache of the package datasets that holds data sets as Parquet."""

TABLES = (".csv", ".tsv", ".json", ".jsonl", ".parquet", ".pq", ".arrow", ".npy", ".npz", ".ts", ".pkl", ".pickle")
FILES = (*TABLES, ".txt", ".md", ".tokens", ".fa", ".fasta", ".gz", ".zip")
"""Ends of names that are those of files."""


def is_named(source: str) -> bool:
    """Whether a source, which is no file or folder, can be the name of a data set on the hub."""
    return _NAME.fullmatch(source) is not None and Path(source).suffix.lower() not in FILES


def load_named(source: str) -> Any:
    """Returns a data set of the hub by split, from the cache if it was loaded before."""
    try:
        import datasets
    except ImportError:
        raise SubquadError(
            f"there is no file or folder {source}; to look for a dataset of that name, pip install 'subquad[hub]'"
        ) from None
    match = _NAME.fullmatch(source)
    assert match is not None, "the caller asked `is_named` before"
    try:
        loaded: Any = datasets.load_dataset(*(part for part in match.groups() if part is not None))
    except (OSError, ValueError, RuntimeError) as error:
        why = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        raise SubquadError(
            f"there is no file or folder {source}, nor could a dataset of that name be had from the Hugging Face hub "
            f"({why}): get its files elsewhere and give the path of their folder"
        ) from None
    return loaded


def located(source: str) -> Path:
    """The path of data: `source` itself, or for a data set of the hub a folder with a Parquet file for each split.

    The folder is made on first use, in the cache of the package datasets. Its name has the fingerprint of the data.
    """
    path = Path(source)
    if kind_of(path) != "nothing" or not is_named(source):
        return path
    loaded = load_named(source)
    if "train" not in loaded:
        raise SubquadError(f"the dataset {source} has no split 'train' but {listed(loaded)}: save the splits as files")
    import datasets

    name = re.sub(r"\W+", "-", source)
    folder = Path(datasets.config.HF_DATASETS_CACHE) / FOLDER / f"{name}-{loaded['train']._fingerprint}"
    if not folder.exists():
        _store(loaded, folder)
    return folder


def _store(loaded: Any, folder: Path) -> None:
    """Writes each split as Parquet, beside the folder first, which is complete or not there."""
    aside = folder.with_name(f".{folder.name}.new")
    shutil.rmtree(aside, ignore_errors=True)
    try:
        aside.mkdir(parents=True)
        for split, rows in loaded.items():
            rows.to_parquet(str(aside / f"{split}.parquet"))
        aside.replace(folder)
    except OSError as error:
        shutil.rmtree(aside, ignore_errors=True)
        raise cannot_write(folder, error) from None
