"""Encoder, decoder and encoder-decoder with any mechanism."""

from collections.abc import Callable, Sequence
from itertools import count
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from subquad.attention import require_causal
from subquad.errors import SubquadError
from subquad.models.block import Block
from subquad.models.dense import Dense
from subquad.models.embeddings import TokenEmbedding
from subquad.models.initialising import initialise
from subquad.models.multihead import Projected, Weighing
from subquad.models.options import ModelOptions
from subquad.models.positions import LearnedPositions, Rotation, Sinusoidal, rotation, rotation_at, sinusoids
from subquad.models.reversible import ReversibleBlock, merged, parts_of, require_reversible, through
from subquad.models.sizes import require_stack
from subquad.types import AttentionOptions


def require_single_queries(cross: AttentionOptions | None) -> None:
    """Raises `SubquadError` for cross-attention of a decoder in which a query's result depends on later ones."""
    mixing = [] if cross is None else [part.name for part in cross.parts if part.traits.mixes_queries]
    if mixing:
        raise SubquadError(
            f"{mixing[0]} mixes queries, so that a decoder would see later tokens: choose another cross-attention"
        )


class Stack(nn.Module):
    """Base class of encoders and decoders: positions, blocks, and the last norm of a pre-norm stack."""

    def __init__(
        self,
        options: ModelOptions,
        attention: AttentionOptions,
        cross: AttentionOptions | None,
        generator: torch.Generator | None,
        *,
        causal: bool = False,
    ) -> None:
        """Builds the blocks. Raises `SubquadError` first if they are too large or a causal form is missing."""
        require_stack(attention, options, cross=cross is not None)
        for by_layer in (attention, *([] if cross is None else [cross])):
            by_layer.counts(options.layers)  # refuses a number of mechanisms that does not fit
        if causal:
            require_causal(attention)
            require_single_queries(cross)
        if options.reversible:
            require_reversible(attention, cross=cross is not None)
        super().__init__()
        self.options, self.recompute = options, False
        self.first_position = 0
        """Position of the first input, if it is not the first of a sequence that is cut over processes."""
        model_dim = options.model_dim
        self.add_positions = _positions(options, generator)
        self.dropout = nn.Dropout(options.dropout)
        sizes = {"heads": options.attention_heads, "head_dim": options.head_dim}
        make = _repeated(attention.layer_builder(**sizes, generator=generator), options.share_attention)
        make_cross = None if cross is None else cross.layer_builder(**sizes, generator=generator)
        block_type = ReversibleBlock if options.reversible else Block
        self.blocks = nn.ModuleList(
            block_type(
                model_dim,
                **sizes,
                attention=make(),
                cross=None if make_cross is None else make_cross(),
                feed_dim=options.feed_dim,
                activation=options.activation,
                norm=options.norm,
                dropout=options.dropout,
                weighs=layer % options.share_attention == 0,
                starting_gain=options.starting_gain,
                generator=generator,
            )
            for layer in range(options.layers)
        )
        self.last_norm: nn.Module = nn.LayerNorm(model_dim) if options.norm == "pre" else nn.Identity()

    def _enter(self, x: Tensor, start: int, at: Tensor | None = None) -> tuple[Tensor, Rotation | None]:
        """Returns the first block's input and the rotation of all blocks. Positions are `at`, or count from `start`."""
        x, turn = self._placed(x, start, at)
        return torch.cat([x, x], dim=-1) if self.options.reversible else x, turn

    def _placed(self, x: Tensor, start: int, at: Tensor | None) -> tuple[Tensor, Rotation | None]:
        """Adds positions, or returns the rotation by which queries and keys are turned."""
        if at is not None:
            if self.options.positions == "rotary":
                return self.dropout(x), rotation_at(at, self.options.head_dim)
            return self.dropout(x + sinusoids(at, x.shape[-1]).to(x.dtype)), None
        if self.add_positions is not None:
            return self.dropout(self.add_positions(x, self.first_position + start)), None
        return self.dropout(x), rotation(self.first_position + start, x.shape[1], self.options.head_dim, x)

    def _weighing(self, block: Any, x: Tensor, turn: Rotation | None, before: Weighing | None) -> Weighing | None:
        """Returns the queries and keys that a block and those that share its weights use; None if all have their own."""
        if self.options.share_attention == 1:
            return None
        return block.weigh(x, turn) if block.attention.weighs else before

    def _leave(self, x: Tensor) -> Tensor:
        """Returns the stack's output, given that of the last block."""
        normed: Tensor = self.last_norm(merged(x) if self.options.reversible else x)
        return normed

    def _saves_nothing(self) -> bool:
        """Whether activations are recomputed by inverting the layers."""
        return self.options.reversible and torch.is_grad_enabled()

    def _invertibly(self, x: Tensor, keep: Tensor | None, turn: Rotation | None, *, causal: bool) -> Tensor:
        """Runs all blocks of a reversible stack; the backward inverts them."""
        blocks = [block for block in self.blocks if isinstance(block, ReversibleBlock)]
        return through([parts_of(block, keep=keep, rotation=turn, causal=causal) for block in blocks], x)

    def _through(self, run: Callable[..., Any], x: Tensor) -> Any:
        """Runs a block; with `recompute`, its activations are recomputed in the backward instead of saved."""
        if self.recompute and torch.is_grad_enabled():
            return checkpoint(run, x, use_reentrant=False)
        return run(x)


