"""Attentions of other packages, and the same mechanisms here, each as a function of q, k and v: rows of `peers.py`.

The Linformer packages have no attention without projections, so they are layers, beside subquad's Linformer in a layer and
fused softmax in a layer.
"""

import contextlib
import io
import runpy
import warnings
from collections.abc import Callable
from functools import partial
from importlib import import_module
from importlib.metadata import distribution
from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

import peer_landmarks
from peer_landmarks import HEAD_DIM, HEADS, Kind, Mix
from subquad import Favor, Linear, Linformer, MultiheadAttention, Softmax, Sparse, Window
from subquad.types import AttentionOptions

BASELINE = "softmax"
FEATURES = SLOTS = REACH = 256


def mixers(form: Literal["bidirectional", "causal"]) -> dict[str, Mix]:
    """PyTorch's fused attention and subquad's mechanisms that have the form."""
    generator = torch.Generator().manual_seed(0)
    options: dict[str, AttentionOptions] = {"linear": Linear(), "favor": Favor(FEATURES), "linformer": Linformer(SLOTS)}
    options |= {"window": Window(REACH), "sparse": Sparse()}
    built = {name: each.build(heads=HEADS, head_dim=HEAD_DIM, generator=generator) for name, each in options.items()}
    if form == "bidirectional":
        return {BASELINE: F.scaled_dot_product_attention, **built}

    def causal(attend: Any) -> Mix:
        return lambda q, k, v: attend.causal(q, k, v)[0]

    fused: Mix = lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True)  # noqa: E731
    return {BASELINE: fused, **{name: causal(attend) for name, attend in built.items() if hasattr(attend, "causal")}}


def layered(layer: Callable[[Tensor], Any]) -> Mix:
    """A layer as a function of q, k and v, whose sum is its input: all layers alike pay for that."""
    return lambda q, k, v: layer((q + k + v).transpose(1, 2).flatten(2)).unflatten(-1, (HEADS, HEAD_DIM)).transpose(1, 2)


def own(name: str, kind: Kind, length: int) -> Mix:
    """subquad's, or PyTorch's softmax. In a layer, Linformer has the length and the sharing that the other packages have."""
    if kind == "bidirectional" or kind == "causal":
        return mixers(kind)[name]
    options: dict[str, AttentionOptions] = {BASELINE: Softmax(), "linear": Linear()}
    options["linformer"] = Linformer(SLOTS, length, sharing="heads")
    options |= {"window": Window(REACH), "sparse": Sparse()}
    layer = MultiheadAttention(HEADS * HEAD_DIM, heads=HEADS, attention=options[name])
    return layered(layer if kind == "layer" else lambda x: layer.causal(x)[0])


def linear_attention_transformer(bucket: int, kind: Kind, length: int) -> Mix:
    """Softmax is its feature map. Buckets of 1, as its layer has, are exact; larger ones do not see themselves."""
    module = import_module("linear_attention_transformer.linear_attention_transformer")
    mix: Mix = partial(module.causal_linear_attn, bucket_size=bucket) if kind == "causal" else module.linear_attn
    return mix


def flash_linear_attention(kind: Kind, length: int) -> Mix:
    """Its reference, which alone runs on a CPU, with elu + 1. Read as a file, because importing it needs triton."""
    file = distribution("fla-core").locate_file("fla/ops/linear_attn/naive.py")
    attend = partial(runpy.run_path(str(file))["naive_chunk_linear_attn"], scale=1.0, normalize=True)
    features: Callable[[Tensor], Tensor] = lambda x: (F.elu(x) + 1).transpose(1, 2)  # noqa: E731
    return lambda q, k, v: attend(features(q), features(k), v.transpose(1, 2)).transpose(1, 2)


def fast_transformers(features: int | None, kind: Kind, length: int) -> Mix:
    """elu + 1, or random features, drawn once and not at every call, as its default is. Masks are made beforehand."""
    warnings.filterwarnings("ignore", message="torch.qr is deprecated")
    attention, masking = import_module("fast_transformers.attention"), import_module("fast_transformers.masking")
    favor = import_module("fast_transformers.feature_maps").Favor.factory(n_dims=features, redraw=10**9)
    attend_type = attention.CausalLinearAttention if kind == "causal" else attention.LinearAttention
    attend = attend_type(HEAD_DIM, feature_map=favor if features else None)
    mask = (masking.TriangularCausalMask if kind == "causal" else masking.FullMask)(length)
    lengths = masking.LengthMask(torch.tensor([length]))
    return lambda q, k, v: attend(*(x.transpose(1, 2) for x in (q, k, v)), mask, lengths, lengths).transpose(1, 2)


def performer(kind: Kind, length: int) -> Mix:
    """Without CUDA its causal form is a slower one, as it says on the screen."""
    with contextlib.redirect_stdout(io.StringIO()):
        mix: Mix = import_module("performer_pytorch").FastAttention(HEAD_DIM, FEATURES, causal=kind == "causal")
    return mix


