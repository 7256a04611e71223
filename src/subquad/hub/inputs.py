"""Short synthetic inputs for a model: a few tokens, an image, a sound."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor
from transformers import PreTrainedModel

from subquad.hub._compat import parameters_of

REAL, PADDING, CHANGED = 7, 2, 2
"""Number of real tokens in a sequence, of padding tokens, and of last tokens that are changed.

The first two and their sum are unusual numbers of experts or heads, so that a square matrix of that size is attention."""

HEAD_DIM = REAL + PADDING
SOUND = 4000  # number of samples of a sound: several steps of every convolution before an encoder
LARGE = 2**17  # images or spectrograms with more elements than this are not batched
FRAMES = 64  # number of frames of a spectrogram, if the config does not state it


class Batch(NamedTuple):
    """Arguments of a model call, with the mask of real tokens."""

    inputs: dict[str, Any]
    keep: Bool[Tensor, "b n"] | None
    """True for real tokens; None if the inputs are not tokens."""


def token_batches(model: PreTrainedModel) -> dict[str, Batch]:
    """Returns two batches: "alone", a sequence and a copy with other last tokens; and "padded".

    The rows of "padded" are: the sequence after padding; after other, masked tokens; before padding; before other, masked
    tokens; and a longer sequence without padding.
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
    if "decoder_input_ids" in inputs:  # the encoder's tokens all come before the decoder's
        inputs["input_ids"] = torch.stack([real, real])
    return {
        "alone": Batch(inputs, torch.ones_like(alone, dtype=torch.bool)),
        "padded": Batch(_named(model, torch.stack(rows), keep.long()), keep),
    }


def feature_batches(model: PreTrainedModel) -> Iterator[dict[str, Batch]]:
    """Yields images, sounds or spectrograms in common shapes: "one" alone, and "two" in a batch unless they are large."""
    takes = parameters_of(type(model))
    texts = _named(model, _tokens(model, 2, REAL), None) if {"input_ids", "decoder_input_ids"} & set(takes) else {}
    for features in _features(model):
        both = {**texts, **features}
        batches = {"one": Batch({name: value[:1] for name, value in both.items()}, None)}
        if max(value.numel() for value in features.values()) <= 2 * LARGE:
            batches["two"] = Batch(both, None)
        yield batches


def behind_encoder(model: PreTrainedModel, encoded: Any) -> dict[str, Batch]:
    """Returns the batches of `token_batches` for a decoder, with `encoded` as the output of an encoder without tokens."""
    batches = {}
    for name, batch in token_batches(model).items():
        inputs = {field: value for field, value in batch.inputs.items() if field.startswith("decoder_")}
        rows = len(inputs["decoder_input_ids"])
        inputs["encoder_outputs"] = type(encoded)(
            **{field: value.expand(rows, *value.shape[1:]) for field, value in encoded.items() if isinstance(value, Tensor)}
        )
        batches[name] = Batch(inputs, batch.keep)
    return batches


def _named(model: PreTrainedModel, ids: Int[Tensor, "b n"], mask: Tensor | None) -> dict[str, Any]:
    """Returns tokens and mask under the argument names of a model and of its decoder."""
    takes = parameters_of(type(model))
    both = [(ids, ("input_ids", "decoder_input_ids")), (mask, ("attention_mask", "decoder_attention_mask"))]
    return {name: value for value, names in both for name in names if name in takes and value is not None}


def _tokens(model: PreTrainedModel, rows: int, length: int) -> Int[Tensor, "b n"]:
    """Draws tokens that are not special to a model."""
    plain = torch.tensor(sorted(set(range(_vocabulary(model))) - _special_ids(model)) or [0])
    drawing = torch.Generator().manual_seed(0)
    return plain[torch.randint(len(plain), (rows, length), generator=drawing)].to(next(model.parameters()).device)


def _vocabulary(model: PreTrainedModel) -> int:
    """Returns the vocabulary size of a model."""
    try:
        return len(torch.as_tensor(model.get_input_embeddings().weight))
    except (NotImplementedError, AttributeError):  # the model has no token embeddings, or does not tell them
        return int(getattr(model.config.get_text_config(), "vocab_size", 1))


def _special_ids(model: PreTrainedModel) -> set[int]:
    """Returns the ids of special tokens in a model's configs, such as padding or an image placeholder."""
    ids: set[int] = set()
    for config in (model.config, *(part.config for part in model.modules() if isinstance(part, PreTrainedModel))):
        for name, value in config.to_dict().items():
            if name.endswith(("_token_id", "_token_index")):
                ids |= {token for token in (value if isinstance(value, list) else [value]) if isinstance(token, int)}
    return ids


def _padding_id(model: PreTrainedModel) -> int:
    padding = getattr(model.config.get_text_config(), "pad_token_id", None)
    return padding if isinstance(padding, int) and 0 <= padding < _vocabulary(model) else 0


def _features(model: PreTrainedModel) -> Iterator[dict[str, Tensor]]:
    """Yields batches of two for each kind of input that a model may take instead of tokens."""
    takes, weight = parameters_of(type(model)), next(model.parameters())
    configs = [model.config, *(part.config for part in model.modules() if isinstance(part, PreTrainedModel))]

    def config_value(name: str, otherwise: int) -> int:
        values = (getattr(config, name, None) for config in configs)
        return next((int(value) for candidate in values for value in _numbers(candidate)), otherwise)

    def draw(*shape: int) -> Tensor:
        drawing = torch.Generator().manual_seed(0)
        return torch.randn(2, *shape, generator=drawing).to(weight.device, weight.dtype)

    if "pixel_values" in takes:
        size, channels = config_value("image_size", 64), config_value("num_channels", 3)
        yield {"pixel_values": draw(channels, size, size)}
        yield {"pixel_values": draw(config_value("num_frames", 4), channels, size, size)}
    if "input_values" in takes:
        yield {"input_values": draw(SOUND)}
        yield {"input_values": draw(config_value("max_length", FRAMES), config_value("num_mel_bins", 80))}
    if "input_features" in takes:
        bins = config_value("num_mel_bins", config_value("feature_projection_input_dim", 80))
        yield {"input_features": draw(bins, 2 * config_value("max_source_positions", FRAMES // 2))}
        yield {"input_features": draw(FRAMES, config_value("input_feat_per_channel", bins))}


def _numbers(value: object) -> list[int]:
    values = value if isinstance(value, list | tuple) else [value]
    return [item for item in values if isinstance(item, int) and not isinstance(item, bool)]