def _positions(options: ModelOptions, generator: torch.Generator | None) -> nn.Module | None:
    """Returns the module that adds positions to the first inputs; None for rotary ones, which turn queries and keys."""
    if options.positions == "rotary":
        return None
    if options.positions == "learned":
        return LearnedPositions(options.model_dim, options.longest, generator)
    return Sinusoidal(options.model_dim)


def _repeated(make: Callable[[], nn.Module], times: int) -> Callable[[], nn.Module]:
    """Returns a function that calls `make` once in so many calls, and returns the same module in between."""
    modules = (module for _ in count() for module in [make()] * times)
    return lambda: next(modules)


class Encoder(Stack):
    """Bidirectional encoder: every position sees every kept position."""

    def __init__(
        self,
        embed: nn.Module,
        attention: AttentionOptions,
        options: ModelOptions | None = None,
        *,
        generator: torch.Generator | None = None,
    ) -> None:
        """`embed` turns the inputs into vectors of dimension model_dim."""
        super().__init__(options or ModelOptions(), attention, None, generator)
        self.embed = embed

    def forward(self, inputs: Tensor, *, keep: Bool[Tensor, "b n"] | None = None) -> Float[Tensor, "b n w"]:
        """Returns a vector for each position."""
        x, turn = self._enter(self.embed(inputs), 0)
        if self._saves_nothing():
            return self._leave(self._invertibly(x, keep, turn, causal=False))
        weighing = None
        for block in self.blocks:
            weighing = self._weighing(block, x, turn, weighing)
            about: dict[str, Any] = {"keep": keep, "rotation": turn} | ({} if weighing is None else {"weighing": weighing})
            x = self._through(lambda y, block=block, about=about: block(y, **about), x)
        return self._leave(x)


class DecoderState(NamedTuple):
    """Number of positions that a decoder has seen, and the state of each layer's mechanism."""

    position: Tensor
    layers: tuple[Any, ...]


Context = Float[Tensor, "b s w"] | Sequence[Projected]


