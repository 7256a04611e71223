"""Softmax through the hub is transformers' own attention, on every family, with every mask; others are refused in words."""

from typing import Any

import pytest
import torch
from torch.testing import assert_close

from subquad import SubquadError
from tests.hub.families import (
    CAUSAL,
    CONFIGS,
    LENGTH,
    OPTIONS,
    SMALL,
    VOCABULARY,
    bart,
    hf,
    hidden,
    hub,
    model,
    padding,
    t5,
    tokens,
)

EXACT: dict[str, Any] = {"rtol": 1e-5, "atol": 1e-5}


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("side", ["none", "right", "left"])
def test_softmax_is_sdpa(name: str, side: str) -> None:
    network = model(CONFIGS[name]())
    given = {} if side == "none" else {"attention_mask": padding(side)}
    wanted = hidden(network, tokens(), **given)
    network.set_attn_implementation("subquad_softmax")
    assert_close(hidden(network, tokens(), **given), wanted, **EXACT)
    other = hf.AutoModel.from_config(CONFIGS[name](), attn_implementation="subquad_softmax").eval()
    other.load_state_dict(network.state_dict())
    assert_close(hidden(other, tokens(), **given), wanted, **EXACT)
    assert all(hub.attach.attached(module) is not None for module in hub.attention_modules(other).values())


@pytest.mark.parametrize("config", [bart, t5])
@pytest.mark.parametrize("length", [LENGTH, 9])
def test_softmax_is_sdpa_in_encoder_decoders(config: Any, length: int) -> None:
    """Encoder, decoder and between them, with as many queries as keys and with fewer."""
    network = model(config(), hf.AutoModelForSeq2SeqLM)
    given: dict[str, Any] = {"attention_mask": padding("right"), "decoder_input_ids": tokens(length=length, seed=2)}
    given["decoder_attention_mask"] = torch.ones(3, length, dtype=torch.long)
    given["decoder_attention_mask"][1, -4:] = 0
    with torch.no_grad():
        wanted = network(tokens(), **given).logits
        network.set_attn_implementation("subquad_softmax")
        assert_close(network(tokens(), **given).logits, wanted, **EXACT)


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_softmax_is_sdpa_across(name: str) -> None:
    config = CONFIGS[name]()
    config.is_decoder = config.add_cross_attention = True
    network = model(config)
    given = {"encoder_hidden_states": torch.randn(3, 11, 24), "encoder_attention_mask": padding("left", length=11)}
    given |= {"attention_mask": padding("right")}
    wanted = hidden(network, tokens(), **given)
    network.set_attn_implementation("subquad_softmax")
    assert_close(hidden(network, tokens(), **given), wanted, **EXACT)


def test_softmax_drops_weights_in_training() -> None:
    network = model(hf.LlamaConfig(**SMALL, attention_dropout=0.5)).train()
    for given in ({}, {"attention_mask": padding("left")}):
        found = []
        for name in ("sdpa", "subquad_softmax"):
            network.set_attn_implementation(name)
            torch.manual_seed(3)
            runs = torch.stack([network(tokens(), **given).last_hidden_state.detach() for _ in range(40)])
            found.append(runs)
        mask = given.get("attention_mask", torch.ones(3, 17)).bool()
        theirs, ours = (runs[:, mask] for runs in found)
        assert ours.std(0).mean() > 0.05
        assert abs(float(ours.std(0).mean() / theirs.std(0).mean()) - 1) < 0.1


REFUSED: dict[str, Any] = {
    "Bloom": lambda: hf.BloomConfig(hidden_size=24, n_layer=1, n_head=3, vocab_size=VOCABULARY),
    "Deberta": lambda: hf.DebertaConfig(**SMALL),
    "Longformer": lambda: hf.LongformerConfig(**SMALL, attention_window=4),
    "XLNet": lambda: hf.XLNetConfig(d_model=24, n_layer=1, n_head=3, d_inner=32, vocab_size=VOCABULARY),
}


CHOOSING: dict[str, Any] = {
    "Doge": lambda: hf.DogeConfig(**SMALL),
    "HYV4": lambda: hf.HYV4Config(**SMALL, n_routed_experts=4, num_experts_per_tok=2),
}


@pytest.mark.parametrize("name", CHOOSING)
def test_a_family_that_chooses_keys_by_its_mask_is_refused(name: str) -> None:
    says = f"{name}Model cannot be swapped: its {name}Attention chooses the keys of each query by a mask"
    for kind in ("softmax", "linear"):
        with pytest.raises(SubquadError, match=says):
            hf.AutoModel.from_config(CHOOSING[name](), attn_implementation=f"subquad_{kind}")
        with pytest.raises(SubquadError, match=says):
            hub.swap(hf.AutoModel.from_config(CHOOSING[name]()), kind)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of DeBERTa's own code
@pytest.mark.parametrize("name", REFUSED)
def test_a_family_that_does_not_look_up_its_attention_is_refused(name: str) -> None:
    says = f"{name}Model cannot be swapped: its attention is built in"
    with pytest.raises(SubquadError, match=says):
        hf.AutoModel.from_config(REFUSED[name](), attn_implementation="subquad_linear")
    network = hf.AutoModel.from_config(REFUSED[name]())
    with pytest.raises(SubquadError, match=says):
        network.set_attn_implementation(attn_implementation="subquad_linear")
    with pytest.raises(SubquadError, match=says):
        hub.swap(network, "linear")


