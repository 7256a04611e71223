"""One interface for everything that is asked about: draws inputs, changes them, cuts them, and calls."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
from jaxtyping import Bool
from torch import Tensor, nn

from subquad.attention.outside.building import Sizes
from subquad.attention.outside.importing import import_named
from subquad.attention.outside.mechanism import OutsideAttention
from subquad.check.attempts import changed, draw, effect
from subquad.check.guessing import Guessed
from subquad.check.request import Request

ALLOWED = {torch.float64: 1e-6, torch.float32: 1e-4}
"""Largest difference of two results that must be the same, over their root mean square."""
ALLOWED_HALF = {torch.float32: 1e-4, torch.bfloat16: 0.03, torch.float16: 0.004}
"""Largest deviation of results in lower precision than that of other checks; in half precision about eight roundings."""
LONG = 1024
"""Number of positions beyond the blocks and chunks in which most attentions compute."""
GRADIENT_STEPS = {torch.float64: (1e-5, 1e-7), torch.float32: (1e-2, 1e-3)}
"""Lengths of steps for differences of results. A short step seldom crosses a kink of a ReLU, a long one suffers less from
rounding; a wrong derivative is wrong beside both."""
ALLOWED_GRADIENT = {torch.float64: 1e-4, torch.float32: 2e-2}
SINGLE_WEIGHTS = 8
"""Largest number of weights whose gradients are compared one by one."""
Inputs = tuple[Tensor, ...]


class Subject:
    """What is asked about. Inputs are tuples of tensors with sequences along `axis`, results are ``b h n e``."""

    axis: int
    """Axis of positions in the inputs."""
    inputs: tuple[str, ...]
    """Names of the inputs."""
    form: str
    """The form that is called: "bidirectional", "causal", or empty."""
    whole: int
    """Usual number of positions."""
    part: int | None
    """A smaller number of positions; None if only one number is taken."""
    long: int | None = None
    """A number of positions that is worth a try, since faults may show in long sequences only; None if there is none."""
    allowed: float
    """Largest difference, relative to the results' size, of results that must be the same."""
    gradient_steps: tuple[float, ...]
    """Lengths of steps by which derivatives are compared."""
    allowed_gradient: float
    """Largest difference of a derivative from that of a small step, over the gradient's size."""
    allowed_half: dict[torch.dtype, float]
    """Largest root mean square deviation in half precision, over the results' size, by dtype."""
    dtype: torch.dtype
    module: nn.Module
    no_mask: str = ""
    """Why padding cannot be asked; empty if it can."""
    sides: tuple[str, ...] = ("right", "left", "anywhere")
    """Places of padding that its mask can say."""
    no_state: str = ""
    """Why chunks and steps cannot be asked; empty if they can."""
    not_causal: str = ""
    """Why the future cannot be asked; empty if it can."""
    seed: int | None = 0
    """Seed of PyTorch's random numbers in every call, so that those that a call draws change no answer but that about
    determinism; None to let them go on."""
    is_shiftable: bool = False
    """Whether results must not depend on where a sequence stands among padding."""

    def draw(self, batch: int, length: int, seed: int = 0) -> Inputs:
        """Random inputs."""
        raise NotImplementedError

    def changed(self, x: Inputs, places: Tensor) -> Inputs:
        """A copy of the inputs with others at some positions."""
        raise NotImplementedError

    def mix(self, x: Inputs, keep: Bool[Tensor, "b n"] | None = None) -> Tensor:
        """The results for whole sequences."""
        raise NotImplementedError

    def written(self, x: Inputs) -> float:
        """How much a call changes its inputs, over their size."""
        raise NotImplementedError

    def go_on(self, x: Inputs, state: Any) -> tuple[Tensor, Any]:
        """The results for the next positions after a state, and the new state."""
        raise NotImplementedError

    def step(self, x: Inputs, state: Any) -> tuple[Tensor, Any]:
        """The result for one position after a state, and the new state."""
        return self.go_on(x, state)

    def prepare_call(self) -> None:
        """Seeds the random numbers that a call may draw."""
        if self.seed is not None:
            torch.manual_seed(self.seed)

    @torch.no_grad()
    def is_random(self) -> bool:
        """Whether two calls with the same inputs differ by more than is allowed, as each draws random numbers."""
        x, seed = self.draw(1, self.whole), self.seed
        self.seed = None
        first, second = self.mix(x), self.mix(x)
        self.seed = seed
        return effect(first, second) > self.allowed

    def to(self, dtype: torch.dtype) -> None:
        """Converts the module to a dtype."""
        self.module.to(dtype)
        self.dtype = dtype

    def cast(self, x: Inputs, dtype: torch.dtype) -> Inputs:
        """The inputs in another dtype; integers stay as they are."""
        return tuple(part.to(dtype) if part.is_floating_point() else part for part in x)

    def cut(self, x: Inputs, start: int, stop: int) -> Inputs:
        """The positions from `start` to `stop`."""
        return tuple(part.narrow(self.axis, start, stop - start) for part in x)

    def rows(self, x: Inputs, start: int, stop: int) -> Inputs:
        """The sequences from `start` to `stop`."""
        return tuple(part[start:stop] for part in x)

    def leaves(self, x: Inputs) -> dict[str, list[Tensor]]:
        """Tensors that results are differentiable in, by name. Many weights are one group."""
        inputs = {name: [part] for name, part in zip(self.inputs, x, strict=True) if part.is_floating_point()}
        weights = {
            name: part for name, part in self.module.named_parameters() if part.requires_grad and part.is_floating_point()
        }
        if len(weights) <= SINGLE_WEIGHTS:
            return inputs | {name: [part] for name, part in weights.items()}
        return inputs | {"weights": list(weights.values())}