class Decoder(Stack):
    """Predicts each token from those before it and, with cross-attention, from a context."""

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
            self.last = Dense(options.model_dim, vocabulary)
            initialise(self.last, generator=generator)

    def forward(
        self,
        tokens: Int[Tensor, "b n"],
        *,
        keep: Bool[Tensor, "b n"] | None = None,
        context: Context | None = None,
        context_keep: Bool[Tensor, "b s"] | None = None,
        last: int | None = None,
    ) -> Float[Tensor, "b m v"]:
        """Returns logits of the token after each one, or only after the `last` ones, which saves time."""
        x, turn = self._enter(self.embed(tokens), 0)
        if self._saves_nothing():
            x = self._invertibly(x, keep, turn, causal=True)
            return self.logits(x if last is None else x[:, -last:])
        weighing = None
        for block, block_context in zip(self.blocks, self._contexts(context), strict=True):
            weighing = self._weighing(block, x, turn, weighing)
            about: dict[str, Any] = {"keep": keep, "context": block_context, "context_keep": context_keep}
            about |= {"rotation": turn, "weighing": weighing, "last": last if block is self.blocks[-1] else None}
            x = self._through(lambda y, block=block, about=about: block.causal(y, **about)[0], x)
        return self.logits(x)

    def causal(
        self,
        tokens: Int[Tensor, "b n"],
        state: DecoderState | None = None,
        *,
        keep: Bool[Tensor, "b n"] | None = None,
        context: Context | None = None,
        context_keep: Bool[Tensor, "b s"] | None = None,
    ) -> tuple[Float[Tensor, "b n v"], DecoderState]:
        """Returns logits for each position after those in `state`, and the new state."""
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
        """Processes one token; the fast path of `causal`. With `reuse`, the old state is overwritten."""
        return self._advance("step", tokens, state, context, context_keep, {"reuse": reuse})

    def hidden(self, tokens: Int[Tensor, "b n"]) -> list[Float[Tensor, "b n w"]]:
        """Returns the vectors after each block, for a decoder without cross-attention."""
        x, turn = self._enter(self.embed(tokens), 0)
        vectors, weighing = [], None
        for block in self._blocks():
            weighing = self._weighing(block, x, turn, weighing)
            x = block.causal(x, rotation=turn, weighing=weighing)[0]
            vectors.append(x)
        return vectors

    def logits(self, x: Float[Tensor, "*b w"]) -> Float[Tensor, "*b v"]:
        """Returns the logits of the next token, given vectors after the last block."""
        normalised = self._leave(x)
        logits: Tensor = self.embed.logits(normalised) if self.last is None else self.last(normalised)
        return logits

    def project(self, context: Float[Tensor, "b s w"]) -> list[Projected]:
        """Computes the context's keys and values for every layer, so that steps can reuse them."""
        return [block.cross.project(context) for block in self._blocks() if block.cross is not None]

    def _advance(
        self,
        method: str,
        tokens: Tensor,
        state: DecoderState | None,
        context: Context | None,
        context_keep: Tensor | None,
        more: dict[str, Any],
    ) -> tuple[Tensor, DecoderState]:
        start = 0 if state is None else int(state.position)
        before = [None] * len(self.blocks) if state is None else state.layers
        x, turn = self._enter(self.embed(tokens), start)
        after, weighing = [], None
        about: dict[str, Any] = {"context_keep": context_keep, "rotation": turn, **more}
        for block, old_state, block_context in zip(self.blocks, before, self._contexts(context), strict=True):
            weighing = self._weighing(block, x, turn, weighing)
            x, new_state = getattr(block, method)(x, old_state, context=block_context, weighing=weighing, **about)
            after.append(new_state)
        return self.logits(x), DecoderState(torch.tensor(start + tokens.shape[1]), tuple(after))

    def _blocks(self) -> list[Block]:
        return [block for block in self.blocks if isinstance(block, Block)]

    def _contexts(self, context: Context | None) -> Sequence[Any]:
        return [context] * len(self.blocks) if context is None or isinstance(context, Tensor) else context


class EncoderDecoder(nn.Module):
    """An encoder of the source and a decoder that attends to it, each with its own mechanisms."""

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
        """`attention` is used in the decoder, and by default also in the encoder and for cross-attention."""
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
        """Returns logits of the token after each one."""
        context = self.encoder(source, keep=source_keep)
        logits: Tensor = self.decoder(tokens, keep=keep, context=context, context_keep=source_keep)
        return logits
