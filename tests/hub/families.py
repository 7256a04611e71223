"""Small models of several families, with weights large enough for attention to matter."""

import importlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from subquad import Cosformer, Favor, Hybrid, Infinity, Learned, Linear, Linformer, Lsh, Nystrom, Softmax, Window

# whatever tests the hub imports these from here, and is skipped where there is nothing to import
hf: Any = pytest.importorskip("transformers", reason="transformers is not installed: the extra `hub`")
hub: Any = importlib.import_module("subquad.hub")

VOCABULARY, LENGTH = 61, 17
_SIZES: dict[str, Any] = {"hidden_size": 24, "num_hidden_layers": 2, "intermediate_size": 32, "vocab_size": VOCABULARY}
_SIZES |= {"max_position_embeddings": 128, "pad_token_id": 0}
_WIDE: dict[str, Any] = {**_SIZES, "initializer_range": 0.4}
SMALL: dict[str, Any] = {**_WIDE, "num_attention_heads": 3}
GROUPED: dict[str, Any] = {**_WIDE, "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 8, "eos_token_id": None}
_BART: dict[str, Any] = {
    "d_model": 24,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32,
}
_BART |= {"encoder_attention_heads": 3, "decoder_attention_heads": 2, "vocab_size": VOCABULARY, "init_std": 0.4}
_DISTIL: dict[str, Any] = {"dim": 24, "n_layers": 2, "n_heads": 3, "hidden_dim": 32, "vocab_size": VOCABULARY}
_GPT2: dict[str, Any] = {"n_embd": 24, "n_layer": 2, "n_head": 3, "vocab_size": VOCABULARY, "n_positions": 128}
_GPT2 |= {"initializer_range": 0.4, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": None}

CONFIGS: dict[str, Callable[[], Any]] = {
    "bert": lambda: hf.BertConfig(**SMALL),
    "distilbert": lambda: hf.DistilBertConfig(**_DISTIL, initializer_range=0.4, max_position_embeddings=128),
    "roberta": lambda: hf.RobertaConfig(**SMALL),
    "electra": lambda: hf.ElectraConfig(**SMALL, embedding_size=24),
    "gpt2": lambda: hf.GPT2Config(**_GPT2),
    "gpt2-by-layer": lambda: hf.GPT2Config(**_GPT2, scale_attn_by_inverse_layer_idx=True),
    "gpt2-unscaled": lambda: hf.GPT2Config(**_GPT2, scale_attn_weights=False),
    "llama": lambda: hf.LlamaConfig(**GROUPED),
    "qwen3": lambda: hf.Qwen3Config(**GROUPED),
    "mistral": lambda: hf.MistralConfig(**GROUPED, sliding_window=5),
    "modernbert": lambda: hf.ModernBertConfig(**SMALL, local_attention=4, global_attn_every_n_layers=2),
    "bert-decoder": lambda: hf.BertConfig(**SMALL, is_decoder=True),
    "layoutlm": lambda: hf.LayoutLMConfig(**SMALL),  # makes its own mask
}

_DECODER: dict[str, Any] = {**_WIDE, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "eos_token_id": None}
_LATENT: dict[str, Any] = {**_WIDE, "num_attention_heads": 4, "num_key_value_heads": 4, "moe_intermediate_size": 16}
_LATENT |= {"q_lora_rank": 16, "kv_lora_rank": 12, "qk_rope_head_dim": 4, "qk_nope_head_dim": 8, "v_head_dim": 6}
_LATENT |= {"n_routed_experts": 4, "num_experts_per_tok": 2, "first_k_dense_replace": 2, "eos_token_id": None}
_JETMOE: dict[str, Any] = {**_WIDE, "num_key_value_heads": 2, "kv_channels": 8, "num_local_experts": 4}

DECODERS: dict[str, Callable[[], Any]] = {
    "diffllama": lambda: hf.DiffLlamaConfig(**_DECODER),  # calls its attention twice
    "deepseek_v2": lambda: hf.DeepseekV2Config(**_LATENT, topk_method="greedy"),  # makes keys of what it cached
    "deepseek_v3": lambda: hf.DeepseekV3Config(**_LATENT, n_group=1, topk_group=1),
    "jetmoe": lambda: hf.JetMoeConfig(**_JETMOE, num_experts_per_tok=2, eos_token_id=None),  # repeats keys that it cached
    "llama4": lambda: hf.Llama4TextConfig(  # counts its chunks from the first real token
        **_DECODER, attention_chunk_size=32, intermediate_size_mlp=32, num_local_experts=2, layer_types=None
    ),
    "hrm_text": lambda: hf.HrmTextConfig(**{**_DECODER, "num_key_value_heads": 4}),  # goes through its layers several times
}
"""Decoders that do something unusual with their cache or their mask."""


def big_bird_pegasus(attention_type: str = "original_full") -> Any:
    """Its decoder says that it is not causal, and trusts in the mask."""
    given = {"pad_token_id": 0, "eos_token_id": None, "decoder_start_token_id": 1, "max_position_embeddings": 128}
    return hf.BigBirdPegasusConfig(**{**_BART, "decoder_attention_heads": 3}, **given, attention_type=attention_type)


def bart() -> Any:
    return hf.BartConfig(**_BART, max_position_embeddings=128, pad_token_id=0, forced_eos_token_id=None, eos_token_id=None)


def t5() -> Any:
    sizes = {"d_model": 24, "d_kv": 8, "num_heads": 3, "num_layers": 2, "d_ff": 32, "initializer_factor": 2.0}
    return hf.T5Config(**sizes, vocab_size=VOCABULARY, decoder_start_token_id=0)


# small enough that a segment, a slot and a state are all used within a few positions
OPTIONS: dict[str, Any] = {
    "softmax": Softmax(),
    "linear": Linear(),
    "learned": Linear(Learned()),
    "favor": Favor(features=32),
    "infinity": Infinity(segment=5, basis=6, points=8, widths=(0.1,)),
    "hybrid": Hybrid(block=3, log_gain=0.0),
    "window": Window(reach=4, global_tokens=1),
    "linformer": Linformer(k=6, max_length=128),
    "linformer-mean": Linformer(k=6, method="mean"),
    "nystrom": Nystrom(landmarks=3),
    "cosformer": Cosformer(max_length=128),
    "lsh": Lsh(rounds=2, buckets=2, chunk=3),
}
CAUSAL = ["softmax", "linear", "learned", "favor", "infinity", "hybrid", "window", "cosformer", "lsh"]


def model(config: Any, kind: Any = hf.AutoModel, seed: int = 0) -> Any:
    """In eval mode, the same at every call."""
    torch.manual_seed(seed)
    make = getattr(kind, "from_config", kind)
    return make(config).eval()


def tokens(rows: int = 3, length: int = LENGTH, seed: int = 1) -> Tensor:
    return torch.randint(3, VOCABULARY, (rows, length), generator=torch.Generator().manual_seed(seed))


def padding(side: str, rows: int = 3, length: int = LENGTH) -> Tensor:
    """A mask of several lengths, with the padding on one side."""
    mask = torch.ones(rows, length, dtype=torch.long)
    for row, missing in enumerate((5, 0, 14)[:rows]):
        mask[row, length - missing :] = 0
    return mask.flip(1) if side == "left" else mask


@torch.no_grad()
def hidden(network: Any, ids: Tensor, **given: Any) -> Tensor:
    found: Tensor = network(ids, **given).last_hidden_state
    return found
