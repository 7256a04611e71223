"""Tiny models whose attention matters, with tokenizers, and texts for them."""

import importlib
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from subquad.conversion.options import ConversionOptions
from subquad.conversion.plan import whole_plan
from subquad.conversion.quality import Quality
from subquad.conversion.sight import NOTHING, Sight
from subquad.data.texts import Documents

hf: Any = pytest.importorskip("transformers", reason="transformers is not installed: the extra `hub`")
pretrained: Any = importlib.import_module("subquad.conversion.pretrained")

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", *(f"w{number}" for number in range(40))]
SIZES: dict[str, Any] = {"hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 32}
SIZES |= {"vocab_size": len(WORDS), "max_position_embeddings": 32, "initializer_range": 0.5, "pad_token_id": 0}
GPT2: dict[str, Any] = {"n_embd": 16, "n_layer": 3, "n_head": 2, "vocab_size": len(WORDS), "n_positions": 32}
GPT2 |= {"initializer_range": 0.5, "bos_token_id": 2, "eos_token_id": 3}

DISTIL: dict[str, Any] = {"dim": 16, "n_layers": 3, "n_heads": 2, "hidden_dim": 32, "vocab_size": len(WORDS)}
CONFIGS: dict[str, Callable[[], Any]] = {
    "Bert": lambda: hf.BertConfig(**SIZES),
    "DistilBert": lambda: hf.DistilBertConfig(**DISTIL, max_position_embeddings=32, initializer_range=0.5),
    "Roberta": lambda: hf.RobertaConfig(**{**SIZES, "max_position_embeddings": 33}),  # of which one is for padding
    "GPT2": lambda: hf.GPT2Config(**GPT2),
    "ModernBert": lambda: hf.ModernBertConfig(**SIZES, local_attention=4, global_attn_every_n_layers=2),
    "Llama": lambda: hf.LlamaConfig(**SIZES, num_key_value_heads=1),
}


def save(folder: Path, kind: str = "BertModel") -> Path:
    """A model of a class, and its tokenizer."""
    torch.manual_seed(0)
    config = next(make for name, make in CONFIGS.items() if kind.startswith(name))()
    getattr(hf, kind)(config).save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(WORDS))
    hf.BertTokenizerFast(vocab=str(folder / "vocab.txt")).save_pretrained(folder)
    return folder


def documents(count: int = 12, words: int = 300) -> Documents:
    """Sentences in which a word often comes after the one before it in the list, so that there is something to learn."""
    drawing = random.Random(0)
    texts = []
    for _ in range(count):
        said, at = [], drawing.randrange(40)
        for place in range(words):
            at = (at + 1) % 40 if drawing.random() < 0.7 else drawing.randrange(40)
            said.append(f"w{at}" + (" ." if place % 9 == 8 else ""))
        texts.append(" ".join(said))
    return Documents([f"{number:02d}.txt" for number in range(count)], texts, [], ())


def write(folder: Path) -> Path:
    folder.mkdir()
    for name, text in zip(documents().names, documents().texts, strict=True):
        (folder / name).write_text(text)
    return folder


def original(folder: Path, kind: str = "BertModel", **given: Any) -> Any:
    """Something to convert."""
    return pretrained.Pretrained(save(folder, kind), documents(), **given)


def quality(teacher: Any, texts: int, sight: Sight = NOTHING) -> Quality:
    """All that is measured without a limit of time."""
    return Quality(teacher, whole_plan(teacher, ConversionOptions(texts=texts)), sight, 0)
