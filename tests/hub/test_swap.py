"""Mechanisms on modules: hung on, taken off, in some layers, by name."""

import subprocess
import sys
from typing import Any

import pytest
import torch
from torch.testing import assert_close

from subquad import MECHANISMS, Favor, Linear, Linformer, SubquadError
from tests.hub.families import CONFIGS, OPTIONS, bart, hf, hidden, hub, model, tokens


def attached(network: Any) -> list[Any]:
    return [hub.attach.attached(module) for module in hub.attention_modules(network).values()]


def test_every_mechanism_has_a_name() -> None:
    assert set(hub.IMPLEMENTATIONS) == {"subquad"} | {f"subquad_{name}" for name in MECHANISMS}
    for name in MECHANISMS:
        network = hf.AutoModel.from_config(CONFIGS["bert"](), attn_implementation=f"subquad_{name}")
        assert hidden(network, tokens()).isfinite().all()
        assert [hub.attach.options_of(each).kind for each in hub.attention_modules(network).values()] == [name, name]


def test_a_name_and_a_swap_are_the_same() -> None:
    network = model(CONFIGS["bert"]())
    network.set_attn_implementation("subquad_favor")
    by_name = hidden(network, tokens())
    assert_close(hidden(hub.swap(model(CONFIGS["bert"]()), "favor"), tokens()), by_name, rtol=0, atol=0)
    assert not torch.equal(hidden(hub.swap(model(CONFIGS["bert"]()), "favor", seed=1), tokens()), by_name)


def test_a_name_takes_the_place_of_what_hung_there() -> None:
    network = hub.swap(model(CONFIGS["bert"]()), Favor(features=8))
    network.set_attn_implementation("subquad_linear")
    hidden(network, tokens())
    assert [type(each).__name__ for each in attached(network)] == ["LinearAttention"] * 2
    assert network.config.subquad["mechanisms"][0]["kind"] == "linear"


def test_layers_that_keep_their_own() -> None:
    network = model(CONFIGS["bert"]())
    wanted = network(tokens(), output_hidden_states=True).hidden_states
    found = hub.swap(network, "linear", layers=[-1])(tokens(), output_hidden_states=True).hidden_states
    assert_close(found[1], wanted[1], rtol=1e-5, atol=1e-5)
    assert not torch.allclose(found[2], wanted[2], atol=1e-2)
    assert network.config.subquad["layers"] == [None, 0]
    hub.swap(network, Favor(features=8), layers=[0])
    assert [type(each).__name__ for each in attached(network)] == ["FavorAttention", "LinearAttention"]
    assert network.config.subquad["layers"] == [0, 1]


def test_restoring() -> None:
    network = model(CONFIGS["bert"]())
    wanted, names, config = hidden(network, tokens()), set(network.state_dict()), network.config.to_dict()
    hub.restore(hub.swap(network, OPTIONS["learned"]))
    assert_close(hidden(network, tokens()), wanted, rtol=0, atol=0)
    assert set(network.state_dict()) == names
    assert network.config.to_dict() == config


def test_tensors_belong_to_the_model() -> None:
    network = model(CONFIGS["llama"]()).double()
    count = sum(1 for _ in network.parameters())
    hub.swap(network, OPTIONS["learned"])
    extra = [parameter for name, parameter in network.named_parameters() if ".subquad." in name]
    assert len(extra) == sum(1 for _ in network.parameters()) - count == 2 * 4
    assert {parameter.dtype for parameter in extra} == {torch.float64}
    network(tokens()).last_hidden_state.square().sum().backward()
    assert all(parameter.grad is not None and parameter.grad.count_nonzero() for parameter in extra)


def test_layers_draw_their_own_directions() -> None:
    for family in ("bert", "distilbert"):
        first, second = attached(hub.swap(model(CONFIGS[family]()), "favor"))
        assert not torch.equal(first.feature_map.omega, second.feature_map.omega)


def test_linformer_is_built_for_the_models_positions() -> None:
    network = hub.swap(model(CONFIGS["bert"]()), "linformer")
    assert network.config.subquad["mechanisms"][0]["max_length"] == 128


def test_an_encoders_mechanism_may_lack_a_causal_form() -> None:
    network = model(bart())
    assert list(hub.attention_modules(network))[2:4] == ["decoder.layers.0.self_attn", "decoder.layers.0.encoder_attn"]
    hub.swap(network, Linformer(k=4, max_length=32), layers=[0, 1, 3, 5])
    assert network(tokens(), decoder_input_ids=tokens(length=5)).last_hidden_state.isfinite().all()


@pytest.mark.parametrize(
    ("attention", "layers", "says"),
    [
        ("favour", None, "there is no mechanism 'favour': choose from softmax, linear, favor, linformer, "),
        ("linear", [2], "there is no layer 2: the model has 2 attention modules, 0 to 1"),
        ("linear", [-3], "there is no layer -3"),
    ],
)
def test_what_cannot_be_swapped_in(attention: Any, layers: Any, says: str) -> None:
    with pytest.raises(SubquadError, match=says):
        hub.swap(model(CONFIGS["bert"]()), attention, layers=layers)


def test_training_reaches_everything() -> None:
    """One step of an optimizer made after the swap lowers the loss."""
    network = hub.swap(model(CONFIGS["gpt2"](), hf.AutoModelForCausalLM), Linear()).train()
    optimizer = torch.optim.SGD(network.parameters(), 1e-3)
    losses = []
    for _ in range(3):
        torch.manual_seed(0)
        loss = network(tokens(), labels=tokens()).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[2] < losses[1] < losses[0]


def test_subquad_alone_does_without_transformers_and_compilers() -> None:
    """Either takes more than a second to import. Where transformers is not installed, the hub says so."""
    code = "import sys, subquad; subquad.Favor(), subquad.Decoder\n"
    code += "assert not sys.modules.keys() & {'transformers', 'torch._dynamo'}\n"
    code += "sys.modules['transformers'] = None\ntry: import subquad.hub\nexcept subquad.SubquadError as error: print(error)"
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert found.stdout.strip() == "subquad.hub needs transformers, which is not installed: pip install 'subquad[hub]'"


def test_a_projection_of_all_layers_is_refused() -> None:
    with pytest.raises(SubquadError, match="choose sharing='keys-values'"):
        hub.swap(model(CONFIGS["bert"]()), Linformer(k=4, max_length=32, sharing="layerwise"))
