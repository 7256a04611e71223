"""Runs a model on synthetic inputs, and compares the outputs of its attention modules."""

import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from types import CodeType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from transformers import PreTrainedModel

from subquad.errors import SubquadError
from subquad.hub._compat import SOFTMAX_CALLS, ModelOutput, parameters_of
from subquad.hub.attach import attention_modules
from subquad.hub.inputs import HEAD_DIM, Batch, behind_encoder, feature_batches, token_batches

ALLOWED = {torch.float64: 1e-3, torch.float32: 1e-3, torch.float16: 0.03, torch.bfloat16: 0.15}
"""Largest allowed difference of two outputs, relative to their root mean square, by the model's dtype.

Models in float64 compute their norms and rotary positions in float32."""

AMPLIFIED, MOST = 30, 0.1
"""Allowed difference as a multiple of that between two computations of softmax, and its upper bound."""

CUTS = (0, 5, 6, HEAD_DIM)
"""Positions at which sequences are cut to be continued from a cache: a prompt, one token, several tokens."""

LEFT_AND_WHOLE = [0, 4]
"""Rows of the padded batch with left padding and without padding, which a cache can continue."""


class Seen(NamedTuple):
    """Outputs of one call of a model."""

    parts: list[tuple[str, Tensor]]
    """Names and outputs of the attention modules in the order of calls, then the model's output under an empty name."""
    result: Any
    """Return value of the model."""


class Part(NamedTuple):
    """A range of positions in one row of a batch."""

    batch: str
    row: int
    positions: slice


