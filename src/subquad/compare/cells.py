"""Cells: picklable descriptions of a mechanism that does one kind of work at one length, which build what is measured."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from subquad import native
from subquad.attention import Mechanism, Softmax
from subquad.checking import Checked, Count, Words
from subquad.compare.views import BASELINE, Form, What
from subquad.measure.workers import Candidate, Work
from subquad.models import Block, ModelOptions
from subquad.models.sizes import stack_numbers
from subquad.results import Row
from subquad.tasks import Copy
from subquad.types import AttentionOptions, MechanismSize, Traits

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "float64": torch.float64}
Dtype = Literal["float32", "bfloat16", "float16", "float64"]
TINY_LENGTH = 64
UPDATE_LAYERS = 4
"""Layers of the encoder and of the decoder whose training step is measured."""
COUNTED = 2**28
"""Largest number of parameters of layers that are built to be counted. Larger ones are counted by arithmetic."""


@dataclass(frozen=True)
class Setting(Checked):
    """Sizes, threads, type and device that all mechanisms of one comparison share."""

    batch: Count = 1
    heads: Count = 8
    head_dim: Count = 64  # dimension of one head's queries, keys and values
    threads: Count = 1
    dtype: Dtype = "float32"
    device: Words = "cpu"
    kernels: native.Kernels = field(default_factory=native.chosen)  # who computes attention: native kernels or PyTorch
    renamed = {"width": "head_dim"}  # noqa: RUF012


@dataclass(frozen=True)
class Cell:
    """One measurement: a mechanism doing one kind of work at one length."""

    mechanism: str
    options: AttentionOptions
    form: Form
    what: What
    length: int
    setting: Setting
    seed: int = 0

    @property
    def layers(self) -> int:
        """Number of layers that one run computes, one after the other: their mean is measured. A training step is whole."""
        return 1 if self.what == "update" else self.options.depth

    def labels(self) -> Row:
        """Fields of a row that say what it was measured on."""
        about = {"mechanism": self.mechanism, "form": self.form, "what": self.what, "length": self.length}
        return about | self.setting.__dict__

    def candidate(self) -> Candidate:
        """The work that a child process builds and measures."""
        return Candidate(partial(prepare, self), partial(_warm_up, self))


def _warm_up(cell: Cell) -> Work:
    """The work on a short sequence. Attentions of others that take none do nothing."""
    tiny = replace(cell, length=TINY_LENGTH)
    if not cell.options.traits.foreign:
        return prepare(tiny)
    try:
        work = prepare(tiny)
        work.run()
    except Exception:  # code of others may raise anything
        return Work(lambda: None)
    return work


class FusedState(NamedTuple):
    """Keys and values with space for one more position."""

    keys: Tensor  # b h s+1 d
    values: Tensor


class Fused(Mechanism):
    """The baseline: PyTorch's fused attention, called directly, without the checks of the mechanisms here.

    Its step writes into a cache that is allocated once, as in optimized decoders.
    """

    def __init__(self) -> None:
        super().__init__(FusedOptions(), 0, 0)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, *, keep: Tensor | None = None) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v)

    def causal(
        self, q: Tensor, k: Tensor, v: Tensor, state: Any = None, *, keep: Tensor | None = None
    ) -> tuple[Tensor, Any]:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True), None

    def step(self, q: Tensor, k: Tensor, v: Tensor, state: FusedState, *, reuse: bool = True) -> tuple[Tensor, FusedState]:
        state.keys[:, :, -1:], state.values[:, :, -1:] = k, v
        return F.scaled_dot_product_attention(q, state.keys, state.values), state

    def remember(self, k: Tensor, v: Tensor, *, keep: Tensor | None = None) -> FusedState:
        """The keys and values, with a position of zeros for the next step."""
        return FusedState(F.pad(k, (0, 0, 0, 1)), F.pad(v, (0, 0, 0, 1)))


@dataclass(frozen=True)
class FusedOptions(AttentionOptions):
    """Options that build the baseline."""

    kind: str = BASELINE

    @property
    def traits(self) -> Traits:
        return Softmax().traits

    def size(self, *, heads: int, head_dim: int) -> MechanismSize:
        return MechanismSize(0, 0)

    def build(self, *, heads: int, head_dim: int, generator: torch.Generator | None = None) -> Fused:
        return Fused()


def prepare(cell: Cell) -> Work:
    """Builds the mechanism, or those of several layers, and their inputs, in a process of its own."""
    native.choose(cell.setting.kernels)
    generator = torch.Generator().manual_seed(cell.seed)
    place: dict[str, Any] = {"device": cell.setting.device, "dtype": DTYPES[cell.setting.dtype]}
    if cell.what == "update":
        return _update(cell, generator, place)
    by_layer = build(cell, generator).to(**place)
    if cell.what == "layer":
        return _layer(cell, by_layer, generator, place)
    if cell.what == "step":
        return _step(cell, by_layer, generator, place)
    return _attention(cell, by_layer, generator, place)


def build(cell: Cell, generator: torch.Generator) -> nn.ModuleList:
    """Builds the mechanism of each layer for sequences as long as the cell's; most cells have one layer."""
    if cell.mechanism == BASELINE:
        return nn.ModuleList([Fused()])
    options, traits = cell.options, cell.options.traits
    needed = 2 * cell.length if cell.what == "step" else cell.length  # steps go on from the position of the one before
    if traits.foreign or (traits.max_length is not None and traits.max_length < needed):
        options = options.for_length(needed)  # an attention of others may take exactly that length
    return _by_layer(cell, options, generator)


