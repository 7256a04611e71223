"""A causal encoder over positions that are real numbers, such as times."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from subquad.errors import SubquadError
from subquad.models.options import ModelOptions
from subquad.models.stacks import DecoderState, Stack
from subquad.types import AttentionOptions


class CausalEncoder(Stack):
    """Encoder in which every position sees those up to itself. Positions are real numbers given with the sequence."""

    def __init__(
        self,
        embed: nn.Module,
        attention: AttentionOptions,
        options: ModelOptions | None = None,
        *,
        generator: torch.Generator | None = None,
    ) -> None:
        """`embed` turns the inputs into vectors of dimension model_dim."""
        options = options or ModelOptions()
        if options.positions == "learned":
            raise SubquadError("learned positions are whole numbers, but these are not: choose sinusoidal or rotary")
        super().__init__(options, attention, None, generator, causal=True)
        self.embed = embed

    def forward(self, inputs: Any, at: Float[Tensor, "b n"]) -> Float[Tensor, "b n w"]:
        """Returns a vector for each position."""
        if self._saves_nothing():
            x, turn = self._enter(self.embed(inputs), 0, at)
            return self._leave(self._invertibly(x, None, turn, causal=True))
        return self.causal(inputs, at)[0]

    def causal(
        self, inputs: Any, at: Float[Tensor, "b n"], state: DecoderState | None = None
    ) -> tuple[Float[Tensor, "b n w"], DecoderState]:
        """Returns a vector for each position after those in `state`, and the new state."""

        def run(x: Tensor, block: Any, before: Any, about: Any) -> Any:
            return self._through(lambda y: block.causal(y, before, **about), x)

        return self._advance(run, inputs, at, state)

    def step(
        self, inputs: Any, at: Float[Tensor, "b 1"], state: DecoderState | None = None, *, reuse: bool = False
    ) -> tuple[Float[Tensor, "b 1 w"], DecoderState]:
        """Encodes one position; the fast path of `causal`. With `reuse`, the old state is overwritten."""

        def run(x: Tensor, block: Any, before: Any, about: Any) -> Any:
            return block.step(x, before, reuse=reuse, **about)

        return self._advance(run, inputs, at, state)

    def _advance(
        self, run: Callable[..., Any], inputs: Any, at: Tensor, state: DecoderState | None
    ) -> tuple[Tensor, DecoderState]:
        x, turn = self._enter(self.embed(inputs), 0, at)
        before: Sequence[Any] = [None] * len(self.blocks) if state is None else state.layers
        after, weighing = [], None
        for block, old_state in zip(self.blocks, before, strict=True):
            weighing = self._weighing(block, x, turn, weighing)
            x, new_state = run(x, block, old_state, {"rotation": turn, "weighing": weighing})
            after.append(new_state)
        start = 0 if state is None else int(state.position)
        return self._leave(x), DecoderState(torch.tensor(start + x.shape[1]), tuple(after))


def mapped(state: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Returns a state with `change` applied to every tensor."""
    if isinstance(state, Tensor):
        return change(state)
    if isinstance(state, tuple):
        parts = [mapped(part, change) for part in state]
        return type(state)(*parts) if hasattr(state, "_fields") else tuple(parts)
    return state


def tensors_of(state: Any) -> list[Tensor]:
    """All tensors of a state."""
    if isinstance(state, Tensor):
        return [state]
    return [tensor for part in state for tensor in tensors_of(part)] if isinstance(state, tuple) else []


def detached(state: Any) -> Any:
    """Returns a state detached from the graph, for training in chunks (truncated backpropagation)."""
    return mapped(state, Tensor.detach)


def state_of(state: Any, rows: Int[Tensor, "r"]) -> Any:
    """Returns the state of some sequences, each as often as its number occurs in `rows`, to continue it in several ways."""
    return mapped(state, lambda part: part[rows.to(part.device)] if part.ndim else part)
