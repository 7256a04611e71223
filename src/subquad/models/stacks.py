"""Encoder, decoder and encoder-decoder, with any mechanism in them."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from subquad.attention import require_causal
from subquad.models.block import Block
from subquad.models.embeddings import TokenEmbedding
from subquad.models.multihead import Projected
from subquad.models.options import ModelOptions
from subquad.models.positions import LearnedPositions, Rotation, Sinusoidal, rotation, rotation_at, sinusoids
from subquad.models.sizes import require_stack
from subquad.types import AttentionOptions


class Stack(nn.Module):
    """What encoders and decoders share: positions, blocks, and the norm that a pre-norm stack ends with."""

    def __init__(
        self,
        options: ModelOptions,
        attention: AttentionOptions,
        cross: AttentionOptions | None,
        generator: torch.Generator | None,
        *,
        causal: bool = False,
    ) -> None:
        """What is too large, or has no causal form where one is needed, is refused before anything is built."""
        require_stack(attention, options, cross=cross is not None)
        if causal:
            require_causal(attention)
        super().__init__()
        self.options, self.recompute = options, False
        model_dim = options.model_dim
        self.add_positions: nn.Module | None = None
        if options.positions != "rotary":
            learned = options.positions == "learned"
            self.add_positions = (
                LearnedPositions(model_dim, options.longest, generator) if learned else Sinusoidal(model_dim)
            )
        self.dropout = nn.Dropout(options.dropout)
        sizes = {"heads": options.heads, "head_dim": options.head_dim}
        make = attention.layer_builder(**sizes, generator=generator)
        make_cross = None if cross is None else cross.layer_builder(**sizes, generator=generator)
        self.blocks = nn.ModuleList(
            Block(
                model_dim,
                heads=options.heads,
                attention=make(),
                cross=None if make_cross is None else make_cross(),
                feed_dim=options.feed_dim,
                norm=options.norm,
                dropout=options.dropout,
                generator=generator,
            )
            for _ in range(options.layers)
        )
        self.last_norm: nn.Module = nn.LayerNorm(model_dim) if options.norm == "pre" else nn.Identity()

    def _enter(self, x: Tensor, start: int, at: Tensor | None = None) -> tuple[Tensor, Rotation | None]:
        """What the first block gets, and the rotation that all of them use. Positions count from `start`, or are `at`."""
        if at is not None:
            if self.options.positions == "rotary":
                return self.dropout(x), rotation_at(at, self.options.head_dim)
            return self.dropout(x + sinusoids(at, x.shape[-1]).to(x.dtype)), None
        if self.add_positions is not None:
            return self.dropout(self.add_positions(x, start)), None
        return self.dropout(x), rotation(start, x.shape[1], self.options.head_dim, x)

    def _through(self, run: Callable[..., Any], x: Tensor) -> Any:
        """A block; with `recompute` its inner results are computed again in the backward instead of kept."""
        if self.recompute and torch.is_grad_enabled():
            return checkpoint(run, x, use_reentrant=False)
        return run(x)


class Encoder(Stack):
    """Every position sees every kept position."""

    def __init__(
        self,
        embed: nn.Module,
        attention: AttentionOptions,
        options: ModelOptions | None = None,
        *,
        generator: torch.Generator | None = None,
    ) -> None:
        """`embed` turns what the sequence holds into vectors of model_dim numbers."""
        super().__init__(options or ModelOptions(), attention, None, generator)
        self.embed = embed

    def forward(self, inputs: Tensor, *, keep: Bool[Tensor, "b n"] | None = None) -> Float[Tensor, "b n w"]:
        """A vector for each position."""
        x, turn = self._enter(self.embed(inputs), 0)
        for block in self.blocks:
            x = self._through(lambda y, block=block: block(y, keep=keep, rotation=turn), x)
        encoded: Tensor = self.last_norm(x)
        return encoded


class DecoderState(NamedTuple):
    """How many positions a decoder has seen, and what each layer's mechanism remembers of them."""

    position: Tensor
    layers: tuple[Any, ...]


Context = Float[Tensor, "b s w"] | Sequence[Projected]