class Prober:
    """Runs the part of a model that contains its attention modules."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.model, self.modules = model, attention_modules(model)
        body: Any = model.base_model
        holds_all = set(body.modules()).issuperset(self.modules.values())
        self.core: Any = body if holds_all and body.main_input_name in parameters_of(type(body)) else model
        self.takes = parameters_of(type(self.core))
        kinds = {parameter.dtype for parameter in model.parameters() if parameter.is_floating_point()}
        self.allowed = max((ALLOWED.get(kind, max(ALLOWED.values())) for kind in kinds), default=ALLOWED[torch.float32])
        self.batches: dict[str, Batch] = {}

    def allow(self, rounding: float) -> None:
        """Raises the allowed difference for a model that amplifies rounding errors, given its difference for softmax."""
        self.allowed = max(self.allowed, min(AMPLIFIED * rounding, MOST))

    @property
    def has_tokens(self) -> bool:
        return "padded" in self.batches

    @property
    def takes_cache(self) -> bool:
        return self.has_tokens and "past_key_values" in self.takes and self.model.can_generate()

    def start(self, inputs: dict[str, Any] | None) -> dict[str, Seen]:
        """Runs the model with its own attention on the first inputs that it accepts, and keeps these for later runs."""
        problem = f"it takes {self.core.main_input_name}"
        for batches in [{"one": Batch(inputs, None)}] if inputs is not None else self._choices():
            try:
                self.batches = batches
                if "one" in batches and inputs is None and "decoder_input_ids" in self.takes:
                    self.batches = {**batches, **behind_encoder(self.core, self._encoded(batches["one"].inputs))}
                return {name: self._run(batch.inputs) for name, batch in self.batches.items()}
            except Exception as error:  # a model may raise anything for inputs of the wrong kind
                problem = f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"
        raise SubquadError(
            f"{type(self.model).__name__} cannot be checked on made-up inputs ({problem}): swap it with check=False, and "
            "check it with inputs of its own, subquad.hub.check(model, inputs)"
        )

    def runs(self) -> dict[str, Seen]:
        """Runs the model again on the same inputs with its current attention."""
        try:
            return {name: self._run(batch.inputs) for name, batch in self.batches.items()}
        except SubquadError:
            raise
        except Exception as error:
            raise SubquadError(
                f"{type(self.model).__name__} cannot be swapped: it fails with subquad's attention and not with its own "
                f"({type(error).__name__}: {next(iter(str(error).splitlines()), '')})"
            ) from error

    def equal(self, first: Mapping[str, Seen], second: Mapping[str, Seen]) -> list[tuple[str, float]]:
        """Returns the differences between two runs at real tokens, by module."""
        differences = []
        for name, batch in self.batches.items():
            for (module, first_output), (_, second_output) in zip(first[name].parts, second[name].parts, strict=True):
                is_by_token = batch.keep is not None and first_output.shape[:2] == batch.keep.shape
                selection = batch.keep if is_by_token else slice(None)
                differences.append((module, _difference(first_output[selection], second_output[selection])))
        return differences

    def differences(self, seen: Mapping[str, Seen], first: Part, second: Part) -> list[tuple[str, float]]:
        """Returns the differences between the outputs of two parts of the inputs, by module."""
        first_outputs, second_outputs = self._cut(seen, first), self._cut(seen, second)
        common = [
            name
            for name in first_outputs
            if name in second_outputs and first_outputs[name].shape == second_outputs[name].shape
        ]
        return [(name, _difference(first_outputs[name], second_outputs[name])) for name in common]

    def continued(self, seen: Mapping[str, Seen], cache: Any) -> list[tuple[str, float]]:
        """Returns the differences between sequences continued from a cache and whole ones, by module.

        With None as `cache`, the model makes its own.
        """
        batch_inputs = self.batches["padded"].inputs
        inputs = {name: value[LEFT_AND_WHOLE] for name, value in batch_inputs.items() if isinstance(value, Tensor)}
        whole = seen["padded"]
        constant_inputs: dict[str, Any] = {}
        names = ("input_ids", "attention_mask")
        if "decoder_input_ids" in inputs:
            names = ("decoder_input_ids", "decoder_attention_mask")
            encoded = batch_inputs.get("encoder_outputs")
            constant_inputs["encoder_outputs"] = (
                self._encoded(inputs) if encoded is None else _rows_of(encoded, LEFT_AND_WHOLE)
            )
            constant_inputs |= {name: inputs[name] for name in ("attention_mask",) if name in inputs}
        pieces: list[dict[str, Tensor]] = []
        for start, stop in pairwise(CUTS):
            piece = {names[0]: inputs[names[0]][:, start:stop], names[1]: inputs[names[1]][:, :stop]}
            seen_now = self._run({**constant_inputs, **piece, "past_key_values": cache, "use_cache": True})
            cache = getattr(seen_now.result, "past_key_values", None)
            if cache is None:
                return []
            pieces.append(_by_call(seen_now))
        differences = []
        for name, output in _by_call(whole).items():
            if output.ndim == 3 and output.shape[1] == HEAD_DIM and all(name in piece for piece in pieces):
                expected, joined = output[LEFT_AND_WHOLE], torch.cat([piece[name] for piece in pieces], dim=1)
                differences.append((name, _difference(expected[:, CUTS[1] :], joined[:, CUTS[1] :])))
        return differences

    def _choices(self) -> Iterator[dict[str, Batch]]:
        if self.core.main_input_name == "input_ids":
            yield token_batches(self.core)
        yield from feature_batches(self.core)

    def _encoded(self, inputs: dict[str, Any]) -> Any:
        """Returns the encoder's output for the inputs that do not belong to the decoder."""
        return self.core.get_encoder()(**{name: value for name, value in inputs.items() if not name.startswith("decoder_")})

    def _run(self, inputs: dict[str, Any]) -> Seen:
        arguments = {"use_cache": False, **inputs} if "use_cache" in self.takes else inputs
        with observed(self.modules) as parts:
            result = self.core(**arguments)
        candidates = [getattr(result, name, None) for name in ("last_hidden_state", "logits")]
        output = next((candidate for candidate in candidates if isinstance(candidate, Tensor)), None)
        return Seen(parts if output is None else [*parts, ("", output.detach())], result)

    def _cut(self, seen: Mapping[str, Seen], part: Part) -> dict[str, Tensor]:
        """Cuts a part out of the outputs whose shape matches the batch of tokens, by call."""
        keep = self.batches[part.batch].keep
        cut = {}
        for name, output in _by_call(seen[part.batch]).items():
            if keep is None or output.shape[:2] == keep.shape:
                cut[name] = output[part.row, part.positions]
        return cut


