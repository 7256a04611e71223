"""Models with another attention under torch.compile and torch.export: one graph, whatever the mask says."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from tests.hub.families import CONFIGS, LENGTH, OPTIONS, SMALL, VOCABULARY, hf, hub, model, padding, tokens

CLOSE: dict[str, Any] = {"rtol": 1e-6, "atol": 1e-6}
NAMES = ["linear", "favor", "hybrid"]
MASKS = ["right", "left", "none"]
_WHISPER: dict[str, Any] = {"d_model": 24, "encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 32}
_WHISPER |= {"decoder_ffn_dim": 32, "encoder_attention_heads": 3, "decoder_attention_heads": 3, "num_mel_bins": 8}
_WHISPER |= {"max_source_positions": 12, "max_target_positions": 64, "vocab_size": VOCABULARY, "init_std": 0.4}
_WHISPER |= {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
_VIT: dict[str, Any] = {name: value for name, value in SMALL.items() if name not in ("vocab_size", "pad_token_id")}
OTHERS: dict[str, Any] = {
    "vit": lambda: hf.ViTConfig(**_VIT, image_size=16, patch_size=4),
    "whisper": lambda: hf.WhisperConfig(**_WHISPER),
}


def build(family: str, name: str) -> Any:
    """A small model in double precision with another attention, without a cache."""
    make = {
        "vit": lambda: hf.ViTConfig(**_VIT, image_size=16, patch_size=4),
        "whisper": lambda: hf.WhisperConfig(**_WHISPER),
    }
    config = make[family]() if family in make else CONFIGS[family]()
    kind = hf.AutoModelForCausalLM if family in ("llama", "qwen3") else hf.AutoModel
    return hub.swap(model(config, kind).double(), OPTIONS[name])


def given(family: str, side: str, length: int = LENGTH) -> dict[str, Any]:
    """Inputs with a mask, where the family takes one."""
    draw = torch.Generator().manual_seed(2)
    mask = torch.ones(3, length, dtype=torch.long) if side == "none" else padding(side, length=length)
    if family == "vit":
        return {"pixel_values": torch.randn(3, 3, 16, 16, generator=draw, dtype=torch.float64)}
    if family == "whisper":
        known: dict[str, Any] = {"input_features": torch.randn(3, 8, 24, generator=draw, dtype=torch.float64)}
        return known | {"decoder_input_ids": tokens(length=length), "decoder_attention_mask": mask, "use_cache": False}
    return {"input_ids": tokens(length=length), "attention_mask": mask} | ({"use_cache": False} if family != "bert" else {})


def main(found: Any) -> Tensor:
    result: Tensor = found["logits"] if "logits" in found else found["last_hidden_state"]
    return result


pytestmark = pytest.mark.usefixtures("unchecked_shapes")


@pytest.fixture(autouse=True)
def _fresh_compiler() -> None:
    torch.compiler.reset()


FAMILIES = ["bert", "llama", "qwen3", "vit", "whisper"]
QUICK = [("bert", "linear"), ("llama", "favor")]
EVERY = [
    pytest.param(family, name, marks=[] if (family, name) in QUICK else pytest.mark.slow)
    for family in FAMILIES
    for name in NAMES
]


@pytest.mark.parametrize(("family", "name"), EVERY)
def test_compiles_whole_with_masks(family: str, name: str) -> None:
    """A graph that was made with one mask is right for all others."""
    network = build(family, name)
    compiled: Any = torch.compile(network, fullgraph=True, backend="aot_eager")
    for side in MASKS:
        inputs = given(family, side)
        with torch.no_grad():
            assert_close(main(compiled(**inputs)), main(network(**inputs)), **CLOSE)


@pytest.mark.parametrize(("family", "name"), [("llama", "linear")])
def test_compiles_whole_without_a_mask(family: str, name: str) -> None:
    network, inputs = build(family, name), given(family, "none")
    del inputs["attention_mask"]
    compiled: Any = torch.compile(network, fullgraph=True, backend="eager")
    with torch.no_grad():
        assert_close(main(compiled(**inputs)), main(network(**inputs)), **CLOSE)


@pytest.mark.parametrize(("family", "name"), EVERY)
def test_exports_with_masks(family: str, name: str) -> None:
    network = build(family, name)
    with torch.no_grad():
        exported = torch.export.export(network, (), given(family, "right"), strict=False).module()
        for side in MASKS:
            inputs = given(family, side)
            assert_close(main(exported(**inputs)), main(network(**inputs)), **CLOSE)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of PyTorch's own code
@pytest.mark.parametrize("family", FAMILIES)
def test_compiles_to_machine_code(family: str) -> None:
    network = build(family, "linear")
    compiled: Any = torch.compile(network, fullgraph=True)
    for side in MASKS[:2]:
        inputs = given(family, side)
        with torch.no_grad():
            assert_close(main(compiled(**inputs)), main(network(**inputs)), **CLOSE)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("family", ["bert", "llama"])
def test_gradients_of_a_compiled_model(family: str, name: str) -> None:
    network, inputs, found = build(family, name), given(family, "right"), []
    for each in (network, torch.compile(network, fullgraph=True, backend="aot_eager")):
        network.zero_grad()
        main(each(**inputs)).square().mean().backward()
        found.append(torch.cat([weight.grad.flatten() for weight in network.parameters() if weight.grad is not None]))
    assert found[0].count_nonzero() > 0
    assert_close(found[1], found[0], **CLOSE)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("family", ["llama", "qwen3"])
@pytest.mark.parametrize("cache", ["state", "dynamic", "static"])
def test_generates_from_a_compiled_forward(cache: str, family: str, name: str) -> None:
    network = build(family, name)
    ids, mask = tokens(length=9), padding("left", length=9)[[0, 1, 1]]
    plain: dict[str, Any] = {"attention_mask": mask, "max_new_tokens": 6, "do_sample": False}
    wanted = network.generate(ids, **plain, use_cache=False)
    network.forward = torch.compile(network.forward, backend="aot_eager", dynamic=True)
    kept: dict[str, Any] = {"past_key_values": hub.state_cache(network)} if cache == "state" else {}
    kept |= {"cache_implementation": "static"} if cache == "static" else {}
    assert torch.equal(network.generate(ids, **plain, **kept), wanted)
