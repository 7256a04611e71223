"""Saved and loaded again, with the mechanisms; and what is said of folders that cannot be loaded."""

import json
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
from tests.families.catalog import entry_of
from tests.families.models import build, outputs
from tests.hub.families import CONFIGS, OPTIONS, hf, hidden, hub, model, padding, tokens

SAME: dict[str, Any] = {"rtol": 0, "atol": 0}


def saved(folder: Path, name: str = "learned", family: str = "bert", **given: Any) -> Any:
    network = hub.swap(model(CONFIGS[family]()), OPTIONS[name], **given)
    for parameter in network.parameters():
        parameter.data += 0.01  # so that what is drawn anew would be noticed
    network.save_pretrained(folder)
    return network


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("family", ["bert", "distilbert"])
def test_a_model_comes_back_with_its_mechanisms(name: str, family: str, tmp_path: Path) -> None:
    network = saved(tmp_path, name, family)
    back = hub.load(tmp_path)
    assert type(back) is type(network)
    assert not back.training
    assert back.config.subquad == json.loads(json.dumps(network.config.subquad))
    given = {"attention_mask": padding("left")}
    assert_close(hidden(back, tokens(), **given), hidden(network, tokens(), **given), **SAME)
    back.save_pretrained(tmp_path / "again")
    assert_close(hidden(hub.load(str(tmp_path / "again")), tokens()), hidden(network, tokens()), **SAME)


def test_layers_of_several_kinds_come_back(tmp_path: Path) -> None:
    network = hub.swap(model(CONFIGS["gpt2"](), hf.AutoModelForCausalLM), OPTIONS["favor"], layers=[1])
    network.save_pretrained(tmp_path)
    back: Any = hub.load(tmp_path)
    assert type(back) is hf.GPT2LMHeadModel
    assert back.config.subquad["layers"] == [None, 0]
    assert_close(hidden(back.transformer, tokens()), hidden(network.transformer, tokens()), **SAME)
    body = hub.load(tmp_path, hf.GPT2Model)
    assert_close(hidden(body, tokens()), hidden(network.transformer, tokens()), **SAME)
    ids = tokens(length=5)
    assert torch.equal(
        back.generate(ids, max_new_tokens=5, past_key_values=hub.state_cache(back)),
        network.generate(ids, max_new_tokens=5, use_cache=False),
    )


RENAMED = ["ViTForImageClassification", "DeiTModel", "BeitModel", "IJepaModel", "ViTMSNForImageClassification"]
RENAMED += [
    "SegformerForImageClassification",
    "NomicBertForMaskedLM",
    "GteModel",
    "JinaEmbeddingsV3Model",
    "UltrabertForMaskedLM",
]
RENAMED += ["LlavaModel", "LlavaForConditionalGeneration", "Qwen2VLForConditionalGeneration", "ASTForAudioClassification"]


@pytest.mark.parametrize("class_name", RENAMED)
def test_a_family_comes_back_whose_weights_are_saved_under_other_names(class_name: str, tmp_path: Path) -> None:
    subject = build(entry_of(class_name))
    network = hub.swap(subject.model, OPTIONS["learned"])
    for parameter in network.parameters():
        parameter.data += 0.01
    network.save_pretrained(tmp_path)
    own = {name for name in network.state_dict() if ".subquad." in name}
    assert own - load_file(tmp_path / "model.safetensors").keys()
    back = hub.load(tmp_path)
    for name, tensor in network.state_dict().items():
        assert_close(back.state_dict()[name], tensor, **SAME)
    back.save_pretrained(tmp_path / "again")
    again = hub.load(tmp_path / "again")
    wanted = outputs(network, subject.inputs)
    for each in (back, again):
        found = outputs(each, subject.inputs)
        assert found.keys() == wanted.keys()
        for name in wanted:
            assert_close(found[name], wanted[name], rtol=1e-9, atol=1e-9)


def test_names_that_were_not_changed_are_read_as_well(tmp_path: Path) -> None:
    subject = build(entry_of("ViTForImageClassification"))
    network = hub.swap(subject.model, OPTIONS["learned"])
    network.save_pretrained(tmp_path, save_original_format=False)
    assert load_file(tmp_path / "model.safetensors").keys() == network.state_dict().keys()
    assert_close(hub.load(tmp_path)(**subject.inputs).logits, network(**subject.inputs).logits, **SAME)


