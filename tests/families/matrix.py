"""The matrix: the cells that every class of models is put through, in order."""

from subquad import Learned, Linear
from tests.families import generation, training
from tests.families.cells import (
    FAVOR,
    LINEAR,
    SOFTMAX,
    Cell,
    Prepare,
    batch,
    causality,
    equals_original,
    padding_and_future,
    padding_left,
    padding_right,
    swapped,
    takes_effect,
)

LEARNED = swapped(Linear(Learned()))

MATRIX: dict[str, tuple[Cell, Prepare]] = {
    "softmax": (equals_original, SOFTMAX),
    "linear": (takes_effect, LINEAR),
    "favor": (padding_and_future, FAVOR),
    "padding right": (padding_right, LINEAR),
    "padding left": (padding_left, LINEAR),
    "batch": (batch, LINEAR),
    "causality": (causality, LINEAR),
    "cache": (generation.cached, LINEAR),
    "state": (generation.state_greedy, LINEAR),
    "beam": (generation.state_beam, LINEAR),
    "sampling": (generation.state_sampling, LINEAR),
    "continuing": (generation.state_continuing, LINEAR),
    "left prompts": (generation.state_left_padding, LINEAR),
    "part": (generation.part_of_layers, LINEAR),
    "save": (training.saved_and_loaded, LEARNED),
    "checkpointing": (training.checkpointing, LEARNED),
    "autocast": (training.autocast, LINEAR),
    "trainer": (training.trainer, LEARNED),
    "trainer bf16": (training.trainer_bfloat16, LEARNED),
}