class Decoder(Stack):
    """Predicts each token from those before it, and from a context where it has cross-attention."""

    def __init__(
        self,
        vocabulary: int,
        attention: AttentionOptions,
        options: ModelOptions | None = None,
        *,
        cross: AttentionOptions | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        options = options or ModelOptions()
        super().__init__(options, attention, cross, generator, causal=True)
        self.vocabulary = vocabulary
        self.embed = TokenEmbedding(vocabulary, options.model_dim, generator)
        self.last: nn.Linear | None = None
        if not options.tied:
            self.last = nn.Linear(options.model_dim, vocabulary)
            nn.init.xavier_uniform_(self.last.weight, generator=generator)
            nn.init.zeros_(self.last.bias)

    def forward(
        self,
        tokens: Int[Tensor, "b n"],
        *,
        keep: Bool[Tensor, "b n"] | None = None,
        context: Context | None = None,
        context_keep: Bool[Tensor, "b s"] | None = None,
        last: int | None = None,
    ) -> Float[Tensor, "b m v"]:
        """Logits of the token after each one, or after the `last` ones only, which spares the rest what is not needed."""
        x, turn = self._enter(self.embed(tokens), 0)
        for block, seen in zip(self.blocks, self._contexts(context), strict=True):
            wanted = last if block is self.blocks[-1] else None

            def run(y: Tensor, block: Any = block, seen: Any = seen, wanted: int | None = wanted) -> Tensor:
                about = {"context": seen, "context_keep": context_keep, "rotation": turn, "last": wanted}
                mixed: Tensor = block.causal(y, keep=keep, **about)[0]
                return mixed

            x = self._through(run, x)
        return self._logits(x)

    def causal(
        self,
        tokens: Int[Tensor, "b n"],
        state: DecoderState | None = None,
        *,
        keep: Bool[Tensor, "b n"] | None = None,
        context: Context | None = None,
        context_keep: Bool[Tensor, "b s"] | None = None,
    ) -> tuple[Float[Tensor, "b n v"], DecoderState]:
        """Scores of each token for each position that follows those in `state`, and the state after the last."""
        return self._advance("causal", tokens, state, context, context_keep, {"keep": keep})

    def step(
        self,
        tokens: Int[Tensor, "b 1"],
        state: DecoderState | None = None,
        *,
        context: Context | None = None,
        context_keep: Bool[Tensor, "b s"] | None = None,
        reuse: bool = False,
    ) -> tuple[Float[Tensor, "b 1 v"], DecoderState]:
        """One token: the fast path of `causal`. With `reuse` the old state is given up."""
        return self._advance("step", tokens, state, context, context_keep, {"reuse": reuse})

    def project(self, context: Float[Tensor, "b s w"]) -> list[Projected]:
        """The context's keys and values for every layer, so that steps need not compute them again."""
        return [block.cross.project(context) for block in self._blocks() if block.cross is not None]

    def _advance(
        self,
        how: str,
        tokens: Tensor,
        state: DecoderState | None,
        context: Context | None,
        context_keep: Tensor | None,
        more: dict[str, Any],
    ) -> tuple[Tensor, DecoderState]:
        start = 0 if state is None else int(state.position)
        before = [None] * len(self.blocks) if state is None else state.layers
        x, turn = self._enter(self.embed(tokens), start)
        after = []
        for block, remembered, seen in zip(self.blocks, before, self._contexts(context), strict=True):
            advance = getattr(block, how)
            x, kept = advance(x, remembered, context=seen, context_keep=context_keep, rotation=turn, **more)
            after.append(kept)
        return self._logits(x), DecoderState(torch.tensor(start + tokens.shape[1]), tuple(after))

    def _blocks(self) -> list[Block]:
        return [block for block in self.blocks if isinstance(block, Block)]

    def _contexts(self, context: Context | None) -> Sequence[Any]:
        return [context] * len(self.blocks) if context is None or isinstance(context, Tensor) else context

    def _logits(self, x: Tensor) -> Tensor:
        hidden = self.last_norm(x)
        return self.embed.logits(hidden) if self.last is None else self.last(hidden)


class EncoderDecoder(nn.Module):
    """An encoder of the source and a decoder that attends to it, each with mechanisms of its own."""

    def __init__(
        self,
        vocabulary: int,
        attention: AttentionOptions,
        options: ModelOptions | None = None,
        *,
        encoder_attention: AttentionOptions | None = None,
        cross: AttentionOptions | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        """`attention` is the decoder's, and that of the encoder and between the two unless told otherwise."""
        super().__init__()
        options = options or ModelOptions()
        self.decoder = Decoder(vocabulary, attention, options, cross=cross or attention, generator=generator)
        embed = TokenEmbedding(vocabulary, options.model_dim, generator)
        self.encoder = Encoder(embed, encoder_attention or attention, options, generator=generator)

    def forward(
        self,
        source: Int[Tensor, "b s"],
        tokens: Int[Tensor, "b n"],
        *,
        source_keep: Bool[Tensor, "b s"] | None = None,
        keep: Bool[Tensor, "b n"] | None = None,
    ) -> Float[Tensor, "b n v"]:
        """Logits of the token after each one."""
        context = self.encoder(source, keep=source_keep)
        logits: Tensor = self.decoder(tokens, keep=keep, context=context, context_keep=source_keep)
        return logits