def test_what_is_no_model_of_transformers_is_refused() -> None:
    with pytest.raises(SubquadError, match="a model of transformers is needed, but this is a Linear"):
        hub.swap(torch.nn.Linear(2, 2), "linear")


def test_what_is_added_to_scores_is_refused() -> None:
    network = model(t5(), hf.T5EncoderModel)
    network.set_attn_implementation("subquad_linear")
    with pytest.raises(SubquadError, match="T5Attention adds a bias for each pair of positions to its scores, which linear"):
        network(tokens())
    grouped = {**SMALL, "num_key_value_heads": 3, "head_dim": 8}
    network = model(hf.Gemma2Config(**grouped), hf.AutoModel)
    network.set_attn_implementation("subquad_favor")
    with pytest.raises(SubquadError, match="Gemma2Attention caps its scores, which favor cannot follow"):
        network(tokens())


@pytest.mark.parametrize("name", ["mistral", "modernbert"])
def test_a_sliding_window_is_refused_once_it_hides_something(name: str) -> None:
    """Within the window it is plain attention."""
    network = model(CONFIGS[name]())
    network.set_attn_implementation("subquad_linear")
    assert hidden(network, tokens(length=3)).isfinite().all()
    with pytest.raises(SubquadError, match=r"hides other keys from one query than from another, as a sliding window does"):
        network(tokens())


@pytest.mark.parametrize("cached", [False, True])
def test_generation_stops_at_a_sliding_window(cached: bool) -> None:
    network = model(hf.MistralConfig(**{**SMALL, "num_key_value_heads": 3}, sliding_window=9), hf.AutoModelForCausalLM)
    hub.swap(network, "linear")
    given = {"past_key_values": hub.state_cache(network)} if cached else {}
    assert network.generate(tokens(length=4), max_new_tokens=3, **given).shape == (3, 7)
    with pytest.raises(SubquadError, match="as a sliding window does"):
        network.generate(tokens(length=4), max_new_tokens=9)


def test_windows_stay_in_the_layers_that_are_left_alone() -> None:
    grouped = {**SMALL, "num_key_value_heads": 3, "head_dim": 8, "num_hidden_layers": 3, "sliding_window": 4}
    kinds = ["sliding_attention", "full_attention", "sliding_attention"]
    network = model(hf.Gemma3TextConfig(**grouped, layer_types=kinds), hf.AutoModelForCausalLM)
    with torch.no_grad():
        wanted = network(tokens()).logits
        assert_close(hub.swap(network, "softmax", layers=[1])(tokens()).logits, wanted, **EXACT)
        swapped = hub.swap(network, "linear", layers=[1])(tokens()).logits
    assert not torch.allclose(swapped, wanted, atol=1e-2)
    plain = network.generate(tokens(), max_new_tokens=9, use_cache=False)
    assert torch.equal(network.generate(tokens(), max_new_tokens=9, past_key_values=hub.state_cache(network)), plain)


def test_a_dense_mask_is_for_softmax() -> None:
    network = model(CONFIGS["bert"]())
    dense = torch.rand(3, 1, 17, 17, generator=torch.Generator().manual_seed(0)) > 0.3
    dense |= torch.eye(17, dtype=torch.bool)
    wanted = hidden(network, tokens(), attention_mask=dense)
    network.set_attn_implementation("subquad_softmax")
    assert_close(hidden(network, tokens(), attention_mask=dense), wanted, **EXACT)
    network.set_attn_implementation("subquad_favor")
    with pytest.raises(SubquadError, match=r"BertSelfAttention was given a mask of shape \(3, 1, 17, 17\)"):
        network(tokens(), attention_mask=dense)


@pytest.mark.parametrize("name", ["bert", "distilbert", "gpt2", "llama"])
def test_weights_are_not_given_out(name: str) -> None:
    network = model(CONFIGS[name]())
    hub.swap(network, "linear")
    with pytest.raises(SubquadError, match="linear makes no attention weights to give out"):
        network(tokens(), output_attentions=True)


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_a_decoder_needs_a_causal_form(name: str) -> None:
    network = model(CONFIGS[name]())
    with pytest.raises(SubquadError, match="linformer has no causal form"):
        hub.swap(network, "linformer")
    network.set_attn_implementation("subquad_linformer")
    with pytest.raises(SubquadError, match="linformer has no causal form"):
        network(tokens())
    with pytest.raises(SubquadError, match="linformer has no causal form"):
        hub.state_cache(network)


@pytest.mark.parametrize("name", CAUSAL)
def test_decoders_can_look_both_ways(name: str) -> None:
    """As embedding models made of decoders do."""
    network = hub.swap(model(CONFIGS["llama"]()), OPTIONS[name])
    ids = tokens()
    changed = ids.clone()
    changed[:, 3] = (ids[:, 3] + 1) % VOCABULARY
    for causal in (True, False):
        before, after = (hidden(network, each, is_causal=causal)[:, 0] for each in (ids, changed))
        assert torch.equal(before, after) == causal