def _by_layer(cell: Cell, options: AttentionOptions, generator: torch.Generator) -> nn.ModuleList:
    make = options.layer_builder(heads=cell.setting.heads, head_dim=cell.setting.head_dim, generator=generator)
    return nn.ModuleList([make() for _ in range(options.depth)])


def _attention(cell: Cell, by_layer: nn.ModuleList, generator: torch.Generator, place: dict[str, Any]) -> Work:
    """Attention forward, or forward and backward, of each layer on the same inputs."""
    q, k, v = _draw(cell, 3, cell.length, generator, place)
    mixers = [_mixer(attend, cell.form) for attend in by_layer]

    @torch.no_grad()
    def forward() -> None:
        for mix in mixers:
            mix(q, k, v)

    if cell.what == "forward":
        return Work(forward)
    (gradient,) = _draw(cell, 1, cell.length, generator, place)
    inputs = tuple(x.requires_grad_() for x in (q, k, v))

    def train() -> None:
        for mix in mixers:
            torch.autograd.grad(mix(*inputs), inputs, gradient, allow_unused=True)  # lsh may not read q

    return Work(train)


def block_size(cell: Cell) -> tuple[int, int]:
    """Numbers and bytes of the parameters and buffers of one transformer layer, built for the cell's length.

    For different mechanisms by layer, the mean of their layers.
    """
    generator = torch.Generator().manual_seed(0)
    options = cell.options.for_length(cell.length)
    size = ModelOptions(layers=options.depth, heads=cell.setting.heads, head_dim=cell.setting.head_dim, norm="post")
    if (counted := stack_numbers(options, size)) > COUNTED or options.traits.foreign:
        return counted // options.depth, 4 * counted // options.depth
    blocks = nn.ModuleList([_block(cell, attend, generator) for attend in _by_layer(cell, options, generator)])
    held = [*blocks.parameters(), *blocks.buffers()]
    numbers, bytes_held = sum(part.numel() for part in held), sum(part.numel() * part.element_size() for part in held)
    return numbers // options.depth, bytes_held // options.depth


def _mixer(attend: Any, form: Form) -> Any:
    if form == "bidirectional":
        return attend
    return lambda q, k, v: attend.causal(q, k, v)[0]


