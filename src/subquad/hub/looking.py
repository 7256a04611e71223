"""Attention matrices of transformers models, randomly initialized copies of models, and tokenized texts."""

from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import AutoTokenizer, PreTrainedModel

from subquad.attention import Softmax
from subquad.attention.looking import Call, LayerOutputs, watched
from subquad.errors import SubquadError
from subquad.hub._compat import implementation_of, name_implementation
from subquad.hub.attach import ATTRIBUTE, attached, attention_modules, hang, options_of
from subquad.hub.files import load
from subquad.hub.probe import observed


@torch.no_grad()
def attention_matrices(model: PreTrainedModel, tokens: Int[Tensor, "b n"]) -> list[Float[Tensor, "b h n n"]]:
    """Returns the attention matrices of each layer in order; for an encoder-decoder those of the encoder."""
    if _mechanisms(model):
        return [call.matrix() for call in attention_calls(model, tokens)]
    model.set_attn_implementation("eager")  # the only implementation that returns attention weights
    matrices = getattr(_reader(model)(input_ids=tokens, output_attentions=True), "attentions", None)
    if not matrices or any(matrix is None for matrix in matrices):
        raise SubquadError(f"{type(model).__name__} does not return its attention weights, so they cannot be measured")
    return list(matrices)


@torch.no_grad()
def attention_calls(model: PreTrainedModel, tokens: Int[Tensor, "b n"]) -> list[Call]:
    """Returns the calls of a swapped model's mechanisms in order; for an encoder-decoder those of the encoder."""
    with watched(_mechanisms(model)) as calls:
        _reader(model)(input_ids=tokens)
    return calls


@torch.no_grad()
def layer_outputs(model: PreTrainedModel, tokens: Int[Tensor, "b n"]) -> LayerOutputs:
    """Returns the outputs of attention modules and layers; for an encoder-decoder those of the encoder."""
    with observed(attention_modules(model)) as outputs:
        hidden = getattr(_reader(model)(input_ids=tokens, output_hidden_states=True), "hidden_states", None)
    if not hidden:
        raise SubquadError(f"{type(model).__name__} does not return its hidden states, so they cannot be compared")
    return LayerOutputs([mixed for _, mixed in outputs], list(hidden[1:]))


def random_like(model: PreTrainedModel, seed: int) -> PreTrainedModel:
    """Returns a model of the same shape and with the same mechanisms, randomly initialized."""
    config = deepcopy(model.config)
    config.__dict__.pop(ATTRIBUTE, None)
    name_implementation(config, "eager")
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        fresh = type(model)(config).eval()
    if not _mechanisms(model):
        return fresh
    twin = deepcopy(model)
    twin.load_state_dict(fresh.state_dict(), strict=False)
    for place, module in enumerate(attention_modules(twin).values()):
        options = options_of(module)
        hang(module, options or Softmax(), seed + place, original=options is None)
    return twin


def longest_input(model: PreTrainedModel) -> int | None:
    """Returns the longest input of a model in tokens, from its position embeddings and config; None if unlimited."""
    tables = [
        module.num_embeddings - (0 if module.padding_idx is None else module.padding_idx + 1)
        for name, module in model.named_modules()
        if isinstance(module, nn.Embedding) and name.endswith("position_embeddings")
    ]
    stated = getattr(model.config, "max_position_embeddings", None)
    limits = [*tables, *([stated] if isinstance(stated, int) and stated > 0 else [])]
    return min(limits) if limits else None


def head_dim_of(model: PreTrainedModel) -> int:
    """Returns the dimension of one head's queries and keys."""
    config = model.config.get_text_config()
    stated = next((value for name in ("head_dim", "d_kv") if isinstance(value := getattr(config, name, None), int)), None)
    head_dim: int = stated or config.hidden_size // config.num_attention_heads
    return head_dim


def load_with_tokenizer(path: str | Path) -> tuple[PreTrainedModel, Any]:
    """Loads a model and its tokenizer."""
    model = load(path)
    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(path)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ImportError):
        tokenizer = None
    if tokenizer is None or len(tokenizer) <= len(
        tokenizer.all_special_ids
    ):  # transformers falls back to a tokenizer without words
        raise SubquadError(
            f"{path} has no readable tokenizer, which is needed to read text: put the tokenizer's files beside the model"
        )
    rows = int(torch.as_tensor(model.get_input_embeddings().weight).shape[0])
    if len(tokenizer) > rows:
        tokens = f"{len(tokenizer):,}"
        raise SubquadError(f"the tokenizer in {path} has {tokens} tokens, but its model has {rows:,}: use the model's own")
    return model, tokenizer


def stretches(
    tokenizer: Any, texts: Sequence[str], count: int, length: int, generator: torch.Generator
) -> Int[Tensor, "b n"]:
    """Cuts texts into excerpts of exactly `length` tokens, special tokens included, and draws at most `count` of them."""
    ends = [getattr(tokenizer, f"{name}_token_id", None) for name in ("cls", "sep")]
    first, last = ([] if end is None else [end] for end in ends)
    text_length = length - len(first) - len(last)
    if text_length < 1:
        raise SubquadError(
            f"--length is {length}, which leaves no room for text: give at least {len(first) + len(last) + 1}"
        )
    rows: list[list[int]] = []
    for text in texts:
        tokens = np.array(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"], dtype=np.int64)
        whole = tokens[: len(tokens) // text_length * text_length].reshape(-1, text_length)
        rows += [[*first, *row, *last] for row in whole.tolist()]
    drawn = torch.randperm(len(rows), generator=generator)[:count].tolist()
    return torch.tensor([rows[row] for row in drawn], dtype=torch.long).view(len(drawn), length)


def _reader(model: PreTrainedModel) -> Any:
    """Returns the part of a model that reads tokens, in eval mode: the encoder if it has one."""
    model.eval()
    return model.get_encoder() if model.config.is_encoder_decoder else model


def _mechanisms(model: PreTrainedModel) -> list[nn.Module]:
    """Returns the mechanisms attached to a model's layers in order; an empty list for a model's own attention."""
    if not implementation_of(model).startswith(ATTRIBUTE):
        return []
    return [attend for module in attention_modules(model).values() if (attend := attached(module)) is not None]
