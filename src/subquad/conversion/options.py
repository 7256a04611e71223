"""Options of a conversion."""

from dataclasses import dataclass
from typing import Literal

from subquad.checking import Checked, Count, FilePath, Moderate, Place, Positive, Whole
from subquad.conversion.convertible import Goal
from subquad.errors import SubquadError

LENGTHS = (128, 256, 512, 1024, 2048, 4096, 8192)


@dataclass(frozen=True)
class ConversionOptions(Checked):
    """Two stages: each layer's mechanism learns to do what the exact attention does, then the whole model is tuned."""

    minutes: Positive = 20.0  # total time: a fifth at most for measuring, the rest shared by the conversion and its controls
    steps: Whole | None = None  # number of steps of the first stage; if not set, its share of the minutes decides
    tune_steps: Whole | None = None  # number of steps of the second stage; if both are set, --minutes has no effect
    goal: Goal | None = None  # loss of the second stage; if not set, hidden for an encoder and task for a language model
    batch_tokens: Count = 2048  # number of tokens in a training step
    layers: Count | None = None  # number of layers of a smaller model, evenly spaced ones of the original; all if not set
    heads: Count | None = None  # number of attention heads of a smaller model, evenly spaced ones; all if not set
    keep_layers: tuple[Place, ...] = ()  # layers that stay exact, counted from 0, or from the end if negative
    keep_worst: Whole = 0  # number of layers that stay exact: those with the largest divergence after the first stage
    pairs: FilePath | None = None  # tab-separated file as of STS-B: a score in column 5, sentences in columns 6 and 7
    controls: bool = True  # also train, for as long: without the first stage; a hybrid's window alone; softmax
    match_rate: Moderate = 1e-2  # learning rate of the first stage
    tune_rate: Moderate = 3e-4  # learning rate of the second stage
    map_rate: Moderate = 1e-3  # learning rate of the second stage for parameters of the mechanisms
    clip: Positive = 1.0  # gradient clipping norm in the second stage
    precision: Literal["float32", "bfloat16"] = "float32"  # bfloat16 (autocast) is faster if the processor supports it
    texts: Count = 500  # number of held-out texts on which quality is measured
    cost_lengths: tuple[Count, ...] = LENGTHS  # lengths in tokens at which time and memory are measured; may be empty

    def check(self) -> None:
        if self.keep_layers and self.keep_worst:
            raise SubquadError(
                "--keep-layers names the layers that stay exact, --keep-worst finds them: give one of the two"
            )