def _layer(cell: Cell, by_layer: nn.ModuleList, generator: torch.Generator, place: dict[str, Any]) -> Work:
    """The forward pass of a whole transformer layer, or of several, one after the other."""
    blocks = [_block(cell, attend, generator).to(**place).eval() for attend in by_layer]
    model_dim = cell.setting.heads * cell.setting.head_dim
    inputs = torch.randn(cell.setting.batch, cell.length, model_dim, generator=generator).to(**place)

    @torch.no_grad()
    def run() -> None:
        x = inputs
        for block in blocks:
            x = block(x) if cell.form == "bidirectional" else block.causal(x)[0]

    return Work(run)


def _block(cell: Cell, attend: nn.Module, generator: torch.Generator) -> Block:
    heads, head_dim = cell.setting.heads, cell.setting.head_dim
    return Block(heads * head_dim, heads=heads, attention=attend, generator=generator)


def _update(cell: Cell, generator: torch.Generator, place: dict[str, Any]) -> Work:
    """A training step (forward, backward, optimizer) of the encoder-decoder that the replication in Julia trained."""
    task = Copy(length=cell.length, form="encoder-decoder")
    options = FusedOptions() if cell.mechanism == BASELINE else cell.options
    size = ModelOptions(layers=UPDATE_LAYERS, heads=cell.setting.heads, head_dim=cell.setting.head_dim)
    model = task.build(options, size, generator).to(**place)
    optimizer = torch.optim.RAdam(model.parameters(), lr=1e-4)
    batch = task.batch(cell.setting.batch, generator)
    batch = type(batch)(*(part.to(cell.setting.device) for part in batch))

    def run() -> None:
        counted = task.loss(model, batch)
        (counted.total / counted.number).backward()
        optimizer.step()
        optimizer.zero_grad()

    return Work(run)


class _Decoder:
    """The attention of one layer while a model decodes, after `length` positions.

    A state that grows is discarded after each step, so that the context stays the same.
    """

    def __init__(self, attend: Any, state: Any, inputs: tuple[Tensor, ...]) -> None:
        before = _numbers(state)  # a state may be written into
        _, after = attend.step(*inputs, state, reuse=True)
        self.attend, self.inputs = attend, inputs
        self.is_constant = 0 < before == _numbers(after)
        self.state = after if self.is_constant else state

    def step(self) -> None:
        _, following = self.attend.step(*self.inputs, self.state, reuse=True)
        if self.is_constant:
            self.state = following

    def held_bytes(self) -> int:
        return sum(part.numel() * part.element_size() for part in _tensors(self.state))


@torch.no_grad()
def _step(cell: Cell, by_layer: nn.ModuleList, generator: torch.Generator, place: dict[str, Any]) -> Work:
    """One decoding step after `length` positions. What is held is the mean state of a layer."""
    states = [_state(cell, attend, generator, place) for attend in by_layer]
    inputs = tuple(_draw(cell, 3, 1, generator, place))
    decoders = [_Decoder(attend, state, inputs) for attend, state in zip(by_layer, states, strict=True)]

    @torch.no_grad()
    def run() -> None:
        for decoder in decoders:
            decoder.step()

    return Work(run, sum(decoder.held_bytes() for decoder in decoders) // len(decoders))


def _state(cell: Cell, attend: Any, generator: torch.Generator, place: dict[str, Any]) -> Any:
    """The state of the mechanism after `length` positions."""
    return attend.remember(*_draw(cell, 2, cell.length, generator, place))


def _tensors(state: Any) -> list[Tensor]:
    """The tensors in a state, which may hold other things as well, or hold them in containers."""
    return [part for part in tree_leaves(state) if isinstance(part, Tensor)]


def _numbers(state: Any) -> int:
    return sum(part.numel() for part in _tensors(state))


def _draw(cell: Cell, count: int, length: int, generator: torch.Generator, place: dict[str, Any]) -> Iterator[Tensor]:
    shape = (cell.setting.batch, cell.setting.heads, length, cell.setting.head_dim)
    return (torch.randn(*shape, generator=generator).to(**place) for _ in range(count))
