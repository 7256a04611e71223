"""Random inputs for a model: the first of several kinds that its forward takes and runs with."""

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

ROWS, LENGTH = 3, 17
TOKENS = (3, 40)  # the range of random tokens: special ones lie outside

Inputs = dict[str, Any]


def candidates(model: Any) -> Iterator[Inputs]:
    """Arguments that the forward of a model may run with, the likeliest first."""
    names = inspect.signature(model.forward).parameters
    draw = torch.Generator().manual_seed(1)
    words: Inputs = {}
    if "input_ids" in names:
        words["input_ids"] = torch.randint(*TOKENS, (ROWS, LENGTH), generator=draw)
    if getattr(model.config, "is_encoder_decoder", False) and "decoder_input_ids" in names:
        words["decoder_input_ids"] = torch.randint(*TOKENS, (ROWS, LENGTH), generator=draw)
    if "input_ids" in words:
        yield words
    for kind in KINDS:
        for extra in kind(model.config, draw):
            if all(name in names for name in extra):
                yield {**words, **extra}
                if "input_ids" in words:
                    yield extra | {name: words[name] for name in words if name != "input_ids"}


def _part(config: Any, *names: str) -> Any:
    """A config inside a config, or itself."""
    return next((part for name in names if (part := getattr(config, name, None)) is not None), config)


def _images(config: Any, draw: torch.Generator) -> Iterator[Inputs]:
    vision = _part(config, "vision_config", "image_config", "encoder", "backbone_config")
    size = getattr(vision, "image_size", None) or getattr(config, "image_size", None) or 32
    height, width = (size, size) if isinstance(size, int) else size
    channels = getattr(vision, "num_channels", None) or getattr(vision, "in_channels", None) or 3
    if not isinstance(channels, int):
        channels = 3
    frames = getattr(vision, "num_frames", None) or getattr(vision, "frames_per_clip", None) or 4
    image = torch.randn(ROWS, channels, height, width, generator=draw)
    video = torch.randn(ROWS, frames, channels, height, width, generator=draw)
    yield {"pixel_values": image}
    yield {"pixel_values": video}
    yield {"pixel_values_videos": video}
    yield {"pixel_values": torch.randn(ROWS, 2, channels, height, width, generator=draw)}
    yield {"pixel_values": torch.randn(ROWS, channels, 64, 64, generator=draw)}


def _patches(config: Any, draw: torch.Generator) -> Iterator[Inputs]:
    """Images as rows of patches, with the number of them in each direction."""
    vision = _part(config, "vision_config")
    patch, channels = (
        getattr(vision, "patch_size", 8),
        getattr(vision, "in_channels", None) or getattr(vision, "num_channels", 3),
    )
    if not isinstance(patch, int) or not isinstance(channels, int):
        return
    grid = torch.tensor([[1, 4, 4]] * ROWS)
    for wide in (channels * patch * patch * (getattr(vision, "temporal_patch_size", None) or 1), channels * patch * patch):
        rows = torch.randn(16 * ROWS, wide, generator=draw)
        yield {"hidden_states": rows, "grid_thw": grid}
        yield {"pixel_values": rows, "grid_thw": grid}
        yield {"pixel_values": rows, "grid_thw": grid, "merge_sizes": torch.ones(ROWS, dtype=torch.long)}
    places = (
        torch.stack(torch.meshgrid(torch.arange(4), torch.arange(4), indexing="ij"), -1).view(1, 16, 2).expand(ROWS, 16, 2)
    )
    apart = torch.randn(ROWS, 16, channels * patch * patch, generator=draw)
    yield {"pixel_values": apart, "pixel_position_ids": places}
    known = {"pixel_attention_mask": torch.ones(ROWS, 16, dtype=torch.long), "spatial_shapes": torch.tensor([[4, 4]] * ROWS)}
    yield {"pixel_values": apart, **known}


