"""Finds the files of each split in a folder of released data."""

from collections.abc import Mapping
from pathlib import Path

from subquad.data.datasets import SPLIT_WORDS
from subquad.data.splits import SplitName
from subquad.data.texts import files_at
from subquad.errors import SubquadError

NAMES: Mapping[str, SplitName] = {**SPLIT_WORDS, "eval": "development"}
"""Words at the end of the name of a file, before its suffix, that tell its split."""


def split_files(data: str, suffixes: tuple[str, ...]) -> dict[SplitName, Path]:
    """The file of each split, such as ``basic_train.tsv`` or ``new_aan_pairs.eval.tsv``, in a folder.

    A file may be given in place of its folder. Raises `SubquadError` if a split has no file, or several.
    """
    path = Path(data)
    folder = path.parent if path.is_file() else path
    splits: dict[SplitName, Path] = {}
    for file, name in files_at(folder, suffixes):
        stem = next(name.removesuffix(suffix) for suffix in suffixes if name.endswith(suffix))
        split = NAMES.get(stem.replace("_", ".").replace("-", ".").rpartition(".")[2].lower())
        if split is None:
            continue
        if split in splits:
            raise SubquadError(f"{folder} has two files for {split}, {splits[split].name} and {name}: keep one")
        splits[split] = file
    wanted: tuple[SplitName, ...] = ("train", "development", "test")
    if missing := [split for split in wanted if split not in splits]:
        raise SubquadError(
            f"{folder} has no file for {missing[0]}: there should be three, with names that end in _train, _val and _test "
            f"before {suffixes[0]}"
        )
    return {split: splits[split] for split in wanted}
