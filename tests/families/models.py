"""A family's model, small and with random weights that make its attention matter, and the inputs it runs with."""

import copy
import math
import re
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from tests.families.catalog import Entry, config_class
from tests.families.inputs import Inputs, candidates, fitted
from tests.families.shrink import shrunk
from tests.families.special import SPECIAL

_LEFT_ALONE = re.compile(r"(.*\.)?(A_log|D|dt_.*|A)")  # of state-space layers, whose recurrence other values would blow up


class CannotBuildError(Exception):
    """The original model cannot be built small, or does not run."""


@dataclass
class Subject:
    """A model of a family as transformers has it, in eval mode, with inputs."""

    entry: Entry
    model: Any
    inputs: Inputs

    def fresh(self, dtype: torch.dtype | None = None) -> Any:
        """A copy of the model, in its type or in another."""
        copied = copy.deepcopy(self.model)
        return copied if dtype is None else copied.to(dtype)


def build(entry: Entry) -> Subject:
    """The entry's model in double precision, or in single precision where it does not run in double."""
    kind: Any = getattr(transformers, entry.class_name, None)
    if kind is None:
        raise CannotBuildError(f"transformers does not export {entry.class_name}")
    try:
        config = shrunk(config_class(entry), SPECIAL.get(entry.model_type))
        torch.manual_seed(0)
        model = kind(config).eval()
        if hasattr(model, "set_experts_implementation"):
            model.set_experts_implementation("eager")  # the others do not take double precision
    except Exception as error:
        raise CannotBuildError(f"building: {_told(error)}") from error
    enliven(model)
    last: Exception | None = None
    for dtype in (torch.float64, torch.float32):
        model = model.to(dtype)
        for inputs in candidates(model):
            inputs = fitted(inputs, dtype)
            try:
                found = outputs(model, inputs)
            except Exception as error:
                last = last or error
                continue
            if found and all(bool(tensor.isfinite().all()) for tensor in found.values()):
                return Subject(entry, model, inputs)
    raise CannotBuildError(f"running: {'no finite output' if last is None else _told(last)}")


@torch.no_grad()
def enliven(model: nn.Module) -> None:
    """Weights of such size that scores differ and no layer is idle, whatever the family draws or leaves at zero."""
    draw = torch.Generator().manual_seed(0)
    convolutions = {id(each.weight) for each in model.modules() if isinstance(each, nn.modules.conv._ConvNd)}
    for name, weight in model.named_parameters():
        if _LEFT_ALONE.fullmatch(name) or not weight.is_floating_point():
            continue
        noise = torch.randn(weight.shape, generator=draw)
        if weight.ndim >= 2:
            fan_in = math.prod(weight.shape[1:]) if id(weight) in convolutions else weight.shape[-1]
            weight.copy_(noise / math.sqrt(fan_in))
        elif weight.ndim == 0:
            weight.copy_(weight if bool(weight) else torch.tensor(0.5))
        else:
            weight.add_(0.1 * noise)


def outputs(model: Any, inputs: Inputs, **others: Any) -> dict[str, Tensor]:
    """The real tensors that a model gives out, by name; what it draws at random it draws alike each time."""
    torch.manual_seed(5)
    with torch.no_grad():
        given = model(**inputs, **others)
    return real_tensors(given)


def real_tensors(given: Any, name: str = "output") -> dict[str, Tensor]:
    """Those in a model's output, by path, without caches."""
    if isinstance(given, Tensor):
        return {name: given} if given.is_floating_point() and given.numel() else {}
    if isinstance(given, dict):
        parts = {key: value for key, value in given.items() if key != "past_key_values"}
        return {path: tensor for key, value in parts.items() for path, tensor in real_tensors(value, str(key)).items()}
    if isinstance(given, tuple | list):
        return {p: t for place, value in enumerate(given) for p, t in real_tensors(value, f"{name}.{place}").items()}
    return {}


def _told(error: BaseException) -> str:
    line = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {line}"[:200]
