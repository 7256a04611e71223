"""Reversible layers: the gradients of plain autograd, without the memory of the layers' activations."""

import gc
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from subquad import (
    Decoder,
    Encoder,
    EncoderDecoder,
    Infinity,
    Linear,
    Linformer,
    Lsh,
    ModelOptions,
    Softmax,
    SubquadError,
    TokenEmbedding,
    generate,
)
from subquad.models import CausalEncoder
from subquad.models.stacks import Stack
from subquad.types import AttentionOptions

SMALL = ModelOptions(layers=3, heads=2, head_dim=6, reversible=True)
ATTENTIONS: dict[str, AttentionOptions] = {
    "softmax": Softmax(),
    "linear": Linear(),
    "lsh": Lsh(rounds=2, buckets=4, chunk=4),
    "linformer": Linformer(k=3, max_length=40, sharing="layerwise"),
}


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def encoder(attention: AttentionOptions, options: ModelOptions = SMALL) -> Encoder:
    return Encoder(TokenEmbedding(11, options.model_dim, seeded()), attention, options, generator=seeded()).double()


def gradients(out: Tensor, model: nn.Module) -> list[Tensor]:
    weights = torch.randn(out.shape, generator=seeded(5), dtype=out.dtype)
    return list(torch.autograd.grad(out, list(model.parameters()), weights, allow_unused=True, materialize_grads=True))


def plainly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets autograd save what the layers compute."""
    monkeypatch.setattr(Stack, "_saves_nothing", lambda self: False)


@pytest.mark.parametrize("name", ATTENTIONS)
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_gradients_are_those_of_plain_blocks(name: str, dropout: float, monkeypatch: pytest.MonkeyPatch) -> None:
    model = encoder(ATTENTIONS[name], replace(SMALL, dropout=dropout))
    tokens, keep = torch.randint(11, (2, 33), generator=seeded()), torch.ones(2, 33, dtype=torch.bool)
    keep[1, 20:] = False
    torch.manual_seed(3)
    out = model(tokens, keep=keep)
    torch.manual_seed(4)  # the backward repeats the dropout of the forward whatever was drawn since
    found = gradients(out, model)
    plainly(monkeypatch)
    torch.manual_seed(3)
    wanted = model(tokens, keep=keep)
    assert_close(out, wanted, rtol=1e-12, atol=1e-12)
    assert_close(found, gradients(wanted, model), rtol=1e-9, atol=1e-9)
    assert sum(float(gradient.abs().sum() > 0) for gradient in found) > 30


def test_gradients_of_a_decoder_and_of_a_causal_encoder(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = torch.randint(11, (2, 19), generator=seeded())
    options = replace(SMALL, positions="rotary")
    models: list[tuple[Any, Any]] = [
        (Decoder(11, Linear(), options, generator=seeded()).double(), (tokens,)),
        (
            CausalEncoder(TokenEmbedding(11, 12, seeded()), Softmax(), options, generator=seeded()).double(),
            (tokens, torch.arange(19.0).double().expand(2, 19)),
        ),
    ]
    found = [gradients(model(*inputs), model) for model, inputs in models]
    plainly(monkeypatch)
    for (model, inputs), each in zip(models, found, strict=True):
        assert_close(each, gradients(model(*inputs), model), rtol=1e-9, atol=1e-9)


def test_a_decoder_continues_from_its_state() -> None:
    model = Decoder(11, Linear(), SMALL, generator=seeded()).double()
    tokens = torch.randint(11, (2, 19), generator=seeded())
    whole = model(tokens)
    assert_close(model(tokens, last=4), whole[:, -4:])
    first, state = model.causal(tokens[:, :12])
    parts = [first]
    for place in range(12, 19):
        logits, state = model.step(tokens[:, place : place + 1], state)
        parts.append(logits)
    assert_close(torch.cat(parts, dim=1), whole, rtol=1e-9, atol=1e-9)
    assert generate(model.float(), tokens[:1], length=3).shape[1] >= 3


def test_autocast_is_that_of_the_forward() -> None:
    model = encoder(Linear()).float()
    tokens = torch.randint(11, (2, 19), generator=seeded())
    with torch.autocast("cpu", torch.bfloat16):
        out = model(tokens)
    found = gradients(out.float(), model)
    with torch.autocast("cpu", torch.bfloat16):
        inside = gradients(model(tokens).float(), model)
    assert_close(found, inside, rtol=0.05, atol=0.05)


def saved_bytes(layers: int, options: ModelOptions) -> int:
    """Bytes of what autograd saves for the backward of an encoder with as many layers, its weights aside."""
    model = encoder(Softmax(), replace(options, layers=layers))
    weights = {weight.untyped_storage().data_ptr() for weight in model.parameters()}
    saved: dict[int, int] = {}

    def note(x: Tensor) -> Tensor:
        storage = x.untyped_storage()
        if storage.data_ptr() not in weights:
            saved[storage.data_ptr()] = storage.nbytes()
        return x

    with torch.autograd.graph.saved_tensors_hooks(note, lambda x: x):
        out = model(torch.randint(11, (2, 50), generator=seeded()))
    gc.collect()
    assert out.requires_grad
    return sum(saved.values())


def test_what_is_saved_does_not_grow_with_the_layers() -> None:
    assert saved_bytes(8, SMALL) == saved_bytes(2, SMALL)
    plain = replace(SMALL, reversible=False)
    assert saved_bytes(8, plain) > 3 * saved_bytes(2, plain)
    assert saved_bytes(8, SMALL) < saved_bytes(8, plain) / 10


def test_what_cannot_be_reversible_is_refused() -> None:
    with pytest.raises(SubquadError, match=r"reversible layers add to their inputs.*choose norm pre"):
        replace(SMALL, norm="post")
    with pytest.raises(SubquadError, match="reversible layers have no cross-attention"):
        EncoderDecoder(11, Linear(), SMALL)
    with pytest.raises(SubquadError, match="infinity adds to the loss, which reversible layers cannot do"):
        encoder(Infinity(divergence=0.1))
