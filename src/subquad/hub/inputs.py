"""Short made-up inputs for a model: a few tokens, a picture, a sound."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor
from transformers import PreTrainedModel

from subquad.hub._compat import parameters_of

REAL, PADDING, CHANGED = 7, 2, 2
"""Numbers of real tokens in a sequence, of padding beside them, and of last tokens that are changed. The first two and their
sum are unusual as numbers of experts or heads, so that a square of them is a matrix of attention."""

HEAD_DIM = REAL + PADDING
SOUND = 4000  # samples of a made-up sound: several steps of every convolution in front of an encoder
LARGE = 2**17  # numbers in a picture or spectrogram of which a model is shown but one
FRAMES = 64  # of a made-up spectrogram, where the model does not say how many it takes


class Batch(NamedTuple):
    """What a model is called with."""

    inputs: dict[str, Any]
    keep: Bool[Tensor, "b n"] | None
    """True where a token is real; None where the inputs are not tokens."""


def token_batches(model: PreTrainedModel) -> dict[str, Batch]:
    """A sequence beside one with other last tokens, and the same sequence between padding of both sides and kinds.

    The rows under "padded": the sequence behind padding, behind other tokens in the padding's place, in front of padding, in
    front of other tokens, and a longer one without padding.
    """
    ids = _tokens(model, 6, HEAD_DIM)
    real, changed, other = ids[0, :REAL], ids[0, :REAL].clone(), ids[1, :PADDING]
    changed[-CHANGED:] = ids[2, :CHANGED]
    blank = torch.full_like(other, _padding_id(model))
    rows = [torch.cat(row) for row in ([blank, real], [other, real], [real, blank], [real, other], [ids[3]])]
    keep = torch.ones(5, HEAD_DIM, dtype=torch.bool, device=ids.device)
    keep[:2, :PADDING] = keep[2:4, REAL:] = False
    alone = torch.stack([real, changed])
    inputs = _named(model, alone, None)
    if "decoder_input_ids" in inputs:  # an encoder's tokens are all before those of its decoder
        inputs["input_ids"] = torch.stack([real, real])
    return {
        "alone": Batch(inputs, torch.ones_like(alone, dtype=torch.bool)),
        "padded": Batch(_named(model, torch.stack(rows), keep.long()), keep),
    }


def feature_batches(model: PreTrainedModel) -> Iterator[dict[str, Batch]]:
    """Pictures, sounds or spectrograms, in the shapes that models take: one alone, and beside another unless it is large."""
    takes = parameters_of(type(model))
    texts = _named(model, _tokens(model, 2, REAL), None) if {"input_ids", "decoder_input_ids"} & set(takes) else {}
    for features in _features(model):
        both = {**texts, **features}
        batches = {"one": Batch({name: value[:1] for name, value in both.items()}, None)}
        if max(value.numel() for value in features.values()) <= 2 * LARGE:
            batches["two"] = Batch(both, None)
        yield batches


def behind_encoder(model: PreTrainedModel, encoded: Any) -> dict[str, Batch]:
    """The batches of `token_batches` for a decoder whose encoder takes no tokens, and gave `encoded` for one input."""
    batches = {}
    for name, batch in token_batches(model).items():
        own = {each: value for each, value in batch.inputs.items() if each.startswith("decoder_")}
        rows = len(own["decoder_input_ids"])
        own["encoder_outputs"] = type(encoded)(
            **{each: value.expand(rows, *value.shape[1:]) for each, value in encoded.items() if isinstance(value, Tensor)}
        )
        batches[name] = Batch(own, batch.keep)
    return batches


def _named(model: PreTrainedModel, ids: Int[Tensor, "b n"], mask: Tensor | None) -> dict[str, Any]:
    """Tokens and their mask under the names of a model's arguments, of its decoder as well."""
    takes = parameters_of(type(model))
    both = [(ids, ("input_ids", "decoder_input_ids")), (mask, ("attention_mask", "decoder_attention_mask"))]
    return {name: value for value, names in both for name in names if name in takes and value is not None}


def _tokens(model: PreTrainedModel, rows: int, length: int) -> Int[Tensor, "b n"]:
    """Tokens that mean nothing in particular to a model."""
    plain = torch.tensor(sorted(set(range(_vocabulary(model))) - _special_ids(model)) or [0])
    drawing = torch.Generator().manual_seed(0)
    return plain[torch.randint(len(plain), (rows, length), generator=drawing)].to(next(model.parameters()).device)


def _vocabulary(model: PreTrainedModel) -> int:
    """Number of tokens that a model knows."""
    try:
        return len(torch.as_tensor(model.get_input_embeddings().weight))
    except (NotImplementedError, AttributeError):  # the model does not say where its embeddings are, or has none of tokens
        return int(getattr(model.config.get_text_config(), "vocab_size", 1))


def _special_ids(model: PreTrainedModel) -> set[int]:
    """The tokens that a config has a name for, such as padding or the place of a picture."""
    ids: set[int] = set()
    for config in (model.config, *(part.config for part in model.modules() if isinstance(part, PreTrainedModel))):
        for name, value in config.to_dict().items():
            if name.endswith(("_token_id", "_token_index")):
                ids |= {each for each in (value if isinstance(value, list) else [value]) if isinstance(each, int)}
    return ids


def _padding_id(model: PreTrainedModel) -> int:
    padding = getattr(model.config.get_text_config(), "pad_token_id", None)
    return padding if isinstance(padding, int) and 0 <= padding < _vocabulary(model) else 0


def _features(model: PreTrainedModel) -> Iterator[dict[str, Tensor]]:
    """Two of each thing that a model may take instead of tokens."""
    takes, weight = parameters_of(type(model)), next(model.parameters())
    configs = [model.config, *(part.config for part in model.modules() if isinstance(part, PreTrainedModel))]

    def told(name: str, otherwise: int) -> int:
        values = (getattr(config, name, None) for config in configs)
        return next((int(value) for each in values for value in _numbers(each)), otherwise)

    def draw(*shape: int) -> Tensor:
        drawing = torch.Generator().manual_seed(0)
        return torch.randn(2, *shape, generator=drawing).to(weight.device, weight.dtype)

    if "pixel_values" in takes:
        size, channels = told("image_size", 64), told("num_channels", 3)
        yield {"pixel_values": draw(channels, size, size)}
        yield {"pixel_values": draw(told("num_frames", 4), channels, size, size)}
    if "input_values" in takes:
        yield {"input_values": draw(SOUND)}
        yield {"input_values": draw(told("max_length", FRAMES), told("num_mel_bins", 80))}
    if "input_features" in takes:
        bins = told("num_mel_bins", told("feature_projection_input_dim", 80))
        yield {"input_features": draw(bins, 2 * told("max_source_positions", FRAMES // 2))}
        yield {"input_features": draw(FRAMES, told("input_feat_per_channel", bins))}


def _numbers(value: object) -> list[int]:
    values = value if isinstance(value, list | tuple) else [value]
    return [each for each in values if isinstance(each, int) and not isinstance(each, bool)]
