"""Landmarks and hashing in other packages, without their projections: rows of `peers.py`.

Their layers compute what is asked of them with the given queries, keys and values in place of projected ones. Reformers take
one vector for both queries and keys: they get the keys, as subquad's lsh does.
"""

from collections.abc import Callable
from importlib import import_module
from typing import Any, Literal

import torch
from torch import Tensor, nn

from subquad import Lsh, Nystrom

HEADS, HEAD_DIM = 8, 64
LANDMARKS = CHUNK = 64
ROUNDS = 2
Kind = Literal["bidirectional", "causal", "layer", "causal layer"]
Mix = Callable[[Tensor, Tensor, Tensor], Tensor]


class Given(nn.Module):
    """Takes the place of a projection: returns what it was given before, whatever its input is."""

    result: Tensor

    def forward(self, x: Tensor) -> Tensor:
        return self.result


def subquad_nystrom(kind: Kind, length: int) -> Mix:
    """Returns this package's attention through landmarks: any length, bidirectional only."""
    return Nystrom(LANDMARKS).build(heads=HEADS, head_dim=HEAD_DIM)


def subquad_lsh(kind: Kind, length: int) -> Mix:
    """Returns this package's attention by hashing, whose hashes are drawn once."""
    attend = Lsh(rounds=ROUNDS, buckets=32, chunk=CHUNK).build(heads=HEADS, head_dim=HEAD_DIM)
    return attend if kind == "bidirectional" else lambda q, k, v: attend.causal(q, k, v)[0]


def nystrom_attention(kind: Kind, length: int) -> Mix:
    """Without its convolution of the values."""
    sizes: dict[str, Any] = {"dim_head": HEAD_DIM, "heads": HEADS, "num_landmarks": LANDMARKS}
    layer = import_module("nystrom_attention").NystromAttention(HEADS * HEAD_DIM, **sizes, residual=False)
    layer.to_qkv, layer.to_out = nn.Identity(), nn.Identity()
    return lambda q, k, v: _split(layer(torch.cat([_merged(x) for x in (q, k, v)], dim=-1)))


def transformers_nystrom(kind: Kind, length: int) -> Mix:
    """Without its convolution of the values."""
    module = import_module("transformers.models.nystromformer.modeling_nystromformer")
    sizes: dict[str, Any] = {"hidden_size": HEADS * HEAD_DIM, "num_attention_heads": HEADS, "num_landmarks": LANDMARKS}
    config = import_module("transformers").NystromformerConfig(
        **sizes, segment_means_seq_len=length, attention_probs_dropout_prob=0.0
    )
    layer = module.NystromformerSelfAttention(config)
    layer.conv_kernel_size = None
    layer.query, layer.key, layer.value = Given(), Given(), Given()

    def mix(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        layer.query.result, layer.key.result, layer.value.result = (_merged(x) for x in (q, k, v))
        return _split(layer(layer.query.result)[0])

    return mix


def reformer_pytorch(kind: Kind, length: int) -> Mix:
    """It draws its hashes anew at every call."""
    layer = import_module("reformer_pytorch").LSHAttention(
        bucket_size=CHUNK, n_hashes=ROUNDS, causal=kind == "causal", dropout=0.0
    )
    return lambda q, k, v: layer(k.flatten(0, 1), v.flatten(0, 1))[0].view_as(v)


def transformers_lsh(kind: Kind, length: int) -> Mix:
    """It draws its hashes anew at every call."""
    module = import_module("transformers.models.reformer.modeling_reformer")
    config = import_module("transformers").ReformerConfig(
        attention_head_size=HEAD_DIM,
        num_attention_heads=HEADS,
        hidden_size=HEADS * HEAD_DIM,
        lsh_attn_chunk_length=CHUNK,
        num_hashes=ROUNDS,
        num_buckets=None,
        is_decoder=kind == "causal",
        lsh_attention_probs_dropout_prob=0.0,
        max_position_embeddings=length,
    )
    layer = module.LSHSelfAttention(config)
    layer.query_key, layer.value = Given(), Given()

    def mix(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        layer.query_key.result, layer.value.result = _merged(k), _merged(v)
        return _split(layer(layer.query_key.result).hidden_states)

    return mix


def _merged(x: Tensor) -> Tensor:
    return x.transpose(1, 2).flatten(2)


def _split(x: Tensor) -> Tensor:
    return x.unflatten(-1, (HEADS, HEAD_DIM)).transpose(1, 2)


# A package and a mechanism, the forms it has, and how it is built for a form and a length.
ROWS: dict[str, tuple[tuple[Kind, ...], Callable[[Kind, int], Mix]]] = {
    "subquad nystrom": (("bidirectional",), subquad_nystrom),
    "nystrom-attention nystrom": (("bidirectional",), nystrom_attention),
    "transformers nystrom": (("bidirectional",), transformers_nystrom),
    "subquad lsh": (("bidirectional", "causal"), subquad_lsh),
    "reformer-pytorch lsh": (("bidirectional", "causal"), reformer_pytorch),
    "transformers lsh": (("bidirectional", "causal"), transformers_lsh),
}
