"""Different mechanisms by layer in models of transformers."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from subquad import Favor, Hybrid, Layers, Linear, Linformer, Softmax, SubquadError
from tests.hub.families import CONFIGS, DECODERS, LENGTH, bart, hf, hidden, hub, model, padding, tokens

THREE_AND_ONE = Layers((Linear(), Linear(), Linear(), Softmax()))


def deep(family: str, layers: int = 4, kind: Any = hf.AutoModel) -> Any:
    """A model of `layers` layers in float64."""
    config = (CONFIGS | DECODERS)[family]()
    config.num_hidden_layers = layers
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[:1] * layers
    return model(config, kind).double()


def kinds(network: Any) -> list[str]:
    return [hub.attach.options_of(module).kind for module in hub.attention_modules(network).values()]


@pytest.mark.parametrize("attention", [THREE_AND_ONE, "linear*3,softmax"])
@pytest.mark.parametrize("layers", [4, 8])
def test_each_layer_has_its_mechanism(attention: Any, layers: int) -> None:
    network = hub.swap(deep("bert", layers), attention)
    assert kinds(network) == layers // 4 * ["linear", "linear", "linear", "softmax"]
    by_hand = hub.swap(deep("bert", layers), Linear(), layers=[place for place in range(layers) if place % 4 != 3])
    assert_close(hidden(network, tokens()), hidden(by_hand, tokens()), rtol=1e-9, atol=1e-9)
    assert all(row.holds is not False for row in hub.check(network))


def test_names_take_the_length_of_the_model() -> None:
    network = hub.swap(deep("bert", 2), "linformer,softmax")
    assert [options["kind"] for options in network.config.subquad["mechanisms"]] == ["linformer", "softmax"]
    assert network.config.subquad["mechanisms"][0]["max_length"] == 128


def test_stacks_are_counted_by_themselves() -> None:
    """Self-attention and cross-attention of a decoder's layer have the same mechanism."""
    network = hub.swap(model(bart()), "linear,softmax")
    modules = dict(zip(hub.attention_modules(network), kinds(network), strict=True))
    assert modules == {
        "encoder.layers.0.self_attn": "linear",
        "encoder.layers.1.self_attn": "softmax",
        "decoder.layers.0.self_attn": "linear",
        "decoder.layers.0.encoder_attn": "linear",
        "decoder.layers.1.self_attn": "softmax",
        "decoder.layers.1.encoder_attn": "softmax",
    }


def test_places_in_names() -> None:
    names = ["vision.stages.0.blocks.0.attn", "vision.stages.0.blocks.1.attn", "vision.stages.1.blocks.0.attn"]
    names += ["text.1.self", "text.3.self", "text.3.cross", "text.10.self"]
    with pytest.raises(SubquadError, match="linear,softmax are the attentions of 2 layers, but the model has 3"):
        hub.attach.by_module(Layers((Linear(), Softmax())), names)
    three = Layers((Linear(), Softmax(), Favor()))
    found = [options.kind for options in hub.attach.by_module(three, names)]
    assert found == ["linear", "softmax", "favor", "linear", "softmax", "softmax", "favor"]
    assert [options.kind for options in hub.attach.by_module(Layers((Linear(), Linear())), names)] == ["linear"] * 7


@pytest.mark.parametrize(
    ("attention", "layers", "says"),
    [
        (Layers((Linear(), Softmax(), Favor())), None, "are the attentions of 3 layers, but the model has 4: name 4, or"),
        (THREE_AND_ONE, [0], r"linear\*3,softmax says for every layer what it has, so that no layers can be chosen"),
        ("linear*3,favour", None, "there is no mechanism 'favour': choose from softmax"),
        ("linear*3,,softmax", None, "takes a name, or names by layer such as linear"),
        ("linear*0", None, "must name 1 to 1000 layers"),
    ],
)
def test_what_does_not_fit_is_refused_and_nothing_changed(attention: Any, layers: Any, says: str) -> None:
    network = deep("bert")
    wanted = hidden(network, tokens())
    with pytest.raises(SubquadError, match=says):
        hub.swap(network, attention, layers=layers)
    assert all(hub.attach.attached(module) is None for module in hub.attention_modules(network).values())
    assert_close(hidden(network, tokens()), wanted, rtol=0, atol=0)


def test_a_layer_without_a_causal_form_is_refused_in_a_decoder() -> None:
    with pytest.raises(SubquadError, match="linformer has no causal form"):
        hub.swap(deep("llama", 2), Layers((Softmax(), Linformer(k=4, max_length=32))))


MIXED = Layers((Hybrid(block=3, log_gain=0.0), Favor(features=16), Linear(), Softmax()))


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_saved_and_loaded(family: str, tmp_path: Path) -> None:
    network = hub.swap(deep(family, kind=hf.AutoModelForCausalLM), MIXED)
    network.save_pretrained(tmp_path)
    back = hub.load(tmp_path)
    assert kinds(back) == ["hybrid", "favor", "linear", "softmax"]
    assert back.config.subquad == network.config.subquad
    ids = tokens(length=LENGTH)
    assert_close(back(ids).logits, network(ids).logits, rtol=1e-9, atol=1e-12)


def written(network: Any, ids: Tensor, **given: Any) -> Tensor:
    torch.manual_seed(4)
    text: Tensor = network.generate(ids, max_new_tokens=8, **given)
    return text


@pytest.mark.parametrize(("family", "beams"), [("gpt2", 1), ("llama", 3)])
def test_generates_from_the_states_of_layers(family: str, beams: int) -> None:
    network = hub.swap(deep(family, kind=hf.AutoModelForCausalLM), MIXED)
    cache = hub.state_cache(network)
    assert [type(layer).__name__ for layer in cache.layers] == ["StateLayer"] * 3 + ["DynamicLayer"]
    ids = tokens(length=9)
    for mask in (None, padding("left", length=9)[[0, 1, 1]]):
        given = {"num_beams": beams} | ({} if mask is None else {"attention_mask": mask})
        wanted = written(network, ids, **given, use_cache=False)
        assert torch.equal(written(network, ids, **given, past_key_values=hub.state_cache(network)), wanted)
        assert torch.equal(written(network, ids, **given), wanted)
    layers = cache.layers
    written(network, ids, past_key_values=cache)
    assert [type(layer.states[0]).__name__ for layer in layers[:3]] == ["HybridState", "LinearState", "LinearState"]


def test_training_reaches_every_layer() -> None:
    network = hub.swap(deep("llama", kind=hf.AutoModelForCausalLM), MIXED).train()
    network(tokens(), labels=tokens()).loss.backward()
    for layer in network.model.layers:
        assert layer.self_attn.k_proj.weight.grad.count_nonzero() > 0
