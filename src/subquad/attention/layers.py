"""Different mechanisms in the layers of one model."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import cycle

import torch
from torch import nn

from subquad.errors import OptionError, SubquadError
from subquad.types import AttentionOptions, MechanismSize, Traits
from subquad.words import run_lengths


@dataclass(frozen=True)
class Layers(AttentionOptions):
    """A mechanism for each layer of a stack, from the first on; a stack of more layers repeats them.

    For example, ``Layers((Linear(), Linear(), Linear(), Softmax()))`` is for stacks of 4, 8 or 12 layers, each fourth of
    which has exact attention.
    """

    mechanisms: tuple[AttentionOptions, ...]
    kind: str = field(default="layers", init=False)

    def check(self) -> None:
        if not self.mechanisms:
            raise OptionError("mechanisms", "must be one mechanism or several, but is empty")
        if any(isinstance(options, Layers) for options in self.mechanisms):
            raise OptionError("mechanisms", "must be single mechanisms, but one of them is a list for several layers")

    @property
    def name(self) -> str:
        return run_lengths([options.name for options in self.mechanisms])

    @property
    def parts(self) -> tuple[AttentionOptions, ...]:
        return tuple(dict.fromkeys(self.mechanisms))

    @property
    def depth(self) -> int:
        return len(self.mechanisms)

    @property
    def traits(self) -> Traits:
        """What holds for all layers, or for one of them where one is enough."""
        each = [options.traits for options in self.parts]
        windows = {traits.window for traits in each if not traits.exact}
        lengths = [traits.max_length for traits in each if traits.max_length is not None]
        return Traits(
            exact=all(traits.exact for traits in each),
            time=" or ".join(dict.fromkeys(traits.time for traits in each)),
            space=" or ".join(dict.fromkeys(traits.space for traits in each)),
            gives_up="; ".join(dict.fromkeys(traits.gives_up for traits in each)),
            causal=all(traits.causal for traits in each),
            steps=all(traits.steps for traits in each),
            foreign=any(traits.foreign for traits in each),
            constant_state=all(traits.constant_state for traits in each),
            max_length=min(lengths, default=None),
            window=windows.pop() if len(windows) == 1 else None,
            aligned=any(traits.aligned for traits in each),
            no_matrix=f"{self.name} has a matrix for each layer and none for all",
            redraws=any(traits.redraws for traits in each),
            adds_to_loss=any(traits.adds_to_loss for traits in each),
            calibrates=any(traits.calibrates for traits in each),
        )

    def for_layers(self, layers: int) -> Sequence[AttentionOptions]:
        return self.mechanisms * self._repeats(layers)

    def counts(self, layers: int) -> Sequence[tuple[AttentionOptions, int]]:
        repeats = self._repeats(layers)
        return [(part, repeats * self.mechanisms.count(part)) for part in self.parts]

    def _repeats(self, layers: int) -> int:
        """How often a stack repeats the mechanisms. Raises `SubquadError` for a number of layers that does not fit."""
        repeats, rest = divmod(layers, len(self.mechanisms))
        if rest:
            raise SubquadError(
                f"{self.name} are the attentions of {len(self.mechanisms)} layers, but the model has {layers}: "
                f"name {layers}, or make the number of layers a multiple of {len(self.mechanisms)}"
            )
        return repeats

    def size(self, *, heads: int, head_dim: int) -> MechanismSize:
        """Returns the largest numbers of one layer."""
        sizes = [options.size(heads=heads, head_dim=head_dim) for options in self.parts]
        return MechanismSize(*(max(numbers) for numbers in zip(*sizes, strict=True)))

    def build(self, *, heads: int, head_dim: int, generator: torch.Generator | None = None) -> nn.Module:
        raise SubquadError(
            f"{self.name} are the attentions of {len(self.mechanisms)} layers, of which one is needed here: choose one, or "
            "give them to a model of several layers"
        )

    def layer_builder(
        self, *, heads: int, head_dim: int, generator: torch.Generator | None = None
    ) -> Callable[[], nn.Module]:
        """A function that builds the mechanism of the next layer. Layers with the same options may share parameters."""
        builders = {
            options: options.layer_builder(heads=heads, head_dim=head_dim, generator=generator) for options in self.parts
        }
        following: Iterator[AttentionOptions] = cycle(self.mechanisms)
        return lambda: builders[next(following)]()

    def for_length(self, length: int) -> "Layers":
        return Layers(tuple(options.for_length(length) for options in self.mechanisms))

    def without_far_keys(self) -> "Layers | None":
        windows = [options if options.traits.exact else options.without_far_keys() for options in self.mechanisms]
        near = tuple(options for options in windows if options is not None)
        return Layers(near) if len(near) == len(windows) else None


def joined(layers: Sequence[AttentionOptions]) -> AttentionOptions:
    """Returns the options of a stack whose layers have these mechanisms: those of one, if all have the same."""
    return layers[0] if len(set(layers)) == 1 else Layers(tuple(layers))
