"""Trained runs in Python."""

import warnings
from pathlib import Path

import pytest
import torch

import subquad
from subquad import SubquadError
from subquad.cli import main
from subquad.models import Decoder
from subquad.results import RUNS, Run, describe_run, holds_run, new_folder
from subquad.tasks import Copy

TINY = ["--layers", "1", "--heads", "2", "--head-dim", "8", "--length", "4", "--batch", "8", "--held-out", "8"]


def trained(folder: Path, *more: str) -> Path:
    words = ["train", "copy", *TINY, "--steps", "4", "--checkpoint-every", "2", "--no-page", *more, "--out", str(folder)]
    assert main(words) == 0
    return folder


def test_a_run_is_loaded_in_one_line(tmp_path: Path) -> None:
    folder = trained(tmp_path / "run", "--attention", "favor", "--features", "8")
    model = subquad.load(folder)
    assert not model.training
    assert isinstance(model.model, Decoder)
    assert isinstance(model.task, Copy)
    assert (model.options.attention.kind, model.options.model.layers, model.options.training.steps) == ("favor", 1, 4)
    assert model.run.folder == folder
    tokens = torch.randint(0, 12, (2, 9))
    assert torch.equal(model(tokens), model.model(tokens))
    assert len(model.reply("3 1 4").split()) == 3
    assert model.reply("3, 1, 4") == model.reply(["3", "1", "4"])
    with pytest.raises(SubquadError, match="a model of copy answers sequences and gives no scores"):
        model.predict(tmp_path)


def test_what_is_passed_over_is_a_warning(tmp_path: Path) -> None:
    folder = trained(tmp_path / "run")
    newest = max((folder / "checkpoint").iterdir())
    (newest / "model.safetensors").write_bytes(b"spoilt")
    with pytest.warns(UserWarning, match="cannot be read"):
        subquad.load(folder)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        said: list[str] = []
        subquad.runs.load(folder, say=said.append)
    assert len(said) == 1


def test_what_is_no_trained_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SubquadError, match="is not a run"):
        subquad.load(tmp_path / "nothing")
    Run.create(tmp_path / "compared", "compare", {})
    with pytest.raises(SubquadError, match="is a run of `subquad compare`, not of `subquad train`"):
        subquad.load(tmp_path / "compared")
    Run.create(tmp_path / "converted", "convert", {})
    with pytest.raises(SubquadError, match=r"has no model yet: finish it with subquad convert --resume"):
        subquad.load(tmp_path / "converted")
    (tmp_path / "converted" / "model").mkdir()
    with pytest.raises(SubquadError, match=r"holds a model of Hugging Face: load it with subquad\.hub\.load"):
        subquad.load(tmp_path / "converted")


def test_a_converted_run_gives_its_model(tmp_path: Path) -> None:
    """A conversion writes its model as a run into the folder `model`."""
    trained(tmp_path / "converted" / "model")
    Run.create(tmp_path / "converted", "convert", {})
    assert subquad.load(tmp_path / "converted").run.folder == tmp_path / "converted" / "model"


def test_a_run_is_described_once(tmp_path: Path) -> None:
    about = describe_run({"a": 1}, ["train", "copy", "--out", "a folder"], seed=3)
    assert about["options"] == {"a": 1}
    assert about["seed"] == 3
    assert about["command"] == "subquad train copy --out 'a folder'"
    assert {"versions", "machine", "started"} <= about.keys()
    assert "page" not in about
    folder = new_folder("copy", "linear")
    assert folder.parent == RUNS
    assert folder.name.startswith("copy-linear-2")
    assert not holds_run(tmp_path)
    Run.create(tmp_path / "run", "train", about)
    assert holds_run(tmp_path / "run")
