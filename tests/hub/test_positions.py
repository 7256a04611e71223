"""Longer texts than a model was made for."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.testing import assert_close

from subquad import SubquadError
from tests.hub.families import CONFIGS, bart, hf, hidden, hub, model, t5, tokens

TABLED = ["bert", "distilbert", "roberta", "electra", "gpt2", "layoutlm"]


@pytest.mark.parametrize("family", TABLED)
def test_a_table_is_repeated_and_old_texts_come_out_as_before(family: str, tmp_path: Path) -> None:
    network = model(CONFIGS[family]())
    short, long = tokens(length=100), tokens(rows=2, length=300)
    with pytest.raises((IndexError, RuntimeError)):
        hidden(network, long)
    before = hidden(network, short)
    assert hub.extend_positions(network, 300) is network
    assert_close(hidden(network, short), before, rtol=0, atol=0)
    assert hidden(network, long).isfinite().all()
    network.save_pretrained(tmp_path)
    assert_close(hidden(hub.load(tmp_path), long), hidden(network, long), rtol=0, atol=0)


def test_positions_repeat_from_where_they_begin() -> None:
    """A text that starts again after all positions sees the same rows: RoBERTa counts from behind its padding."""
    network: Any = hub.extend_positions(model(CONFIGS["roberta"]()), 300)
    table = network.embeddings.position_embeddings
    kept = 128 - 1  # its padding is row 0, and positions start behind it
    assert table.num_embeddings == len(table.weight) == 301
    assert_close(table.weight[1 : 1 + kept], table.weight[1 + kept : 1 + 2 * kept], rtol=0, atol=0)


@pytest.mark.parametrize("family", ["llama", "modernbert", "qwen3"])
def test_rotary_positions_need_nothing(family: str) -> None:
    network = model(CONFIGS[family]())
    before = {name: value.clone() for name, value in network.state_dict().items()}
    hub.extend_positions(network, 300)
    assert_close(dict(network.state_dict()), before, rtol=0, atol=0)
    assert network.config.max_position_embeddings == 300
    assert hidden(network, tokens(rows=1, length=300)).isfinite().all()


def test_encoder_decoders_are_extended_on_both_sides() -> None:
    network: Any = hub.extend_positions(model(bart()), 300)
    found = network(input_ids=tokens(rows=1, length=300), decoder_input_ids=tokens(rows=1, length=290))
    assert found.last_hidden_state.shape[1] == 290
    assert hub.extend_positions(model(t5()), 3000) is not None  # relative ones


def test_enough_positions_are_left_alone() -> None:
    network = model(CONFIGS["bert"]())
    table = network.embeddings.position_embeddings.weight
    assert hub.extend_positions(network, 128).embeddings.position_embeddings.weight is table


def test_what_cannot_be_extended_is_refused() -> None:
    network = model(CONFIGS["bert"]())
    network.embeddings.position_embeddings = torch.nn.Identity()
    with pytest.raises(SubquadError, match="BertModel takes 128 positions and has no table of them"):
        hub.extend_positions(network, 129)


def test_longer_tables_stay_and_sinusoids_go_on() -> None:
    sizes = {
        "d_model": 8,
        "encoder_layers": 1,
        "decoder_layers": 1,
        "encoder_attention_heads": 2,
        "decoder_attention_heads": 2,
    }
    sizes |= {"encoder_ffn_dim": 8, "decoder_ffn_dim": 8, "vocab_size": 61, "pad_token_id": 0}
    whisper = hf.WhisperModel(hf.WhisperConfig(**sizes, max_source_positions=50, max_target_positions=20))
    assert hub.extend_positions(whisper, 30).encoder.embed_positions.num_embeddings == 50
    short, long = (hf.MarianModel(hf.MarianConfig(**sizes, max_position_embeddings=size)) for size in (16, 40))
    hub.extend_positions(short, 40)
    assert_close(short.encoder.embed_positions.weight, long.encoder.embed_positions.weight)