def _sounds(config: Any, draw: torch.Generator) -> Iterator[Inputs]:
    sound = _part(config, "audio_config", "encoder_config", "encoder")
    sizes = {
        getattr(sound, name, None)
        for name in ("num_mel_bins", "n_mels", "input_feat_per_channel", "input_dim", "input_feat_size")
    }
    sizes |= {getattr(sound, "feature_projection_input_dim", None), 16}
    steps = [2 * getattr(sound, "max_source_positions", 32), 64, getattr(sound, "max_length", 64)]
    for samples in (600, 4800):
        yield {"input_values": torch.randn(ROWS, samples, generator=draw)}
        yield {"input_values": torch.randn(ROWS, 1, samples, generator=draw)}
    for bins in sorted(size for size in sizes if isinstance(size, int)):
        for count in steps:
            for shape in ((ROWS, bins, count), (ROWS, count, bins)):
                features = torch.randn(shape, generator=draw)
                yield {"input_features": features}
                yield {"input_values": features}
                for mask in ("input_features_mask", "attention_mask"):
                    for size in (count, bins):
                        yield {"input_features": features, mask: torch.ones(ROWS, size, dtype=torch.long)}


def _series(config: Any, draw: torch.Generator) -> Iterator[Inputs]:
    context = getattr(config, "context_length", None) or getattr(config, "prediction_length", None) or 8
    past = context + max(getattr(config, "lags_sequence", None) or [0])
    ahead = getattr(config, "prediction_length", None) or 8
    features = torch.randn(ROWS, past, max(1, getattr(config, "num_time_features", 0)), generator=draw)
    values = torch.randn(ROWS, past, generator=draw)
    known: Inputs = {"past_values": values, "past_time_features": features, "past_observed_mask": torch.ones(ROWS, past)}
    yield known | {"future_values": torch.randn(ROWS, ahead, generator=draw), "future_time_features": features[:, :ahead]}
    yield {"past_values": torch.randn(ROWS, context, getattr(config, "num_input_channels", 1), generator=draw)}
    yield {
        "past_values": values,
        "past_values_padding": torch.zeros(ROWS, past),
        "freq": torch.zeros(ROWS, 1, dtype=torch.long),
    }


def _pages(config: Any, draw: torch.Generator) -> Iterator[Inputs]:
    """Places of words on a page, as numbers up to a thousand or as shares."""
    corners = torch.randint(1, 50, (ROWS, LENGTH, 4), generator=draw).sort(-1).values
    yield {"bbox": corners}
    yield {"bbox": corners / 100}
    yield {"bbox": corners / 100, "pixel_values": torch.randn(ROWS, 3, 32, 32, generator=draw)}


def _states(config: Any, draw: torch.Generator) -> Iterator[Inputs]:
    """What decision models and models inside others are given."""
    wide = getattr(config, "hidden_size", 64)
    yield {"inputs_embeds": torch.randn(ROWS, LENGTH, wide, generator=draw)}
    yield {"query_embeds": torch.randn(ROWS, LENGTH, wide, generator=draw)}
    yield {"hidden_states": torch.randn(ROWS, LENGTH, wide, generator=draw)}
    states, actions = getattr(config, "state_dim", 4), getattr(config, "act_dim", 4)
    known: Inputs = {
        "states": torch.randn(ROWS, 5, states, generator=draw),
        "actions": torch.randn(ROWS, 5, actions, generator=draw),
    }
    known |= {"rewards": torch.randn(ROWS, 5, 1, generator=draw), "returns_to_go": torch.randn(ROWS, 5, 1, generator=draw)}
    yield known | {"timesteps": torch.arange(5).expand(ROWS, 5), "attention_mask": torch.ones(ROWS, 5)}


KINDS: list[Callable[[Any, torch.Generator], Iterator[Inputs]]] = [_images, _patches, _sounds, _pages, _series, _states]


def fitted(inputs: Inputs, dtype: torch.dtype) -> Inputs:
    """The same with real numbers of the model's type."""
    return {
        name: each.to(dtype) if isinstance(each, Tensor) and each.is_floating_point() else each
        for name, each in inputs.items()
    }
