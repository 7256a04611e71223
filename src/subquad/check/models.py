"""Whole models that take token ids: of transformers, and any PyTorch module that is imported."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor, nn

from subquad.attention.outside.building import (
    MissingArgumentError,
    Size,
    Sizes,
    build,
    call_of,
    parameters_of,
    size_arguments,
)
from subquad.attention.outside.importing import import_named
from subquad.check.findings import Finding, not_asked
from subquad.check.request import Length
from subquad.check.subjects import Inputs, Subject
from subquad.checking import Checked, Count, FileName
from subquad.errors import SubquadError
from subquad.words import is_import_name

WHOLE, PART, LONG = 31, 19, 301
"""Numbers of tokens."""
ALLOWED = 1e-3
"""Largest difference of two results that must be the same: models compute some norms in float32."""
ALLOWED_HALF = {torch.bfloat16: 0.15, torch.float16: 0.03}
GRADIENT_STEPS, ALLOWED_GRADIENT = (1e-3, 1e-4, 1e-6), 2e-2
"""Lengths of steps for differences of results. The shortest one is for gradients that are large for few weights only: a
step along such a gradient moves these weights far, where results are not straight."""
NEW_TOKENS = 12
"""Number of tokens that are generated with and without a cache."""
IDS = ("input_ids", "ids", "tokens", "x", "src", "input")
RESULTS = ("logits", "last_hidden_state", "prediction_logits")
"""Names of results with numbers for each token, or for each sequence."""
SPANS = ("start_logits", "end_logits")
"""Names of results with one number for each token."""
MASKS = ("attention_mask", "keep", "mask", "key_padding_mask", "padding_mask")


@dataclass(frozen=True)
class ModelRequest(Checked):
    """Which model is asked about."""

    model: FileName
    """Folder of a transformers model, or ``package.module:Name`` of a PyTorch model that takes token ids."""
    causal: bool = False
    arguments: dict[str, Any] = field(default_factory=dict)
    heads: Count = 8
    head_dim: Count = 64
    length: Length | None = None


def load_model(request: ModelRequest) -> nn.Module:
    """Loads a model from a folder, or imports and builds one."""
    if not is_import_name(request.model) or Path(request.model).exists():
        from subquad.hub import load

        return load(request.model)
    thing = import_named(request.model)
    if isinstance(thing, nn.Module) or not callable(thing):
        model = thing
    else:  # a class, or a function that makes a model
        sizes = size_arguments(thing, request.arguments, layer=True)
        model = _made(request, thing, sizes)
    if not isinstance(model, nn.Module):
        raise SubquadError(
            f"{request.model} is no PyTorch module and makes none, but a {type(model).__name__}: name a module, its "
            "class, or a function that makes it"
        )
    return model


def _made(request: ModelRequest, thing: Any, sizes: Mapping[str, Size]) -> Any:
    try:
        return build(thing, request.arguments, sizes, Sizes(request.heads, request.head_dim, 512))
    except MissingArgumentError as error:
        raise SubquadError(f"{error}; give it with --arguments {error.argument}=VALUE") from None


class ModelSubject(Subject):
    """A model on token ids, in float32. Its results are logits or hidden states of each token, or of the sequence."""

    axis, form = 1, ""
    inputs = ("ids",)
    allowed, allowed_half = ALLOWED, ALLOWED_HALF
    gradient_steps, allowed_gradient = GRADIENT_STEPS, ALLOWED_GRADIENT

    def __init__(self, request: ModelRequest) -> None:
        torch.manual_seed(0)
        self.module: Any = load_model(request).eval()
        self.to(torch.float32)
        self.request, self.takes = request, list(parameters_of(call_of(self.module)))
        config = getattr(self.module, "config", None)
        self.config = config if hasattr(config, "to_dict") else None  # that of transformers
        self.ids = usable_ids(self.module, self.config)
        longest = getattr(self.config, "max_position_embeddings", None)
        limit = longest if isinstance(longest, int) and longest > 0 else None
        if limit is not None and request.length is not None and request.length > limit:
            raise SubquadError(f"--length is {request.length}, but the model has {limit} positions: give a smaller one")
        self.whole = request.length or (WHOLE if limit is None else min(WHOLE, limit))
        self.part = self.whole * PART // WHOLE
        self.long = min(LONG, longest if isinstance(longest, int) and longest > 0 else LONG)
        self.is_seq2seq = bool(getattr(self.config, "is_encoder_decoder", False))
        self.name = "decoder_input_ids" if self.is_seq2seq else next((name for name in IDS if name in self.takes), "")
        names = ("decoder_attention_mask",) if self.is_seq2seq else MASKS
        self.mask_name = next((name for name in names if name in self.takes), "")
        self._refuse()

    def _refuse(self) -> None:
        """Says what cannot be asked. Raises `SubquadError` for a model whose results are of another kind."""
        if not self.mask_name:
            self.no_mask = f"its call has no argument for a padding mask ({', '.join(self.takes)})"
        self.is_classifier = False
        with torch.no_grad():
            self.is_classifier = _numbers(self._call(self.draw(2, self.whole), None, {}), self.whole).ndim == 2
        if self.is_classifier:
            self.not_causal = self.no_state = "it gives one result for a whole sequence"
            return
        if not self.is_causal:
            self.not_causal = "its class does not say that it is causal; --causal asks for that"
        if "past_key_values" not in self.takes or not self.generates:
            self.no_state = "it has no cache: its call takes no past_key_values, or it does not generate"

    @property
    def generates(self) -> bool:
        """Whether it writes token by token."""
        return bool(getattr(self.module, "can_generate", bool)())

    @property
    def is_causal(self) -> bool:
        """Whether its class or its config says that no position sees a later one."""
        name = type(self.module).__name__
        named = any(word in name for word in ("CausalLM", "LMHead", "ConditionalGeneration"))
        return self.request.causal or named or bool(getattr(self.config, "is_decoder", False))

    def draw(self, batch: int, length: int, seed: int = 0) -> Inputs:
        drawing = torch.Generator().manual_seed(seed)
        return (self.ids[torch.randint(len(self.ids), (batch, length), generator=drawing)],)

    def changed(self, x: Inputs, places: Tensor) -> Inputs:
        others = self.draw(x[0].shape[0], x[0].shape[1], seed=1)[0]
        return (x[0].index_copy(1, places, others[:, places]),)

    def mix(self, x: Inputs, keep: Bool[Tensor, "b n"] | None = None) -> Tensor:
        returned = self._call(x, keep, {"use_cache": False} if "use_cache" in self.takes else {})
        return self._result(returned, x[0].shape[1])

    def written(self, x: Inputs) -> float:
        copy = x[0].clone()
        self.mix((copy,))
        return float((copy != x[0]).double().mean())

    def _call(self, x: Inputs, keep: Tensor | None, other: dict[str, Any]) -> Any:
        self.prepare_call()
        arguments = dict(other)
        if keep is not None:
            arguments[self.mask_name] = self._mask(keep)
            padding = getattr(self.config, "pad_token_id", None)
            if self.is_classifier and isinstance(padding, int):  # some look for this id to find the last token
                x = (x[0].masked_fill(~keep, padding),)
        if self.is_seq2seq:  # the encoder reads the same tokens in every call
            arguments["input_ids"] = self.draw(1, PART, seed=5)[0].expand(len(x[0]), -1)
        return self.module(**arguments, **{self.name: x[0]}) if self.name else self.module(x[0], **arguments)

    def _mask(self, keep: Tensor) -> Tensor:
        if self.mask_name in ("key_padding_mask", "padding_mask"):
            return ~keep
        return keep.long() if self.config is not None else keep

    def _result(self, returned: Any, length: int) -> Tensor:
        """Results with the axes of an attention's; a classifier's are repeated for each token."""
        numbers = _numbers(returned, length)
        if self.is_classifier and numbers.ndim == 2:
            return numbers[:, None, None].expand(-1, -1, length, -1)
        return numbers[:, None]

    def go_on(self, x: Inputs, state: Any) -> tuple[Tensor, Any]:
        seen = 0 if state is None else int(state.get_seq_length())
        keep = torch.ones(len(x[0]), seen + x[0].shape[1], dtype=torch.bool) if self.mask_name else None
        returned = self._call(x, keep, {"past_key_values": state, "use_cache": True})
        return self._result(returned, x[0].shape[1]), returned.past_key_values


def _numbers(returned: Any, length: int) -> Tensor:
    """The results of a model: numbers of each token, or of each sequence. Raises `SubquadError` if it returns others."""
    fields = returned if isinstance(returned, Mapping) else {}
    spans = [held for name in SPANS if isinstance(held := fields.get(name), Tensor)]
    output = torch.stack(spans, dim=-1) if spans else returned
    if not isinstance(output, Tensor):
        output = next((held for name in RESULTS if isinstance(held := fields.get(name), Tensor)), None)
    if output is None and isinstance(returned, tuple | list) and returned:
        output = returned[0]
    if isinstance(output, Tensor) and output.ndim == 2 and output.shape[1] == length:
        output = output[..., None]
    if not isinstance(output, Tensor) or output.ndim not in (2, 3) or (output.ndim == 3 and output.shape[1] != length):
        shape = tuple(output.shape) if isinstance(output, Tensor) else type(returned).__name__
        raise SubquadError(
            f"it returns {shape} for {length} token ids in each sequence, neither a vector for each token, (batch, tokens, "
            "numbers), nor one for each sequence, (batch, numbers)"
        )
    return output


def usable_ids(model: nn.Module, config: Any) -> Tensor:
    """Token ids that are not special to a model. Raises `SubquadError` for a model that takes none."""
    sizes = [held.num_embeddings for held in model.modules() if isinstance(held, nn.Embedding)]
    known = getattr(config, "vocab_size", None)
    count = known if isinstance(known, int) and known > 0 else sizes[0] if sizes else 0
    if count < 2:
        raise SubquadError(
            f"{type(model).__name__} has no nn.Embedding, but models are asked on token ids; one on vectors is asked as a "
            "layer: subquad check MODULE:NAME --layer --heads H --head-dim D, where H * D is the length of a vector"
        )
    held = config.to_dict() if hasattr(config, "to_dict") else {}
    special = {value for name, value in held.items() if name.endswith("_token_id") and isinstance(value, int)}
    return torch.tensor(sorted(set(range(min(count, 1000))) - special) or [0])


@torch.no_grad()
def generation(subject: Subject) -> Finding:
    """Asks whether greedy generation with a cache writes the tokens that it writes without one."""
    if not isinstance(subject, ModelSubject) or not subject.generates:
        return not_asked("generate", "it does not generate")
    if subject.no_state:
        return not_asked("generate", subject.no_state)
    x = subject.draw(2, subject.part or subject.whole)[0]
    prompt = {"input_ids": x, "attention_mask": torch.ones_like(x)}
    options = {"max_new_tokens": NEW_TOKENS, "min_new_tokens": NEW_TOKENS, "do_sample": False, "num_beams": 1}
    cached, plain = (subject.module.generate(**prompt, **options, use_cache=use) for use in (True, False))
    differing = float((cached != plain).double().mean()) if cached.shape == plain.shape else 1.0
    sentence = f"with a cache, {differing:.0%} of the tokens differ from those without ({NEW_TOKENS} new ones, greedy)"
    return Finding("generate", "fails" if differing else "holds", sentence, "", differing, 0.0)
