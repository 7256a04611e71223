"""Folders of models that cannot be loaded: each is refused in one sentence, and nothing in it is executed."""

import pickle
import shutil
from collections.abc import Iterator
from contextlib import suppress
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.testing import assert_close

from subquad import SubquadError
from tests.hub.families import CONFIGS, hidden, hub, model, tokens
from tests.hub.folders import SAME, configured, saved


def _without(folder: Path, name: str) -> None:
    tensors = load_file(folder / "model.safetensors")
    del tensors[name]
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def _with(folder: Path, name: str, shape: tuple[int, ...] = (2, 2)) -> None:
    tensors = load_file(folder / "model.safetensors")
    save_file({**tensors, name: torch.zeros(shape)}, folder / "model.safetensors", {"format": "pt"})


def _cut(folder: Path) -> None:
    data = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(data[: len(data) // 2])


WEIGHT = "encoder.layer.1.attention.self.subquad.feature_map.keys.weight"
LEARNED = {"kind": "linear", "feature_map": {"kind": "learned"}}
SPOILT: dict[str, tuple[Any, str]] = {
    "no config": (lambda at: (at / "config.json").unlink(), "is no model: give a folder with a config.json and weights"),
    "no weights": (lambda at: (at / "model.safetensors").unlink(), "has a config.json but no weights"),
    "half a file": (_cut, "a file is damaged or not of this model"),
    "a config that is none": (lambda at: (at / "config.json").write_text("{"), "cannot be read"),
    "an unknown family": (lambda at: configured(at, model_type="grue"), "cannot be read as a model of transformers"),
    "a tensor less": (lambda at: _without(at, WEIGHT), f"lack {WEIGHT}, which its config.json speaks of"),
    "a tensor of another shape": (lambda at: _with(at, WEIGHT), f"hold with another shape {WEIGHT}"),
    "a foreign tensor": (
        lambda at: _with(at, "encoder.subquad.x"),
        "hold encoder.subquad.x, which its config.json does not",
    ),
    "a foreign weight": (lambda at: _with(at, "decoder.x"), "are not of the model in its config.json: they hold decoder.x"),
    "a weight less": (
        lambda at: _without(at, "encoder.layer.0.output.dense.bias"),
        "are not of the model in its config.json: they lack encoder.layer.0.output.dense.bias",
    ),
    "an unknown mechanism": (
        lambda at: configured(at, subquad={"mechanisms": [{"kind": "grue"}], "layers": [0, 0]}),
        "must have a kind out of softmax, .*, but is {'kind': 'grue'}",
    ),
    "another model's config": (
        lambda at: configured(at, subquad={"mechanisms": [LEARNED], "layers": [0, 0, 0]}),
        "config.json names mechanisms for 3 attention modules, but the model has 2",
    ),
    "an entry that is none": (
        lambda at: configured(at, subquad={"mechanisms": [LEARNED], "layers": [7, 0]}),
        r"config\.json: subquad: layers names mechanism 7, but there are 1",
    ),
}


@pytest.mark.parametrize("name", SPOILT)
def test_a_spoilt_folder_is_refused_in_one_sentence(name: str, tmp_path: Path) -> None:
    saved(tmp_path)
    spoil, says = SPOILT[name]
    spoil(tmp_path)
    with pytest.raises(SubquadError, match=says) as found:
        hub.load(tmp_path)
    assert "\n" not in str(found.value)


class Payload:
    """What runs when a pickle is read."""

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (Path("was-run"),)


@pytest.mark.parametrize("kind", ["pickle", "torch"])
def test_pickles_that_hold_more_than_tensors_are_refused(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    network = model(CONFIGS["bert"]())
    network.save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    weights: dict[str, Any] = {**network.state_dict(), "more": Payload()}
    if kind == "torch":
        torch.save(weights, tmp_path / "pytorch_model.bin")
    else:
        (tmp_path / "pytorch_model.bin").write_bytes(pickle.dumps(weights, protocol=2))
    with pytest.raises(SubquadError, match="are a pickle that holds more than tensors"):
        hub.load(tmp_path)
    assert not Path("was-run").exists()


def test_pickles_of_tensors_are_read(tmp_path: Path) -> None:
    network = model(CONFIGS["bert"]())
    network.save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    torch.save(network.state_dict(), tmp_path / "pytorch_model.bin")
    assert_close(hidden(hub.load(tmp_path), tokens()), hidden(network, tokens()), **SAME)


def test_a_path_that_is_none(tmp_path: Path) -> None:
    for path in (tmp_path / "nowhere", str(tmp_path / "nowhere"), "./nowhere", "a/b/c"):
        with pytest.raises(SubquadError, match="there is no folder"):
            hub.load(path)
    (tmp_path / "file").write_text("x")
    with pytest.raises(SubquadError, match="file is no model"):
        hub.load(tmp_path / "file")
    with pytest.raises(SubquadError, match=r"is no model: give a folder with a config\.json"):
        hub.load(tmp_path)


def test_a_name_on_the_hub_without_a_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    says = "'nobody/has-this' is no folder here and cannot be had from the Hugging Face hub .*: give the path of a folder"
    with pytest.raises(SubquadError, match=says) as found:
        hub.load("nobody/has-this")
    assert "\n" not in str(found.value)


def test_nothing_is_left_of_a_removed_folder(tmp_path: Path) -> None:
    """A loaded model does not need its files."""
    network = saved(tmp_path / "model")
    back = hub.load(tmp_path / "model")
    shutil.rmtree(tmp_path / "model")
    assert_close(hidden(back, tokens()), hidden(network, tokens()), **SAME)


def _mistyped(values: Any, way: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The ways to every field of an entry."""
    inner = values.items() if isinstance(values, dict) else enumerate(values) if isinstance(values, list) else []
    for name, value in inner:
        yield (*way, name)
        yield from _mistyped(value, (*way, name))


WRONG: list[Any] = [None, [], [[1]], "x", -1, 10**30, 1.5, True, {}, {"kind": "favor"}, {"a": {"b": [None]}}]


@pytest.mark.parametrize("name", ["learned", "favor", "infinity", "hybrid", "linformer"])
def test_no_mistyped_field_of_the_entry_is_loaded_or_ends_in_a_traceback(name: str, tmp_path: Path) -> None:
    """What loads has the same mechanisms as before, as where a field is 1 instead of 1.0, or a value of the field's type."""
    network = saved(tmp_path, name)
    entry, wanted = network.config.subquad, hidden(network, tokens())
    for way in list(_mistyped(entry)):
        for wrong in WRONG:
            spoilt = deepcopy(entry)
            holder = spoilt
            for step in way[:-1]:
                holder = holder[step]
            kinds = {float: (float, int)}.get(type(holder[way[-1]]), (type(holder[way[-1]]),))
            holder[way[-1]] = wrong
            configured(tmp_path, subquad=spoilt)
            with suppress(SubquadError):
                found = hidden(hub.load(tmp_path), tokens())
                assert type(wrong) in kinds or torch.equal(found, wanted), (way, wrong)


@pytest.mark.parametrize("entry", [None, [], "x", 3, {}, {"mechanisms": []}, {"layers": [0, 0]}])
def test_an_entry_that_is_none(entry: Any, tmp_path: Path) -> None:
    saved(tmp_path)
    configured(tmp_path, subquad=entry)
    with pytest.raises(SubquadError, match=r"config\.json"):
        hub.load(tmp_path)


HUGE: dict[str, Any] = {
    "favor": {"kind": "favor", "features": 100_000_000},
    "random": {"kind": "linear", "feature_map": {"kind": "random", "features": 10_000_000}},
    "linformer": {"kind": "linformer", "k": 100_000, "max_length": 100_000},
    "infinity": {"kind": "infinity", "basis": 100_000, "widths": [0.1]},
    "hybrid": {"kind": "hybrid", "rest": {"kind": "learned", "features": 2**40}},
}


@pytest.mark.parametrize("name", HUGE)
def test_nothing_is_built_that_the_weights_do_not_hold(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved(tmp_path)
    configured(tmp_path, subquad={"mechanisms": [HUGE[name]], "layers": [0, 0]})
    monkeypatch.setattr("subquad.hub.files.hang", None)  # what is called before the refusal fails
    with pytest.raises(
        SubquadError, match=r"speaks of mechanisms (with .* numbers, but the weights hold|that would compute .* numbers)"
    ):
        hub.load(tmp_path)


@pytest.mark.parametrize("wrong", [True, {"BertModel": 1}, [3], "BertModel"])
def test_mistyped_architectures_are_refused(wrong: Any, tmp_path: Path) -> None:
    saved(tmp_path)
    configured(tmp_path, architectures=wrong)
    with pytest.raises(SubquadError, match=r"'architectures' must be a list|cannot be read"):
        hub.load(tmp_path)


@pytest.mark.parametrize("field", ["hidden_size", "num_attention_heads", "num_hidden_layers", "vocab_size", "hidden_act"])
def test_a_mistyped_field_of_the_family_is_a_sentence(field: str, tmp_path: Path) -> None:
    saved(tmp_path)
    mistyped: list[Any] = [None, [], "x", -1, 0, 1.5, {}]
    for wrong in mistyped:
        configured(tmp_path, **{field: wrong})
        with pytest.raises(SubquadError) as found:
            hub.load(tmp_path)
        assert "\n" not in str(found.value)