def linformer(kind: Kind, length: int) -> Mix:
    """One projection for keys and one for values, which the heads share."""
    return layered(import_module("linformer").LinformerSelfAttention(HEADS * HEAD_DIM, length, k=SLOTS, heads=HEADS))


def linformer_pytorch(kind: Kind, length: int) -> Mix:
    """The same sharing. Its causal form masks slots, though each slot holds all positions."""
    module = import_module("linformer_pytorch.linformer_pytorch")
    mask = module.gen_causal_mask(length, SLOTS) if kind == "causal layer" else None
    sizes = (length, HEAD_DIM, HEADS * HEAD_DIM, SLOTS, HEADS)
    return layered(module.MHAttention(*sizes, 0.0, "C0", "headwise", None, None, False, mask))


def local_attention(kind: Kind, length: int) -> Mix:
    """Windows of the same reach, without its rotary positions. It pads lengths to a multiple of the window."""
    module = import_module("local_attention")
    sizes = {"look_backward": 1, "look_forward": int(kind == "bidirectional"), "exact_windowsize": True}
    mix: Mix = module.LocalAttention(REACH, causal=kind == "causal", autopad=True, use_rotary_pos_emb=False, **sizes)
    return mix


def longformer(kind: Kind, length: int) -> Mix:
    """The self-attention of transformers' Longformer, without the output projection that the other layers have."""
    module = import_module("transformers.models.longformer.modeling_longformer")
    config = module.LongformerConfig(
        attention_window=[2 * REACH],
        hidden_size=HEADS * HEAD_DIM,
        num_attention_heads=HEADS,
        num_hidden_layers=1,
        attention_probs_dropout_prob=0.0,
    )
    layer = module.LongformerSelfAttention(config, 0)
    padding = -length % (2 * REACH)
    mask = F.pad(torch.zeros(1, length), (0, padding), value=-10000.0)

    def run(x: Tensor) -> Tensor:
        mixed: Tensor = layer(F.pad(x, (0, 0, 0, padding)), mask, mask < 0, mask > 0, False)[0]
        return mixed[:, :length]

    return layered(run)


def big_bird(kind: Kind, length: int) -> Mix:
    """The block-sparse attention of transformers' BigBird: 8 blocks of 64 keys for each block, as subquad's default has.

    In training mode, because in evaluation its random blocks are all the first block; dropout is off. No output projection.
    """
    module = import_module("transformers.models.big_bird.modeling_big_bird")
    config = module.BigBirdConfig(
        hidden_size=HEADS * HEAD_DIM,
        num_attention_heads=HEADS,
        num_hidden_layers=1,
        block_size=64,
        num_random_blocks=3,
        attention_probs_dropout_prob=0.0,
        max_position_embeddings=length,
    )
    layer = module.BigBirdBlockSparseAttention(config, seed=0).train()
    masks = module.BigBirdModel.create_masks_for_block_sparse_attn(torch.ones(1, length), 64)
    blocked, band, of_queries, of_keys = masks
    return layered(lambda x: layer(x, band, of_queries, of_keys, blocked, blocked)[0])


CORES: tuple[Kind, ...] = ("bidirectional", "causal")
SOFTMAX, OWN, FAST = f"torch {BASELINE}", "subquad linear", "pytorch-fast-transformers linear"
# A package and a mechanism, the forms it has, and how it is built for a form and a length.
CANDIDATES: dict[str, tuple[tuple[Kind, ...], Callable[[Kind, int], Mix]]] = {
    SOFTMAX: (get_args(Kind), partial(own, BASELINE)),
    OWN: ((*CORES, "causal layer"), partial(own, "linear")),
    "linear-attention-transformer linear": (CORES, partial(linear_attention_transformer, 1)),
    "linear-attention-transformer linear, buckets": (("causal",), partial(linear_attention_transformer, 64)),
    "flash-linear-attention linear": (("causal",), flash_linear_attention),
    FAST: (CORES, partial(fast_transformers, None)),
    "subquad favor": (CORES, partial(own, "favor")),
    "performer-pytorch favor": (CORES, performer),
    "pytorch-fast-transformers favor": (CORES, partial(fast_transformers, FEATURES)),
    "subquad linformer": (("bidirectional", "layer"), partial(own, "linformer")),
    "linformer linformer": (("layer",), linformer),
    "linformer-pytorch linformer": (("layer", "causal layer"), linformer_pytorch),
    "subquad window": ((*CORES, "layer"), partial(own, "window")),
    "local-attention window": (CORES, local_attention),
    "transformers longformer": (("layer",), longformer),
    "subquad sparse": ((*CORES, "layer"), partial(own, "sparse")),
    "transformers bigbird": (("layer",), big_bird),
    **peer_landmarks.ROWS,
}
OTHER_NAMES = {"longformer": "window", "bigbird": "sparse"}
"""Mechanisms that other packages call otherwise."""
