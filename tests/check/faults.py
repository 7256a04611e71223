"""Attentions and models with planted faults, each beside a clean one, that the checks must tell apart."""

import ctypes
import os
import sys
import time
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def clean(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, causal: bool = False) -> Tensor:
    scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    if mask is not None:
        scores = scores.masked_fill(~mask[:, None, None, :], -torch.inf)
    if causal:
        scores = scores.masked_fill(~torch.ones(scores.shape[-2:], dtype=torch.bool).tril(), -torch.inf)
    return scores.softmax(-1) @ v


def normalises_over_the_future(q: Tensor, k: Tensor, v: Tensor, causal: bool = False) -> Tensor:
    scores = (F.elu(q) + 1) @ (F.elu(k) + 1).transpose(-1, -2)
    return (scores.tril() if causal else scores) / scores.sum(-1, keepdim=True) @ v


def counts_padding(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    if mask is not None:
        k, v = (x * mask[:, None, :, None] for x in (k, v))
    return clean(q, k, v)


def ignores_its_mask(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    return clean(q, k, v)


def leaks_in_long_sequences(q: Tensor, k: Tensor, v: Tensor, causal: bool = False) -> Tensor:
    """Chunks of 256 positions are hidden by whole chunks only."""
    mixed = clean(q, k, v, causal=causal)
    return mixed if not causal or k.shape[2] <= 256 else mixed + v[:, :, -1:]


def writes_into_its_inputs(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return clean(q.div_(2.0), k, v)


def rounds_in_float32(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """A branch for one type that is not the one of other types."""
    return clean(q, k, v.round() if q.dtype == torch.float32 else v)


def weighs_in_float32(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """A clean attention that computes its weights in float32, whatever its inputs are."""
    scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    scores = scores if mask is None else scores.masked_fill(~mask[:, None, None, :], -torch.inf)
    return scores.softmax(-1, dtype=torch.float32).to(v.dtype) @ v


def takes_even_lengths(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    if q.shape[2] % 2:
        raise ValueError("the length must be even.")
    return clean(q, k, v)


def mixes_the_batch(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return clean(q, k - k.mean(0, keepdim=True), v)


def masks_all_by_the_first(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    return clean(q, k, v, None if mask is None else mask[:1])


def takes_blocks(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    if q.shape[2] % 128:
        raise ValueError("the length must be a multiple of 128")
    return clean(q, k, v)


class Cached(nn.Module):
    """Softmax attention with a state of keys and values."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return clean(q, k, v)

    def causal(self, q: Tensor, k: Tensor, v: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        if state is not None:
            k, v = (torch.cat(parts, dim=2) for parts in zip(state, (k, v), strict=True))
        scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
        queries, keys = scores.shape[-2:]
        seen = torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)
        return scores.masked_fill(~seen, -torch.inf).softmax(-1) @ v, (k, v)

    def step(self, q: Tensor, k: Tensor, v: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        return self.causal(q, k, v, state)


class Counts(Cached):
    """Has a number in its state, beside keys and values."""

    def causal(self, q: Tensor, k: Tensor, v: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        mixed, held = super().causal(q, k, v, None if state is None else state[:2])
        return mixed, (*held, held[0].shape[2])


class DrawsWithState(Cached):
    """Draws random numbers in every call."""

    def causal(self, q: Tensor, k: Tensor, v: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        mixed, state = super().causal(q, k, v, state)
        return mixed * torch.randn(mixed.shape[-1], dtype=mixed.dtype), state


class StepsOtherwise(Cached):
    def step(self, q: Tensor, k: Tensor, v: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        mixed, state = self.causal(q, k, v, state)
        return 1.01 * mixed, state


class ForgetsItsState(Cached):
    def causal(self, q: Tensor, k: Tensor, v: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        return super().causal(q, k, v, None)

    def step(self, q: Tensor, k: Tensor, v: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        return Cached.causal(self, q, k, v, state)


def passes_a_state(q: Tensor, k: Tensor, v: Tensor, is_causal: bool = False, past: Any = None) -> tuple[Tensor, Any]:
    """A clean attention whose state is an argument of its call."""
    return Cached().causal(q, k, v, past) if is_causal else (clean(q, k, v), None)


def draws_anew(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return clean(q, k, v + 1e-12 * torch.randn_like(v))


def draws_weights(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return clean(q, k, v * torch.randn(v.shape[-1], dtype=v.dtype))


class _Wrong(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        ctx.save_for_backward(q, k, v)
        return clean(q, k, v)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        q, k, v = (x.detach().requires_grad_() for x in ctx.saved_tensors)
        with torch.enable_grad():
            mixed = clean(q, k, v)
        for_q, for_k, for_v = torch.autograd.grad(mixed, (q, k, v), gradients)
        return for_q, 1.001 * for_k, for_v


def differentiates_wrongly(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    mixed: Tensor = _Wrong.apply(q, k, v)  # type: ignore[no-untyped-call]
    return mixed


def overflows(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    weights = (q @ k.transpose(-1, -2)).exp()
    return weights @ v / weights.sum(-1, keepdim=True)


SHARED: dict[str, Tensor] = {}


def shares_memory_between_threads(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    SHARED["keys"] = k
    time.sleep(0.005)
    return clean(q, SHARED["keys"], v)


def linear(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Linear memory, for its growth beside that of `clean`."""
    q, k = F.elu(q) + 1, F.elu(k) + 1
    return q @ (k.transpose(-1, -2) @ v) / (q * k.sum(2, keepdim=True)).sum(-1, keepdim=True)


def by_position(q: Tensor, k: Tensor, v: Tensor, key_padding_mask: Tensor | None = None) -> Tensor:
    """A clean attention on (b, n, h, d), whose mask is true for padding."""
    scores = torch.einsum("bnhd,bmhd->bhnm", q, k)
    if key_padding_mask is not None:
        scores = scores.masked_fill(key_padding_mask[:, None, None], -torch.inf)
    return torch.einsum("bhnm,bmhd->bnhd", scores.softmax(-1), v)


def adds_its_mask(q: Tensor, k: Tensor, v: Tensor, attention_mask: Tensor | None = None) -> Tensor:
    """A clean attention whose mask is added to its scores."""
    scores = q @ k.transpose(-1, -2)
    return (scores if attention_mask is None else scores + attention_mask).softmax(-1) @ v


def adds_its_mask_before_it_scales(q: Tensor, k: Tensor, v: Tensor, attention_mask: Tensor | None = None) -> Tensor:
    """A clean attention in which true added to a score makes a key weigh e^3 times as much."""
    scores = q @ k.transpose(-1, -2) / q.shape[-1]
    return (3 * (scores if attention_mask is None else scores + attention_mask)).softmax(-1) @ v


def adds_a_bias(q: Tensor, k: Tensor, v: Tensor, attn_bias: Tensor | None = None) -> Tensor:
    return adds_its_mask(q, k, v, attn_bias)


class OptionalKeys:
    """A clean callable on (b, n, h, d) whose keys and values are optional, as flax has it."""

    def __call__(
        self, inputs_q: Tensor, inputs_k: Tensor | None = None, inputs_v: Tensor | None = None, *, mask: Tensor | None = None
    ) -> Tensor:
        k = inputs_q if inputs_k is None else inputs_k
        v = k if inputs_v is None else inputs_v
        scores = torch.einsum("...nhd,...mhd->...hnm", inputs_q, k)
        scores = scores if mask is None else torch.where(mask, scores, torch.finfo(scores.dtype).min)
        return torch.einsum("...hnm,...mhd->...nhd", scores.softmax(-1), v)


optional_keys = OptionalKeys()


def takes_lengths(q: Tensor, k: Tensor, v: Tensor, lengths: Tensor | None = None) -> Tensor:
    """A clean attention that is told the number of real keys."""
    return clean(q, k, v, None if lengths is None else torch.arange(k.shape[2]) < lengths[:, None])


class Layer(nn.Module):
    """A clean layer on x, built from sizes, causal by its constructor."""

    def __init__(self, dim: int, num_heads: int, causal: bool = False) -> None:
        super().__init__()
        self.heads, self.causal, self.project = num_heads, causal, nn.Linear(dim, 3 * dim)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.project(x).chunk(3, dim=-1))
        return clean(q, k, v, mask, self.causal).transpose(1, 2).flatten(2)


class OneLength(Layer):
    """Takes sequences of the length that it was built for only."""

    def __init__(self, dim: int, num_heads: int, seq_len: int) -> None:
        super().__init__(dim, num_heads)
        self.length = seq_len

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        assert x.shape[1] == self.length
        return super().forward(x, mask)


class Needs(nn.Module):
    def __init__(self, feature_map: str, heads: int) -> None:
        super().__init__()


def make(heads: int, head_dim: int) -> nn.Module:
    """A function of sizes that makes an attention."""
    return Cached()


def prints(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    print("noise")
    os.write(1, b"raw noise\n")
    os.write(2, b"raw noise\n")
    return clean(q, k, v)


def hangs_for_three(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    while len(q) == 3:
        time.sleep(1)
    return clean(q, k, v)


def crashes_for_three(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    if len(q) == 3:
        ctypes.string_at(0)
    return clean(q, k, v)


def leaves_for_three(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    if len(q) == 3:
        os._exit(4)
    return clean(q, k, v)


def exits_for_three(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    if len(q) == 3:
        sys.exit(3)
    return clean(q, k, v)


def raises_for_three(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    if len(q) == 3:
        raise ValueError("three are a crowd\nand a second line")
    return clean(q, k, v)


def raises(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    raise ValueError("no such thing\nand a second line")


def sums_positions(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return clean(q, k, v).sum(2)


def returns_nothing(q: Tensor, k: Tensor, v: Tensor) -> None:
    return None


def returns_less(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """A result without the last position, which in another layout would lack a head instead."""
    return clean(q, k, v)[:, :, :-1]


class _NoGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return clean(q, k, v)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        raise NotImplementedError("no gradient")


def raises_in_the_backward(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    mixed: Tensor = _NoGradient.apply(q, k, v)  # type: ignore[no-untyped-call]
    return mixed


def raises_when_long(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    if q.shape[2] > 300:
        raise ValueError(f"{q.shape[2]} are too many")
    return clean(q, k, v)


def needs_a_gpu(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return clean(q.to("cuda"), k, v)


def takes_two(first: Tensor, second: Tensor) -> Tensor:
    return first + second


number = 3


class Writer(nn.Module):
    """A model on token ids, causal unless `leaks`."""

    def __init__(self, leaks: bool = False) -> None:
        super().__init__()
        self.embed, self.layer, self.out = nn.Embedding(50, 16), Layer(16, 2, causal=not leaks), nn.Linear(16, 50)

    def forward(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        logits: Tensor = self.out(self.layer(self.embed(tokens), mask))
        return logits


class _TwiceTheGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return 2 * gradients[0]


class WrongWriter(Writer):
    """A model whose embeddings get twice their gradient."""

    def forward(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        embedded: Tensor = _TwiceTheGradient.apply(self.embed(tokens))  # type: ignore[no-untyped-call]
        logits: Tensor = self.out(self.layer(embedded, mask))
        return logits


def make_writer() -> Writer:
    """Makes a model."""
    return Writer()


class Mean(nn.Module):
    """A classifier of token ids by the mean of all tokens, or of the real ones only unless it `counts` padding."""

    def __init__(self, counts: bool = True, shape: list[int] | None = None) -> None:
        super().__init__()
        self.embed, self.out, self.counts, self.shape = nn.Embedding(50, 16), nn.Linear(16, 3), counts, shape

    def forward(self, tokens: Tensor, mask: Tensor | None = None) -> dict[str, Tensor]:
        embedded = self.embed(tokens)
        if self.shape is not None:
            return {"logits": embedded[..., 0, None, None].expand(*tokens.shape, *self.shape)}
        kept = torch.ones_like(tokens, dtype=torch.bool) if mask is None or self.counts else mask
        mean = (embedded * kept[..., None]).sum(1) / kept.sum(1, keepdim=True)
        return {"logits": self.out(mean)}
