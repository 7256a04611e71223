"""Cells of models that write: whatever the cache, the same tokens."""

from contextlib import suppress
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from subquad import Linear, hub
from tests.families.cells import (
    DoesNotApplyError,
    Prepare,
    WrongError,
    causality,
    looks_both_ways,
    padded,
    padding_right,
    swapped,
    unchanged,
)
from tests.families.inputs import Inputs
from tests.families.models import Subject

NEW = 5
"""Tokens that are written."""
READ = 11
"""Tokens of the prompt that are read before the others."""


def cached(subject: Subject, prepare: Prepare) -> None:
    """Greedy, from the keys and values that transformers keeps."""
    model, inputs = _writer(subject, prepare)
    _require_same(_written(model, inputs), _written(model, inputs, use_cache=False))


def state_greedy(subject: Subject, prepare: Prepare) -> None:
    """Greedy, from a state."""
    model, inputs = _writer(subject, prepare)
    _require_same(_written(model, inputs, **_cache(model, prepare)), _written(model, inputs, use_cache=False))


def state_beam(subject: Subject, prepare: Prepare) -> None:
    """Two beams, whose states change places."""
    model, inputs = _writer(subject, prepare)
    found = _written(model, inputs, num_beams=2, **_cache(model, prepare))
    _require_same(found, _written(model, inputs, num_beams=2, use_cache=False))


def state_sampling(subject: Subject, prepare: Prepare) -> None:
    """Random tokens, from the same seed."""
    model, inputs = _writer(subject, prepare)
    found = _written(model, inputs, do_sample=True, **_cache(model, prepare))
    _require_same(found, _written(model, inputs, do_sample=True, use_cache=False))


def state_continuing(subject: Subject, prepare: Prepare) -> None:
    """From a prompt that was read before."""
    model, inputs = _writer(subject, prepare)
    if "decoder_input_ids" in subject.inputs or set(inputs) != {"input_ids"}:
        raise DoesNotApplyError("it does not continue its input, or reads more than tokens")
    cache = _cache(model, prepare, whole=True)
    with torch.no_grad():
        model(input_ids=inputs["input_ids"][:, :READ], use_cache=True, **cache)
    _require_same(_written(model, inputs, **cache), _written(model, inputs, use_cache=False))


def state_left_padding(subject: Subject, prepare: Prepare) -> None:
    """Prompts of several lengths, padded on the left, with each cache."""
    model, inputs = _writer(subject, prepare)
    if "input_ids" not in inputs:
        raise DoesNotApplyError("it reads no tokens")
    together, singles = padded(inputs, "left")
    alone = torch.cat([_written(model, single, use_cache=False)[:, -NEW:] for single in singles])
    for given in ({"use_cache": False}, {}, _cache(model, prepare)):
        _require_same(_written(model, together, **given)[:, -NEW:], alone)


def part_of_layers(subject: Subject, prepare: Prepare) -> None:
    """The first or the last layer swapped alone: padding, the future, and prompts padded on the left."""
    if prepare is not unchanged and len(hub.attention_modules(subject.model)) < 2:
        raise DoesNotApplyError("it has one attention module")
    for layer in (0, -1):
        some = unchanged if prepare is unchanged else swapped(Linear(), layers=[layer])
        for cell in (padding_right, causality, state_greedy, state_left_padding):
            with suppress(DoesNotApplyError):
                cell(subject, some)


def _writer(subject: Subject, prepare: Prepare) -> tuple[Any, Inputs]:
    if not subject.model.can_generate():
        raise DoesNotApplyError("it does not generate")
    if looks_both_ways(subject):
        raise DoesNotApplyError("the original looks both ways, so what it writes depends on whether it has a cache")
    model = prepare(subject.fresh())
    for name in ("eos_token_id", "forced_eos_token_id", "forced_bos_token_id", "suppress_tokens", "begin_suppress_tokens"):
        setattr(model.generation_config, name, None)
    model.generation_config.pad_token_id = 0
    return model, {name: each for name, each in subject.inputs.items() if not name.startswith("decoder")}


def _cache(model: Any, prepare: Prepare, *, whole: bool = False) -> dict[str, Any]:
    """A state for a swapped model; for the original what it makes by itself, or a cache made beforehand."""
    if prepare is not unchanged:
        return {"past_key_values": hub.state_cache(model)}
    if not whole:
        return {}
    return {"past_key_values": DynamicCache(config=model.config.get_text_config(decoder=True))}


def _written(model: Any, inputs: Inputs, **given: Any) -> Tensor:
    torch.manual_seed(3)
    options = {"do_sample": False, "num_beams": 1, "max_new_tokens": NEW, "min_new_tokens": NEW, **given}
    found = model.generate(**inputs, **options)
    return found if isinstance(found, Tensor) else found.sequences


def _require_same(found: Tensor, wanted: Tensor) -> None:
    if found.shape != wanted.shape:
        raise WrongError(float("inf"), f"the shape is {tuple(found.shape)}, not {tuple(wanted.shape)}")
    share = float((found != wanted).double().mean())
    if share:
        raise WrongError(share, f"{share:.0%} of the tokens are others")