def test_a_body_is_read_from_the_files_of_a_head_whose_weights_are_renamed(tmp_path: Path) -> None:
    subject = build(entry_of("ViTForImageClassification"))
    network = hub.swap(subject.model, OPTIONS["learned"])
    network.save_pretrained(tmp_path)
    body = hub.load(tmp_path, hf.ViTModel)
    pixels = subject.inputs["pixel_values"]
    assert_close(body(pixels).last_hidden_state, network.vit(pixels).last_hidden_state, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("is_swapped", [True, False])
def test_a_class_that_transformers_does_not_have_is_refused(is_swapped: bool, tmp_path: Path) -> None:
    network = model(CONFIGS["bert"](), hf.BertForSequenceClassification)
    if is_swapped:
        hub.swap(network, "linear")
    network.save_pretrained(tmp_path)
    _configured(tmp_path, architectures=["BertForGrueling"])
    with pytest.raises(
        SubquadError, match=r"was saved from a BertForGrueling, which transformers .* does not have"
    ) as found:
        hub.load(tmp_path)
    assert "\n" not in str(found.value)
    back = hub.load(tmp_path, hf.BertForSequenceClassification)
    assert_close(back(tokens()).logits, network(tokens()).logits, **SAME)


def test_a_model_that_does_not_name_its_class_is_read_without_a_head(tmp_path: Path) -> None:
    network = model(CONFIGS["bert"](), hf.BertForSequenceClassification)
    network.save_pretrained(tmp_path)
    _configured(tmp_path, architectures=None)
    assert type(hub.load(tmp_path)) is hf.BertModel


def test_a_name_is_saved_as_well(tmp_path: Path) -> None:
    network = model(CONFIGS["bert"]())
    network.set_attn_implementation("subquad_favor")
    wanted = hidden(network, tokens())
    network.save_pretrained(tmp_path)
    back = hub.load(tmp_path)
    assert_close(hidden(back, tokens()), wanted, **SAME)
    assert back.config.subquad["mechanisms"][0]["kind"] == "favor"


def test_large_models_come_back_from_their_shards(tmp_path: Path) -> None:
    network = hub.swap(model(CONFIGS["bert"]()), OPTIONS["learned"])
    network.save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    assert_close(hidden(hub.load(tmp_path), tokens()), hidden(network, tokens()), **SAME)


def test_a_model_without_mechanisms_is_loaded_as_it_is(tmp_path: Path) -> None:
    network = model(CONFIGS["bert"]())
    network.save_pretrained(tmp_path)
    back = hub.load(tmp_path)
    assert back.config._attn_implementation == "sdpa"
    assert_close(hidden(back, tokens()), hidden(network, tokens()), **SAME)


def test_from_pretrained_takes_a_mechanism_by_name(tmp_path: Path) -> None:
    network = model(CONFIGS["bert"]())
    network.save_pretrained(tmp_path)
    other = hf.AutoModel.from_pretrained(tmp_path, attn_implementation="subquad_favor")
    network.set_attn_implementation("subquad_favor")
    assert_close(hidden(other, tokens()), hidden(network, tokens()), **SAME)


def test_from_pretrained_leaves_tensors_behind_and_it_is_said(tmp_path: Path) -> None:
    saved(tmp_path)
    network = hf.AutoModel.from_pretrained(tmp_path)
    with pytest.raises(SubquadError, match=r"load it with subquad.hub.load\(folder\)"):
        network(tokens())
    hidden(hub.swap(network, "linear"), tokens())


def test_from_pretrained_is_enough_where_there_are_none(tmp_path: Path) -> None:
    network = saved(tmp_path, "linear")
    assert_close(hidden(hf.AutoModel.from_pretrained(tmp_path), tokens()), hidden(network, tokens()), **SAME)


def _without(folder: Path, name: str) -> None:
    tensors = load_file(folder / "model.safetensors")
    del tensors[name]
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def _with(folder: Path, name: str, shape: tuple[int, ...] = (2, 2)) -> None:
    tensors = load_file(folder / "model.safetensors")
    save_file({**tensors, name: torch.zeros(shape)}, folder / "model.safetensors", {"format": "pt"})


def _configured(folder: Path, **values: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **values}))


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
    "an unknown family": (lambda at: _configured(at, model_type="grue"), "cannot be read as a model of transformers"),
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
        lambda at: _configured(at, subquad={"mechanisms": [{"kind": "grue"}], "layers": [0, 0]}),
        "must have a kind out of softmax, .*, but is {'kind': 'grue'}",
    ),
    "another model's config": (
        lambda at: _configured(at, subquad={"mechanisms": [LEARNED], "layers": [0, 0, 0]}),
        "config.json names mechanisms for 3 attention modules, but the model has 2",
    ),
    "an entry that is none": (
        lambda at: _configured(at, subquad={"mechanisms": [LEARNED], "layers": [7, 0]}),
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
            _configured(tmp_path, subquad=spoilt)
            with suppress(SubquadError):
                found = hidden(hub.load(tmp_path), tokens())
                assert type(wrong) in kinds or torch.equal(found, wanted), (way, wrong)


@pytest.mark.parametrize("entry", [None, [], "x", 3, {}, {"mechanisms": []}, {"layers": [0, 0]}])
def test_an_entry_that_is_none(entry: Any, tmp_path: Path) -> None:
    saved(tmp_path)
    _configured(tmp_path, subquad=entry)
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
    _configured(tmp_path, subquad={"mechanisms": [HUGE[name]], "layers": [0, 0]})
    monkeypatch.setattr("subquad.hub.files.hang", None)  # what is called before the refusal fails
    with pytest.raises(
        SubquadError, match=r"speaks of mechanisms (with .* numbers, but the weights hold|that would compute .* numbers)"
    ):
        hub.load(tmp_path)


@pytest.mark.parametrize("wrong", [True, {"BertModel": 1}, [3], "BertModel"])
def test_mistyped_architectures_are_refused(wrong: Any, tmp_path: Path) -> None:
    saved(tmp_path)
    _configured(tmp_path, architectures=wrong)
    with pytest.raises(SubquadError, match=r"'architectures' must be a list|cannot be read"):
        hub.load(tmp_path)


@pytest.mark.parametrize("field", ["hidden_size", "num_attention_heads", "num_hidden_layers", "vocab_size", "hidden_act"])
def test_a_mistyped_field_of_the_family_is_a_sentence(field: str, tmp_path: Path) -> None:
    saved(tmp_path)
    mistyped: list[Any] = [None, [], "x", -1, 0, 1.5, {}]
    for wrong in mistyped:
        _configured(tmp_path, **{field: wrong})
        with pytest.raises(SubquadError) as found:
            hub.load(tmp_path)
        assert "\n" not in str(found.value)
