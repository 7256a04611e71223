"""The attention of transformers' models."""

from pathlib import Path
from typing import Any

import pytest
import torch

transformers = pytest.importorskip("transformers")

from subquad import Linear, Softmax, SubquadError  # noqa: E402
from subquad.hub import swap  # noqa: E402
from subquad.hub.looking import (  # noqa: E402
    attention_calls,
    attention_matrices,
    head_dim_of,
    layer_outputs,
    load_with_tokenizer,
    longest_input,
    random_like,
    stretches,
)

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "sat", "on", "mat", "."]


def bert(seed: int = 0) -> Any:
    torch.manual_seed(seed)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 32}
    return transformers.BertModel(transformers.BertConfig(vocab_size=len(WORDS), max_position_embeddings=64, **sizes)).eval()


def save(folder: Path) -> Path:
    """A tiny model with a tokenizer."""
    bert().save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(WORDS))
    transformers.BertTokenizerFast(vocab=str(folder / "vocab.txt")).save_pretrained(folder)
    return folder


def test_matrices_are_those_of_the_model() -> None:
    model = bert()
    tokens = torch.randint(5, 11, (1, 9))
    found = attention_matrices(model, tokens)
    assert [matrix.shape for matrix in found] == [(1, 4, 9, 9)] * 2
    layer = model.encoder.layer[0].attention.self
    hidden = model.embeddings(tokens)
    q, k = (part(hidden).view(1, 9, 4, 4).transpose(1, 2) for part in (layer.query, layer.key))
    torch.testing.assert_close(found[0], (q @ k.mT / 2).softmax(-1))


def test_a_swapped_model_shows_what_its_mechanism_does() -> None:
    model = swap(bert(), Linear())
    tokens = torch.randint(5, 11, (1, 9))
    found = attention_matrices(model, tokens)
    assert len(found) == 2
    assert int(torch.linalg.matrix_rank(found[0], rtol=1e-4).max()) <= 4  # the features of heads of 4 numbers
    twin = random_like(model, seed=1)
    assert not torch.allclose(attention_matrices(twin, tokens)[0], found[0])
    torch.testing.assert_close(attention_matrices(model, tokens)[0], found[0])  # the model itself is not touched


def test_queries_and_keys_are_those_of_the_model() -> None:
    model, tokens = bert(), torch.randint(5, 11, (1, 9))
    matrices = attention_matrices(model, tokens)
    calls = attention_calls(swap(model, Softmax()), tokens)
    for call, matrix in zip(calls, matrices, strict=True):
        torch.testing.assert_close((call.q @ call.k.mT / 2).softmax(-1), matrix)
        assert not call.causal


def test_layer_outputs_are_those_of_the_layers() -> None:
    model, tokens = bert(), torch.randint(5, 11, (1, 9))
    found = layer_outputs(model, tokens)
    assert [output.shape for output in (*found.attention, *found.hidden)] == [(1, 9, 16)] * 4
    torch.testing.assert_close(found.hidden[1], model(input_ids=tokens).last_hidden_state)
    first = model.encoder.layer[0]
    torch.testing.assert_close(found.attention[0], first.attention.self(model.embeddings(tokens))[0])
    swapped = layer_outputs(swap(model, Linear()), tokens)
    assert not torch.allclose(swapped.hidden[0], found.hidden[0])


def test_a_random_model_has_the_shape_and_not_the_weights() -> None:
    model = bert()
    one, same, other = (random_like(model, seed) for seed in (1, 1, 2))
    names = {name: tensor.shape for name, tensor in model.state_dict().items()}
    assert {name: tensor.shape for name, tensor in one.state_dict().items()} == names
    weight = "encoder.layer.0.attention.self.query.weight"
    assert torch.equal(one.state_dict()[weight], same.state_dict()[weight])
    assert not torch.equal(one.state_dict()[weight], other.state_dict()[weight])
    assert not torch.equal(one.state_dict()[weight], model.state_dict()[weight])


def test_the_encoder_of_an_encoder_decoder_is_looked_at() -> None:
    sizes = {"d_model": 16, "encoder_layers": 2, "decoder_layers": 1, "encoder_attention_heads": 2, "vocab_size": 20}
    small = {"decoder_attention_heads": 2, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16}
    model = transformers.BartModel(transformers.BartConfig(**sizes, **small, max_position_embeddings=32))
    found = attention_matrices(model, torch.randint(4, 20, (1, 7)))
    assert [matrix.shape for matrix in found] == [(1, 2, 7, 7)] * 2


def test_how_long_and_how_wide() -> None:
    assert longest_input(bert()) == 64
    assert head_dim_of(bert()) == 4
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    config = transformers.RobertaConfig(vocab_size=20, max_position_embeddings=34, **sizes)
    assert longest_input(transformers.RobertaModel(config)) == 32  # two are kept for padding


def test_stretches_fill_the_length_between_the_ends(tmp_path: Path) -> None:
    model, tokenizer = load_with_tokenizer(save(tmp_path))
    texts = ["the cat sat on the mat . " * 4, "the cat"]
    found = stretches(tokenizer, texts, 3, 12, torch.Generator().manual_seed(0))
    assert found.shape == (2, 12)  # of 28 words two times ten
    assert (found[:, 0] == 2).all()
    assert (found[:, -1] == 3).all()
    assert found[:, 1:-1].min() >= 5
    assert attention_matrices(model, found[:1])[0].shape == (1, 4, 12, 12)
    assert len(stretches(tokenizer, ["the cat"], 3, 12, torch.Generator())) == 0
    with pytest.raises(SubquadError, match="--length is 2, which leaves no room for text: give at least 3"):
        stretches(tokenizer, texts, 3, 2, torch.Generator())


def test_a_model_without_a_tokenizer(tmp_path: Path) -> None:
    bert().save_pretrained(tmp_path)
    with pytest.raises(SubquadError, match="has no readable tokenizer"):
        load_with_tokenizer(tmp_path)
    save(tmp_path)
    (tmp_path / "vocab.txt").write_text("\n".join([*WORDS, "dog"]))
    transformers.BertTokenizerFast(vocab=str(tmp_path / "vocab.txt")).save_pretrained(tmp_path)
    with pytest.raises(SubquadError, match="has 12 tokens, but its model has 11: use the model's own"):
        load_with_tokenizer(tmp_path)
