"""Saved and loaded again, with the mechanisms."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch.testing import assert_close

from subquad import SubquadError
from tests.families.catalog import entry_of
from tests.families.models import build, outputs
from tests.hub.families import CONFIGS, OPTIONS, hf, hidden, hub, model, padding, tokens
from tests.hub.folders import SAME, configured, saved


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
    configured(tmp_path, architectures=["BertForGrueling"])
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
    configured(tmp_path, architectures=None)
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


def test_a_model_is_read_by_its_name_and_from_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    network = saved(tmp_path / "model", "learned")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert_close(hidden(hub.load("~/model"), tokens()), hidden(network, tokens()), **SAME)
    monkeypatch.setattr("subquad.hub.files._folder", lambda path: None)  # as for a name on the hub
    assert_close(hidden(hub.load(str(tmp_path / "model")), tokens()), hidden(network, tokens()), **SAME)
