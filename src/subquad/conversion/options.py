"""How a model is converted."""

from dataclasses import dataclass
from typing import Literal

from subquad.checking import Checked, Count, FilePath, Moderate, Place, Positive, Whole
from subquad.conversion.convertible import Goal
from subquad.errors import SubquadError

LENGTHS = (128, 256, 512, 1024, 2048, 4096, 8192)


@dataclass(frozen=True)
class ConversionOptions(Checked):
    """Two stages: each layer's mechanism learns to do what the exact attention does, then the whole model is tuned."""

    minutes: Positive = 20.0  # in all: measuring has at most a fifth, the conversion and its controls share the rest equally
    steps: Whole | None = None  # of the first stage, in the place of a share of the minutes
    tune_steps: Whole | None = None  # of the second stage; with both given, minutes limit nothing
    goal: Goal | None = None  # of the second: hidden states for an encoder, its task for a language model, unless told
    batch_tokens: Count = 2048  # in a step
    keep_layers: tuple[Place, ...] = ()  # that stay exact, counted from 0, or from the end if negative
    keep_worst: Whole = 0  # so many layers stay exact: those that the mechanism follows worst after the first stage
    pairs: FilePath | None = None  # a table with tabs: a score in column 5, sentences in 6 and 7, as STS-B has them
    controls: bool = True  # train, as long: the swapped model without the first stage; a hybrid's window; softmax
    match_rate: Moderate = 1e-2  # the learning rate of the first stage
    tune_rate: Moderate = 3e-4  # of the second
    map_rate: Moderate = 1e-3  # of the second, for what the mechanisms brought
    clip: Positive = 1.0  # the largest norm of the second stage's gradient
    precision: Literal["float32", "bfloat16"] = "float32"  # bfloat16: by autocast, faster where the processor knows it
    texts: Count = 500  # held-out texts that quality is measured on
    cost_lengths: tuple[Count, ...] = LENGTHS  # tokens, at which time and memory are measured before and after; or none

    def check(self) -> None:
        if self.keep_layers and self.keep_worst:
            raise SubquadError(
                "--keep-layers names the layers that stay exact, --keep-worst finds them: give one of the two"
            )