class AttentionSubject(Subject):
    """One form of an attention."""

    axis = 2

    def __init__(self, request: Request, guessed: Guessed, form: str, thing: Any = None) -> None:
        options = guessed.outside
        self.request, self.guessed, self.options, self.form = request, guessed, options, form
        self.whole, self.part = guessed.whole, guessed.part
        thing = import_named(request.target) if thing is None else thing
        torch.manual_seed(0)
        forms = options.forms(thing, Sizes(request.heads, request.head_dim, guessed.whole)).eval()
        self.module: OutsideAttention = OutsideAttention(options, request.heads, request.head_dim, forms).eval()
        self.to(torch.float64 if options.is_double else torch.float32)
        self.allowed = ALLOWED[self.dtype]
        self.allowed_half = {kind: allowed for kind, allowed in ALLOWED_HALF.items() if kind != self.dtype}
        self.gradient_steps, self.allowed_gradient = GRADIENT_STEPS[self.dtype], ALLOWED_GRADIENT[self.dtype]
        self.inputs = ("x",) if options.layer else ("q", "k", "v")
        self.is_shiftable = not options.layer
        self.sides = ("right",) if options.mask == "lengths" else Subject.sides
        if self.part is not None and "length" not in options.sizes.values():
            self.long = self.whole * (1 + LONG // self.whole)  # a multiple, which some attentions ask for
        self._refuse()

    def _refuse(self) -> None:
        """Notes what cannot be asked."""
        options = self.options
        if options.mask is None:
            self.no_mask = "no argument for a padding mask was found; --mask-argument names it"
        elif self.form == "causal" and options.causal_by == "mask" and options.causal_argument == options.mask_argument:
            self.no_mask = "its padding mask and its causal mask are the same argument"
        elif self.form == "causal" and (problem := self._mask_problem()):
            self.no_mask = f"its mask and its causal form exclude each other ({problem})"
        if self.form != "causal":
            self.not_causal = "it does not say that it is causal; --causal asks for that"
        elif not options.continues:
            self.no_state = "it keeps no state: it has neither a method causal nor an argument for a state"
        elif self.part is None:
            self.no_state = "it takes sequences of one length only"

    def _mask_problem(self) -> str:
        x = self.draw(2, self.whole)
        try:
            self.mix(x, torch.ones(2, self.whole, dtype=torch.bool))
        except Exception as error:  # a callable may raise anything
            return f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"
        return ""

    def draw(self, batch: int, length: int, seed: int = 0) -> Inputs:
        drawn = draw(self.options, self.request.heads, self.request.head_dim, batch, length, seed)
        return self.cast(drawn, self.dtype)

    def changed(self, x: Inputs, places: Tensor) -> Inputs:
        return tuple(changed(part, places) for part in x)

    def mix(self, x: Inputs, keep: Bool[Tensor, "b n"] | None = None) -> Tensor:
        return self._mix(tuple(part.clone() for part in x), keep)  # a callable may write into its inputs

    def _mix(self, x: Inputs, keep: Bool[Tensor, "b n"] | None = None) -> Tensor:
        self.prepare_call()
        return self.module.causal(*x, keep=keep)[0] if self.form == "causal" else self.module(*x, keep=keep)

    def written(self, x: Inputs) -> float:
        by_position = self.options.layout != "bhnd"  # so that the attention gets views of the copies in every layout
        copies = [part.transpose(1, 2).clone().contiguous().transpose(1, 2) if by_position else part.clone() for part in x]
        self._mix(tuple(copies))
        return max(effect(part, after) for part, after in zip(x, copies, strict=True))

    def go_on(self, x: Inputs, state: Any) -> tuple[Tensor, Any]:
        return self.module.causal(*(part.clone() for part in x), *(() if state is None else (state,)))

    def step(self, x: Inputs, state: Any) -> tuple[Tensor, Any]:
        return self.module.step(*(part.clone() for part in x), *(() if state is None else (state,)))


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Inside the block, PyTorch uses `count` threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


Form = Literal["bidirectional", "causal", ""]
