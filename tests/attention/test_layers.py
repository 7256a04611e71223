"""Different mechanisms in the layers of one model."""

import dataclasses
import json

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from subquad import (
    Decoder,
    Favor,
    Hybrid,
    Layers,
    Linear,
    Linformer,
    ModelOptions,
    MultiheadAttention,
    Softmax,
    SubquadError,
)
from subquad.attention import joined, layers_size, options_from, require_causal, require_length
from subquad.attention.linformer import LinformerAttention
from subquad.models import EncoderDecoder, decoder_size

THREE_AND_ONE = Layers((Linear(), Linear(), Linear(), Softmax()))


def decoder(attention: Layers, layers: int) -> Decoder:
    options = ModelOptions(layers=layers, heads=2, head_dim=4)
    return Decoder(7, attention, options, generator=torch.Generator().manual_seed(0)).eval()


def kinds(model: nn.Module) -> list[str]:
    return [block.attention.attend.options.kind for block in model.blocks]  # type: ignore[union-attr]


def test_each_layer_has_its_mechanism_and_longer_stacks_repeat_them() -> None:
    assert kinds(decoder(THREE_AND_ONE, 4)) == ["linear", "linear", "linear", "softmax"]
    assert kinds(decoder(THREE_AND_ONE, 8)) == 2 * ["linear", "linear", "linear", "softmax"]
    both = EncoderDecoder(7, THREE_AND_ONE, ModelOptions(layers=4, heads=2, head_dim=4))
    assert kinds(both.encoder) == kinds(both.decoder) == ["linear", "linear", "linear", "softmax"]


def test_what_does_not_fit_is_refused_in_words() -> None:
    with pytest.raises(SubquadError, match=r"linear\*3,softmax are the attentions of 4 layers, but the model has 6: name 6"):
        decoder(THREE_AND_ONE, 6)
    with pytest.raises(SubquadError, match="of which one is needed here: choose one"):
        MultiheadAttention(8, heads=2, attention=THREE_AND_ONE)
    with pytest.raises(SubquadError, match="linformer has no causal form"):
        require_causal(Layers((Softmax(), Linformer())))
    with pytest.raises(SubquadError, match="k has 9 positions, but linformer was built for max_length=8"):
        require_length(Layers((Softmax(), Linformer(max_length=8))), 9)
    with pytest.raises(SubquadError, match="mechanisms must be one mechanism or several"):
        Layers(())
    with pytest.raises(SubquadError, match="mechanisms must be single mechanisms"):
        Layers((THREE_AND_ONE,))


def test_a_decoder_goes_on_from_the_states_of_its_layers() -> None:
    model = decoder(Layers((Hybrid(block=3), Softmax())), 4)
    tokens = torch.randint(7, (2, 20), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        whole = model(tokens)
        first, state = model.causal(tokens[:, :11])
        parts = [first]
        for place in range(11, 20):
            logits, state = model.step(tokens[:, place : place + 1], state)
            parts.append(logits)
    assert_close(torch.cat(parts, dim=1), whole)


def test_the_file_format_is_read_back() -> None:
    for options in (THREE_AND_ONE, Layers((Favor(features=8), Hybrid(block=4)))):
        assert options_from(json.loads(json.dumps(dataclasses.asdict(options)))) == options
    for values, words in (
        ({"kind": "layers"}, "the attention: mechanisms must be a list"),
        ({"kind": "layers", "mechanisms": []}, "must be one mechanism or several"),
        ({"kind": "layers", "mechanisms": [{"kind": "none"}]}, r"mechanisms\[0\] must have a kind out of softmax"),
        ({"kind": "layers", "mechanisms": [dataclasses.asdict(THREE_AND_ONE)]}, "must be single mechanisms"),
    ):
        with pytest.raises(SubquadError, match=words):
            options_from(values)


@pytest.mark.parametrize(
    "attention",
    [THREE_AND_ONE, Layers((Favor(features=8), Linformer(k=2, max_length=9, sharing="layerwise"))), Layers((Hybrid(),))],
    ids=lambda attention: attention.name,
)
def test_sizes_are_those_of_the_built_model(attention: Layers) -> None:
    size = layers_size(attention, heads=2, head_dim=4, layers=8)
    build = attention.layer_builder(heads=2, head_dim=4)
    built = nn.ModuleList(build() for _ in range(8))
    assert size.numbers == sum(part.numel() for part in [*built.parameters(), *built.buffers()])
    if attention.traits.causal:
        model = decoder(attention, 8)
        numbers = decoder_size(7, attention, model.options, positions=5).numbers
        assert numbers == sum(part.numel() for part in [*model.parameters(), *model.buffers()])


def test_layers_with_the_same_options_share_what_they_would_share_alone() -> None:
    build = Layers((Linformer(k=2, max_length=9, sharing="layerwise"), Softmax())).layer_builder(heads=2, head_dim=4)
    built = [build() for _ in range(4)]
    assert isinstance(built[0], LinformerAttention)
    assert isinstance(built[2], LinformerAttention)
    assert built[0].projection is built[2].projection


def test_names_and_traits() -> None:
    assert THREE_AND_ONE.name == "linear*3,softmax"
    assert joined([Softmax(), Softmax()]) == Softmax()
    assert not THREE_AND_ONE.traits.constant_state
    assert Layers((Hybrid(block=8), Softmax())).traits.window == Hybrid(block=8).traits.window
    assert Layers((Hybrid(block=8), Softmax())).without_far_keys() == Layers((Hybrid(block=8, rest="none"), Softmax()))
    assert THREE_AND_ONE.without_far_keys() is None
    assert Layers((Linformer(), Softmax())).for_length(7) == Layers((Linformer(max_length=7), Softmax()))
