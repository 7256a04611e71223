"""Data sets by name: loaded through the package datasets, stored as Parquet once, and refused in a sentence."""

import dataclasses
import sys
from pathlib import Path
from typing import Any

import pytest

from subquad.cli import main
from subquad.data.named import is_named, located
from subquad.errors import SubquadError
from subquad.tasks.classify import Classify
from subquad.tasks.lm import Lm
from subquad.tasks.series import Series
from subquad.tasks.tokens import Tokens

datasets: Any = pytest.importorskip("datasets", reason="datasets is not installed: the extra `hub`")

COLUMNS: dict[str, dict[str, list[Any]]] = {
    "ids": {"input_ids": [[1, 2, 3, 1], [3, 4, 3]], "label": [0, 1]},
    "texts": {"text": ["the first of many words", "another text of its own"], "label": [0, 1]},
    "series": {"target": [[1.0, 2.0, 3.0], [3.0, 4.0, 2.0]], "label": ["a", "b"]},
}
OPTIONS: dict[str, Any] = {
    "ids": Tokens(goal="label", rare=1),
    "texts": Classify(vocabulary="characters"),
    "series": Series(goal="label"),
}


def made(name: str, rows: int = 12) -> Any:
    """A data set with three splits of different sequences."""
    columns = COLUMNS[name]
    splits = {}
    for at, split in enumerate(("train", "validation", "test")):
        repeated = {column: [values[row % 2] for row in range(rows)] for column, values in columns.items()}
        if name == "texts":
            repeated["text"] = [f"{text} {at} {row}" for row, text in enumerate(repeated["text"])]
        splits[split] = datasets.Dataset.from_dict(repeated)
    return datasets.DatasetDict(splits)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """A hub with data sets of this file, and the names that were asked for."""
    asked: list[tuple[str, ...]] = []

    def load_dataset(*names: str) -> Any:
        asked.append(names)
        return made(names[0].split("/")[1])

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    return asked


def named(options: Any, source: str) -> Any:
    return dataclasses.replace(options, **{"text" if hasattr(options, "text") else "data": source})


@pytest.mark.parametrize("name", list(COLUMNS))
@pytest.mark.parametrize("form", ["by name", "saved", "parquet", "csv"])
def test_tasks_read_data_sets(name: str, form: str, hub: list[tuple[str, ...]], tmp_path: Path) -> None:
    if form == "csv" and name != "texts":
        pytest.skip("lists have no place in a CSV file")
    source = tmp_path / "saved"
    if form == "saved":
        made(name).save_to_disk(source)
    elif form != "by name":
        source.mkdir()
        for split, rows in made(name).items():
            path = str(source / f"{split}.{form}")
            _ = rows.to_parquet(path) if form == "parquet" else rows.to_csv(path)
    task = named(OPTIONS[name], f"someone/{name}" if form == "by name" else str(source)).prepare()
    sizes = {split: len(lengths) for split, lengths in task.lengths().items()}
    assert sizes == {"train": 12, "development": 12, "test": 12}
    assert len(hub) == (form == "by name")


def test_a_data_set_is_stored_once(hub: list[tuple[str, ...]]) -> None:
    first, second = located("someone/ids"), located("someone/ids")
    assert first == second
    assert sorted(file.name for file in first.iterdir()) == ["test.parquet", "train.parquet", "validation.parquet"]
    assert located("someone/ids:en") != first
    assert hub[-1] == ("someone/ids", "en")


def test_a_text_of_a_data_set_is_read_by_the_language_model(hub: list[tuple[str, ...]]) -> None:
    assert Lm(text="someone/texts", vocabulary="bytes").prepare().data_size.positions > 100


def test_paths_are_no_names(tmp_path: Path, hub: list[tuple[str, ...]]) -> None:
    assert located(str(tmp_path)) == tmp_path
    assert not any(is_named(source) for source in ("folder", "folder/file.csv", "a/b/c", "/a/b", "a/b:c:d", "../a", ""))
    assert is_named("nyu-mll/glue:sst2")
    assert hub == []


def test_a_data_set_without_training_split(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets, "load_dataset", lambda name: datasets.DatasetDict(test=made("ids")["test"]))
    with pytest.raises(SubquadError, match=r"someone/ids has no split 'train' but 'test'"):
        located("someone/ids")


def test_without_the_net_or_the_package(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def load_dataset(name: str) -> Any:
        raise ConnectionError("Couldn't reach the hub\nand more.")

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    for words in (["tokens", "--data"], ["series", "--data"], ["classify", "--text"]):
        assert main(["choose", *words, "someone/ids"]) == 2
        error = capsys.readouterr().err
        assert "nor could a dataset of that name be had from the Hugging Face hub (Couldn't reach the hub)" in error
        assert len(error.strip().splitlines()) == 1
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(SubquadError, match=r"pip install 'subquad\[hub\]'"):
        located("someone/ids")
