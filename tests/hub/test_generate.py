"""Generating from states: the same tokens as from scratch, in constant memory."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from subquad import SubquadError
from tests.hub.families import CAUSAL, CONFIGS, DECODERS, OPTIONS, bart, hf, hub, model, padding, tokens

CONSTANT = [name for name in CAUSAL if OPTIONS[name].traits.constant_state]
NEW = 8
WAYS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "beams": {"num_beams": 3, "num_return_sequences": 2},
    "sampled": {"do_sample": True, "num_return_sequences": 2},
    "sampled-beams": {"do_sample": True, "num_beams": 3},
}


def decoder(family: str, name: str) -> Any:
    """In float64, where no two tokens are equally likely."""
    return hub.swap(model(CONFIGS[family](), hf.AutoModelForCausalLM).double(), OPTIONS[name])


def written(network: Any, ids: Tensor, **given: Any) -> Tensor:
    torch.manual_seed(4)
    found: Tensor = network.generate(ids, max_new_tokens=NEW, **given)
    return found


EVERY = [(name, way) for name in CAUSAL for way in ("greedy", "beams")]
EVERY += [("favor", "sampled"), ("favor", "sampled-beams"), ("infinity", "sampled")]
FAMILIES = [pytest.param("gpt2", marks=pytest.mark.slow), "llama"]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("name", "way"), EVERY)
def test_the_same_tokens_as_without_a_cache(family: str, name: str, way: str) -> None:
    network, ids = decoder(family, name), tokens(length=9)
    for mask in (None, padding("left", length=9)[[0, 1, 1]]):
        given = WAYS[way] if mask is None else {**WAYS[way], "attention_mask": mask}
        wanted = written(network, ids, **given, use_cache=False)
        assert torch.equal(written(network, ids, **given, past_key_values=hub.state_cache(network)), wanted)
        if way in ("greedy", "beams"):
            assert torch.equal(written(network, ids, **given), wanted)  # the ordinary cache, which grows


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", CAUSAL)
def test_other_ways_through_the_prompt(family: str, name: str) -> None:
    """A static cache, which has room for keys to come, and a prompt in pieces."""
    network, ids, mask = decoder(family, name), tokens(length=9), padding("left", length=9)[[0, 1, 1]]
    wanted = written(network, ids, attention_mask=mask, use_cache=False)
    assert torch.equal(written(network, ids, attention_mask=mask, cache_implementation="static"), wanted)
    pieces: dict[str, Any] = {"prefill_chunk_size": 4, "attention_mask": mask}
    assert torch.equal(written(network, ids, **pieces), wanted)
    assert torch.equal(written(network, ids, **pieces, past_key_values=hub.state_cache(network)), wanted)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", CONSTANT)
def test_memory_does_not_grow(family: str, name: str) -> None:
    network, cache = decoder(family, name), hub.state_cache(decoder(family, name))
    sizes = []
    for length in (9, 20, 40):
        written(network, tokens(length=length), past_key_values=cache)
        sizes.append(cache.nbytes)
        assert cache.get_seq_length() == length + NEW - 1
        cache.reset()
        assert cache.get_seq_length() == cache.nbytes == 0
    assert sizes[0] > 0
    assert len(set(sizes)) == 1


def test_softmax_keeps_what_it_saw() -> None:
    network = decoder("llama", "softmax")
    cache = hub.state_cache(network)
    written(network, tokens(length=9), past_key_values=cache)
    assert cache.nbytes == 2 * 2 * 3 * 2 * (9 + NEW - 1) * 8 * 8


def test_layers_of_both_kinds() -> None:
    network = hub.swap(model(CONFIGS["llama"](), hf.AutoModelForCausalLM), OPTIONS["favor"], layers=[1])
    cache = hub.state_cache(network)
    assert [type(layer).__name__ for layer in cache.layers] == ["DynamicLayer", "StateLayer"]
    ids = tokens(length=9)
    wanted = written(network, ids, use_cache=False, num_beams=2)
    assert torch.equal(written(network, ids, num_beams=2, past_key_values=cache), wanted)


@pytest.mark.parametrize("family", ["gpt2", "llama"])
@pytest.mark.parametrize("layers", [[0], [1]])
@pytest.mark.parametrize("name", ["linear", "hybrid"])
def test_layers_of_both_kinds_behind_left_padding(family: str, layers: list[int], name: str) -> None:
    """Layers that keep all keys need a mask of all positions, those with a state one of the new positions."""
    network = hub.swap(model(CONFIGS[family](), hf.AutoModelForCausalLM).double(), OPTIONS[name], layers=layers)
    ids, given = tokens(length=9), {"attention_mask": padding("left", length=9)[[0, 1, 1]]}
    for way in ("greedy", "beams"):
        wanted = written(network, ids, **given, **WAYS[way], use_cache=False)
        assert torch.equal(written(network, ids, **given, **WAYS[way], past_key_values=hub.state_cache(network)), wanted)
    pieces: dict[str, Any] = {"prefill_chunk_size": 4, "past_key_values": hub.state_cache(network)}
    assert torch.equal(written(network, ids, **given, **pieces), written(network, ids, **given, use_cache=False))


@pytest.mark.parametrize("family", DECODERS)
@pytest.mark.parametrize("layers", [None, [0], pytest.param([-1], marks=pytest.mark.slow)])
def test_unusual_decoders(family: str, layers: list[int] | None) -> None:
    network = hub.swap(model(DECODERS[family](), hf.AutoModelForCausalLM).double(), OPTIONS["linear"], layers=layers)
    ids, given = tokens(length=9), {"attention_mask": padding("left", length=9)[[0, 1, 1]]}
    cache = hub.state_cache(network)
    assert "StateLayer" in {type(layer).__name__ for layer in cache.layers}
    wanted = written(network, ids, **given, use_cache=False)
    assert torch.equal(written(network, ids, **given, past_key_values=cache), wanted)
    assert torch.equal(written(network, ids, **given), wanted)


def test_a_state_is_not_found_by_a_later_call_without_a_cache() -> None:
    """Where a module keeps the state until its attention is called, and something fails in between."""
    network, ids = hub.swap(model(DECODERS["jetmoe"](), hf.AutoModelForCausalLM), "linear"), tokens(length=9)
    wanted = network(ids).logits
    cache = hub.state_cache(network)
    cache.update(torch.zeros(3, 2, 9, 8), torch.zeros(3, 2, 9, 8), 0)
    assert_close(network(ids, use_cache=False).logits, wanted, rtol=0, atol=0)
    with pytest.raises(SubquadError, match="did not find its state"):
        network(ids, past_key_values=cache)


def test_a_cache_that_only_its_family_has() -> None:
    sizes = {"hidden_size": 24, "num_hidden_layers": 2, "intermediate_size": 32, "vocab_size": 61, "head_dim": 8}
    config = hf.MiniMaxConfig(**sizes, num_attention_heads=3, num_key_value_heads=3, block_size=4, num_local_experts=2)
    network = hub.swap(model(config, hf.AutoModelForCausalLM), "linear")
    with pytest.raises(SubquadError, match="MiniMaxForCausalLM generates with a cache of its own, MiniMaxCache"):
        hub.state_cache(network)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", CAUSAL)
def test_going_on_from_a_prompt_that_was_read(family: str, name: str) -> None:
    """Once read, it serves several continuations."""
    network, prompt = decoder(family, name), tokens(length=11)
    cache = hub.state_cache(network)
    with torch.no_grad():
        network(prompt, past_key_values=cache)
    for seed in (7, 8):
        ids = torch.cat([prompt, tokens(length=3, seed=seed)], 1)
        wanted = written(network, ids, use_cache=False)
        assert torch.equal(written(network, ids, past_key_values=copy.deepcopy(cache)), wanted)


@pytest.mark.parametrize("name", ["softmax", "linear", "infinity"])
@pytest.mark.parametrize("beams", [1, 3])
def test_encoder_decoders(name: str, beams: int) -> None:
    network = hub.swap(model(bart(), hf.AutoModelForSeq2SeqLM).double(), OPTIONS[name])
    ids, given = tokens(length=9), {"attention_mask": padding("right", length=9)[[0, 1, 1]], "num_beams": beams}
    wanted = written(network, ids, **given, use_cache=False)
    assert torch.equal(written(network, ids, **given), wanted)
    assert torch.equal(written(network, ids, **given, past_key_values=hub.state_cache(network)), wanted)


def test_by_name_alone() -> None:
    """Before the mechanism is there, its name tells which state it will have."""
    network = model(CONFIGS["llama"](), hf.AutoModelForCausalLM)
    network.set_attn_implementation("subquad_favor")
    cache = hub.state_cache(network)
    found = written(network, tokens(length=9), past_key_values=cache)
    assert torch.equal(found, written(network, tokens(length=9), use_cache=False))
    assert {type(layer).__name__ for layer in cache.layers} == {"StateLayer"}


def test_gradients_flow_through_a_state() -> None:
    network, ids = decoder("llama", "learned"), tokens(length=9)
    gradients = []
    for cached in (False, True):
        network.zero_grad()
        if cached:
            cache = hub.state_cache(network)
            network(ids[:, :8], past_key_values=cache)
            logits = network(ids[:, 8:], past_key_values=cache).logits
        else:
            logits = network(ids).logits[:, 8:]
        logits.square().mean().backward()
        gradients.append(network.model.layers[0].self_attn.k_proj.weight.grad.clone())
    assert gradients[0].count_nonzero() > 0
    assert_close(gradients[1], gradients[0], rtol=1e-3, atol=1e-5)


def test_a_state_is_for_subquads_attention() -> None:
    network = model(CONFIGS["llama"](), hf.AutoModelForCausalLM)
    with pytest.raises(SubquadError, match="a state cache is for a model with subquad's attention"):
        hub.state_cache(network)
    cache = hub.state_cache(hub.swap(network, "linear"))
    network.set_attn_implementation("sdpa")
    with pytest.raises(SubquadError, match="did not find its state"):
        written(network, tokens(length=9), past_key_values=cache)


def test_a_state_forgets_nothing() -> None:
    network = decoder("llama", "linear")
    cache = hub.state_cache(network)
    assert not cache.is_croppable
    with pytest.raises(SubquadError, match="a state cannot forget its last tokens"):
        cache.crop(-1)