def lookalikes(model: PreTrainedModel) -> list[str]:
    """Returns the names of modules that seem to compute attention without the AttentionInterface."""
    covered = list(attention_modules(model))

    def is_near(name: str) -> bool:
        return any(
            attention == name or attention.startswith(f"{name}.") or name.startswith(f"{attention}.")
            for attention in covered
        )

    named = [(name, module) for name, module in model.named_modules() if "Attention" in type(module).__name__]
    return [name for name, module in named if _projections(module) >= 2 and not is_near(name)]


def _projections(module: nn.Module) -> int:
    """Number of weight matrices of a module and its direct children."""
    candidates = [*module.parameters(recurse=False), *(getattr(child, "weight", None) for child in module.children())]
    return sum(isinstance(tensor, Tensor) and tensor.ndim >= 2 for tensor in candidates)


def _rows_of(outputs: ModelOutput, rows: list[int]) -> ModelOutput:
    """Selects rows of all tensors in a model's output."""
    kind: Any = type(outputs)
    return kind(**{name: value[rows] for name, value in outputs.items() if isinstance(value, Tensor)})


def _by_call(seen: Seen) -> dict[str, Tensor]:
    """Returns the outputs by module name; repeated calls of a module get the number of the call in their name."""
    outputs: dict[str, Tensor] = {}
    calls: Counter[str] = Counter()
    for name, output in seen.parts:
        calls[name] += 1
        outputs[name if calls[name] == 1 else f"{name} (call {calls[name]})"] = output
    return outputs


def _difference(first: Tensor, second: Tensor) -> float:
    """Largest absolute difference, relative to the root mean square of `first`; 0 for empty tensors."""
    if not first.numel():
        return 0.0
    first, second = first.float(), second.float()
    size = float(first.square().mean().sqrt())
    largest = float((first - second).abs().max())
    return largest / size if size > 0 else largest


@contextmanager
def observed(modules: Mapping[str, nn.Module]) -> Iterator[list[tuple[str, Tensor]]]:
    """Within the `with` block, records the outputs of modules."""
    parts: list[tuple[str, Tensor]] = []

    def note(name: str) -> Any:
        def noted(module: nn.Module, args: Any, output: Any) -> None:
            mixed = output[0] if isinstance(output, tuple) else output
            if isinstance(mixed, Tensor):
                parts.append((name, mixed.detach()))

        return noted

    hooks = [module.register_forward_hook(note(name)) for name, module in modules.items()]
    try:
        yield parts
    finally:
        for hook in hooks:
            hook.remove()


class Watch(TorchFunctionMode):
    """Context in which modules that compute softmax over keys are recorded, except for calls from the function `code`."""

    def __init__(self, model: nn.Module, code: CodeType) -> None:
        super().__init__()
        self.model, self.code = model, code
        self.inside: list[str] = []
        self.called: set[str] = set()
        self.attending: dict[tuple[str, ...], tuple[int, int]] = {}  # stack of module names -> numbers of queries and keys
        self.hooks: list[Any] = []

    def __enter__(self) -> "Watch":
        def enter(name: str) -> Any:
            def entered(module: nn.Module, args: Any) -> None:
                self.inside.append(name)
                self.called.add(name)

            return entered

        def leave(module: nn.Module, args: Any, output: Any) -> None:
            self.inside.pop()

        for name, module in self.model.named_modules():
            self.hooks.append(module.register_forward_pre_hook(enter(name)))
            self.hooks.append(module.register_forward_hook(leave, always_call=True))
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        for hook in self.hooks:
            hook.remove()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in SOFTMAX_CALLS and not self._is_called_by_code():
            size = SOFTMAX_CALLS[func]([*args, *(kwargs or {}).values()], result)
            if len(size) == 2 and min(size) > 1:
                self.attending[tuple(self.inside)] = (int(size[0]), int(size[1]))
        return result

    def _is_called_by_code(self) -> bool:
        frame: Any = sys._getframe()
        while frame is not None:
            if frame.f_code is self.code:
                return True
            frame = frame.f_back
        return False
