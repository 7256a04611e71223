"""Layers that share attention weights."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from subquad import MECHANISMS, Decoder, Encoder, Favor, Linear, ModelOptions, Softmax, TokenEmbedding
from subquad.attention import Linformer
from subquad.models import Block
from subquad.models.stacks import EncoderDecoder
from subquad.training import checkpoints

CAUSAL = [name for name, options_class in MECHANISMS.items() if options_class().traits.causal]


def options(**changes: Any) -> ModelOptions:
    return ModelOptions(**{"layers": 3, "heads": 2, "head_dim": 8, "share_attention": 2, **changes})


def decoder(name: str, **changes: Any) -> Decoder:
    return Decoder(7, MECHANISMS[name](), options(**changes), generator=torch.Generator().manual_seed(0)).eval()


def tokens(length: int = 11) -> Tensor:
    return torch.randint(7, (3, length), generator=torch.Generator().manual_seed(0))


def matrices(model: Any, x: Tensor) -> list[Tensor]:
    """The softmax weights of each layer, computed from the queries and keys that its mechanism is called with."""
    weights: list[Tensor] = []

    def record(module: nn.Module, inputs: Any) -> None:
        q, k = inputs[:2]
        weights.append((q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5).softmax(-1))

    mechanisms = {id(block.attention.attend): block.attention.attend for block in model.blocks}
    hooks = [attend.register_forward_pre_hook(record) for attend in mechanisms.values()]
    model(x)
    for hook in hooks:
        hook.remove()
    return weights


@pytest.mark.parametrize("positions", ["sinusoidal", "rotary"])
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_layers_of_a_group_have_the_same_attention_weights(norm: str, positions: str) -> None:
    generator = torch.Generator().manual_seed(0)
    embed = TokenEmbedding(7, 16, generator)
    encoder = Encoder(embed, Softmax(), options(norm=norm, positions=positions), generator=generator).eval()
    first, second, third = matrices(encoder, tokens())
    assert_close(first, second)
    assert float((second - third).detach().abs().max()) > 1e-2


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("name", CAUSAL)
def test_steps_and_parts_equal_the_whole(name: str, norm: str) -> None:
    model, x = decoder(name, norm=norm, positions="rotary"), tokens()
    first, state = model.causal(x[:, :5])
    parts = [first]
    for at in range(5, 11):
        logits, state = model.step(x[:, at : at + 1], state)
        parts.append(logits)
    assert_close(torch.cat(parts, 1), model(x), rtol=1e-4, atol=1e-4)
    assert_close(model.logits(model.hidden(x)[-1]), model(x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("attention", [Linear(), Favor(features=8), Linformer(k=3, max_length=20)], ids=lambda o: o.kind)
def test_a_group_has_one_mechanism_and_one_projection_to_queries_and_keys(attention: Any) -> None:
    encoder = Encoder(TokenEmbedding(7, 16, None), attention, options())
    blocks = [block for block in encoder.blocks if isinstance(block, Block)]
    assert blocks[0].attention.attend is blocks[1].attention.attend
    assert blocks[0].attention.attend is not blocks[2].attention.attend
    with_queries = [name for name, _ in encoder.named_parameters() if "to_q.weight" in name]
    assert with_queries == ["blocks.0.attention.to_q.weight", "blocks.2.attention.to_q.weight"]


def test_gradients_are_the_same_if_activations_are_recomputed() -> None:
    model, x = decoder("linear").train(), tokens()
    gradients = []
    for recompute in (False, True):
        model.zero_grad()
        model.recompute = recompute
        model(x).square().mean().backward()
        gradients.append([parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None])
    assert len(gradients[0]) == len(list(model.parameters()))
    for plain, recomputed in zip(*gradients, strict=True):
        assert_close(plain, recomputed)


def test_encoder_decoders_share_self_attention_only() -> None:
    model = EncoderDecoder(7, Linear(), options()).eval()
    blocks: list[Any] = list(model.decoder.blocks)
    assert all(block.cross.weighs for block in blocks)
    context, x = model.encoder(tokens()), tokens(4)
    first, state = model.decoder.causal(x[:, :3], context=context)
    last, _ = model.decoder.step(x[:, 3:], state, context=context)
    assert_close(torch.cat([first, last], 1), model.decoder(x, context=context), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["favor", "infinity"])
def test_checkpoints_hold_what_is_shared(name: str, tmp_path: Path) -> None:
    model, x = decoder(name), tokens()
    checkpoints.save(tmp_path / "checkpoint", 1, model, None, {})
    loaded = decoder(name)
    for parameter in loaded.parameters():
        nn.init.zeros_(parameter)
    checkpoint, _ = checkpoints.load(tmp_path / "checkpoint")
    assert checkpoint is not None
    checkpoints.restore(checkpoint, loaded)
    assert_close(loaded(x), model(x))
