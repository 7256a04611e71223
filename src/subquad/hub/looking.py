"""Looking at the attention of transformers' models: their matrices, the same model without what it learned, tokens."""

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
from subquad.attention.looking import watched
from subquad.errors import SubquadError
from subquad.hub._compat import implementation_of, name_implementation
from subquad.hub.attach import ATTRIBUTE, attached, attention_modules, hang, options_of
from subquad.hub.files import load


@torch.no_grad()
def attention_matrices(model: PreTrainedModel, tokens: Int[Tensor, "b n"]) -> list[Float[Tensor, "b h n n"]]:
    """What each layer's heads look at, first layer first. Of an encoder-decoder, the encoder's layers."""
    model.eval()
    asked: Any = model.get_encoder() if model.config.is_encoder_decoder else model
    mechanisms = _mechanisms(model)
    if mechanisms:
        with watched(mechanisms) as calls:
            asked(input_ids=tokens)
        return [call.matrix() for call in calls]
    model.set_attn_implementation("eager")  # the only one that has them
    found = getattr(asked(input_ids=tokens, output_attentions=True), "attentions", None)
    if not found or any(one is None for one in found):
        raise SubquadError(f"{type(model).__name__} does not give out its attention weights, so there is nothing to look at")
    return list(found)


def random_like(model: PreTrainedModel, seed: int) -> PreTrainedModel:
    """A model of the same shape and with the same mechanisms, with fresh weights."""
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
        hang(module, options or Softmax(), seed + place, own=options is None)
    return twin


def longest_input(model: PreTrainedModel) -> int | None:
    """How many tokens a model takes: as many as its table of positions has, without those that are kept for padding."""
    tables = [
        module.num_embeddings - (0 if module.padding_idx is None else module.padding_idx + 1)
        for name, module in model.named_modules()
        if isinstance(module, nn.Embedding) and name.endswith("position_embeddings")
    ]
    told = getattr(model.config, "max_position_embeddings", None)
    found = [*tables, *([told] if isinstance(told, int) and told > 0 else [])]
    return min(found) if found else None


def head_dim_of(model: PreTrainedModel) -> int:
    """Numbers of a query or key of one head."""
    config = model.config.get_text_config()
    told = next((found for name in ("head_dim", "d_kv") if isinstance(found := getattr(config, name, None), int)), None)
    head_dim: int = told or config.hidden_size // config.num_attention_heads
    return head_dim


def load_with_tokenizer(path: str | Path) -> tuple[PreTrainedModel, Any]:
    """A model, and what makes tokens of text for it."""
    model = load(path)
    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(path)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ImportError):
        tokenizer = None
    if tokenizer is None or len(tokenizer) <= len(tokenizer.all_special_ids):  # transformers makes up one without words
        raise SubquadError(
            f"{path} has no tokenizer that can be read, so no text either: put the tokenizer's files beside it"
        )
    rows = int(torch.as_tensor(model.get_input_embeddings().weight).shape[0])
    if len(tokenizer) > rows:
        tokens = f"{len(tokenizer):,}"
        raise SubquadError(f"the tokenizer in {path} has {tokens} tokens, but its model knows {rows:,}: it is another's")
    return model, tokenizer


def stretches(
    tokenizer: Any, texts: Sequence[str], count: int, length: int, generator: torch.Generator
) -> Int[Tensor, "b n"]:
    """Stretches of texts that fill the whole length, at most so many, between the tokens that the model expects there."""
    ends = [getattr(tokenizer, f"{name}_token_id", None) for name in ("cls", "sep")]
    first, last = ([] if end is None else [end] for end in ends)
    room = length - len(first) - len(last)
    if room < 1:
        raise SubquadError(
            f"--length is {length}, which leaves no room for text: give at least {len(first) + len(last) + 1}"
        )
    rows: list[list[int]] = []
    for text in texts:
        tokens = np.array(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"], dtype=np.int64)
        whole = tokens[: len(tokens) // room * room].reshape(-1, room)
        rows += [[*first, *row, *last] for row in whole.tolist()]
    some = torch.randperm(len(rows), generator=generator)[:count].tolist()
    return torch.tensor([rows[at] for at in some], dtype=torch.long).view(len(some), length)


def _mechanisms(model: PreTrainedModel) -> list[nn.Module]:
    """Those of subquad that hang on a model, in its order; none where its attention is its own."""
    if not implementation_of(model).startswith(ATTRIBUTE):
        return []
    return [found for module in attention_modules(model).values() if (found := attached(module)) is not None]
