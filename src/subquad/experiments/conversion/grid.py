"""A trained masked language model whose softmax becomes another attention: a swap that fails, and what brings it back.

A project of 2020 put FAVOR+ into DistilBERT, fine-tuned it, and ended with a perplexity far above the original's. Here a
model is trained with softmax (or a trained one is taken) and converted in many ways, each beside softmax that is fine-tuned
for as many steps on the same batches. `subquad.experiments.conversion.verdicts` has the verdicts.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from subquad.experiments.base import Trial

CLAIM = "FAVOR+ put into a trained masked language model fails, even fine-tuned (Dmitriev et al. 2020); other ways do not"
FAVOR, CALIBRATED, ADAPTED = "favor", "favor-calibrated", "favor-learned"
ELU, LEARNED, LINFORMER, HYBRID, WINDOW, SOFTMAX = "elu", "learned", "linformer", "hybrid", "window", "softmax"
WORDS = {
    SOFTMAX: "softmax",
    FAVOR: "FAVOR+",
    CALIBRATED: "FAVOR+ calibrated",
    ADAPTED: "FAVOR+ learned",
    ELU: "elu + 1",
    LEARNED: "learned map",
    LINFORMER: "Linformer",
    WINDOW: "window alone",
    HYBRID: "hybrid",
}


class Way(NamedTuple):
    """An attention, and whether its layers are matched before the model is tuned as a whole."""

    attention: str
    is_matched: bool = False

    @property
    def words(self) -> str:
        """What it is called."""
        return f"{WORDS[self.attention]}, {'matched and ' if self.is_matched else ''}fine-tuned"

    def name(self, seed: int) -> str:
        """Of its conversion."""
        return f"convert-{self.attention}-{'matched-' if self.is_matched else ''}{seed}"


CONVERSIONS = (
    Way(HYBRID, is_matched=True),  # the longest, which comes with controls: Way(HYBRID), WINDOW and SOFTMAX
    *(Way(attention, is_matched) for attention in (ADAPTED, LEARNED, LINFORMER) for is_matched in (True, False)),
    *(Way(attention) for attention in (FAVOR, CALIBRATED, ELU)),  # which have no weights that could be matched
)
"""Each a run of `subquad convert`."""
WAYS = tuple(
    Way(name, matched) for name in WORDS for matched in (False, True) if matched <= (Way(name, True) in CONVERSIONS)
)
"""All that comes of them, softmax first."""


@dataclass(frozen=True)
class Grid:
    """What a scale runs."""

    seeds: tuple[int, ...]
    features: int
    """Of FAVOR+; a learned map has twice the head's dimension."""
    k: int
    """Slots of Linformer."""
    block: int
    """Of the hybrid, which sees its own block and both neighbouring ones exactly."""
    model: tuple[str, ...]
    """What the softmax model is given,"""
    training: tuple[str, ...]
    """and its training."""
    steps: int
    """In which layers are matched,"""
    tune_steps: int
    """and in which the whole model is tuned. A model that is not matched is tuned for all of them."""
    conversion: tuple[str, ...]
    """What else every conversion is given."""
    minutes: str
    data: str = ""
    """Texts; Python's own unless told."""
    original: str = ""
    """A trained model, in the place of one that is trained here."""

    @property
    def total_steps(self) -> int:
        """Of every way."""
        return self.steps + self.tune_steps

    def trials(self) -> Iterator[Trial]:
        """The models that are converted first, then the long conversions before the short ones."""
        if not self.original:
            yield from map(self._pretraining, self.seeds)
        for seed in self.seeds:
            yield from (self._conversion(way, seed) for way in CONVERSIONS)

    def _pretraining(self, seed: int) -> Trial:
        text = ("--text", self.data) if self.data else ()
        given = ("mlm", "--attention", SOFTMAX, "--seed", str(seed), *self.model, *self.training, *text)
        return Trial(pretrained_name(seed), SOFTMAX, 0, seed, given)

    def _conversion(self, way: Way, seed: int) -> Trial:
        steps = (self.steps, self.tune_steps) if way.is_matched else (0, self.total_steps)
        lengths = ("--steps", str(steps[0]), "--tune-steps", str(steps[1]))
        controls = () if way.attention == HYBRID else ("--no-controls",)
        given = (*self._options(way.attention), *lengths, *controls, "--seed", str(seed), *self.conversion)
        if not self.original:
            return Trial(way.name(seed), way.attention, 0, seed, given, pretrained_name(seed), "convert")
        if not (Path(self.original) / "run.json").exists():  # a run has texts of its own, and nothing is timed
            given = (*given, *(("--text", self.data) if self.data else ()), "--cost-lengths")
        return Trial(way.name(seed), way.attention, 0, seed, (self.original, *given), command="convert")

    def _options(self, attention: str) -> tuple[str, ...]:
        """Which attention it is, for `subquad convert`."""
        name, _, projections = attention.partition("-")
        own = {
            FAVOR: ("--features", str(self.features), "--projections", projections or "fixed"),
            LINFORMER: ("--k", str(self.k)),
            HYBRID: ("--block", str(self.block)),
        }
        return "--attention", name, *own.get(name, ())


def pretrained_name(seed: int) -> str:
    """Of the training of what is converted."""
    return f"pretrain-{seed}"


OPTIMIZER = ("--optimizer", "adamw", "--schedule", "cosine")
SCALES: dict[str, Grid] = {
    "quick": Grid(
        seeds=(0, 1, 2),
        features=64,
        k=32,
        block=4,
        model=("--layers", "3", "--heads", "4", "--head-dim", "32", "--positions", "rotary"),
        training=(
            # a split other than the usual one, on whose test texts the block and the rates were chosen
            *("--length", "128", "--batch", "16", "--vocabulary-size", "2048", "--split-seed", "1"),
            *(*OPTIMIZER, "--warm-up", "40", "--learning-rate", "3e-3", "--steps", "800"),
            *("--evaluate-every", "160", "--checkpoint-every", "800"),
        ),
        steps=30,
        tune_steps=90,
        conversion=("--match-rate", "5e-2", "--tune-rate", "1e-3", "--map-rate", "2e-3"),
        minutes="under 15 minutes on two cores with Python's own texts; with --data longer: each training reads them",
    ),
    "long": Grid(
        seeds=(0, 1, 2),
        features=64,
        k=32,
        block=8,
        model=("--layers", "6", "--heads", "4", "--head-dim", "32", "--positions", "rotary"),
        training=(
            *("--length", "128", "--batch", "16", "--held-out", "64", "--tested", "256"),
            *(*OPTIMIZER, "--warm-up", "100", "--learning-rate", "3e-3", "--weight-decay", "0.01", "--steps", "1500"),
            *("--evaluate-every", "500", "--checkpoint-every", "250"),
        ),
        steps=150,
        tune_steps=250,
        conversion=("--match-rate", "5e-2", "--tune-rate", "1e-3", "--map-rate", "2e-3"),
        minutes="6 layers, with --data for books: about 2 hours on two cores",
    ),
    "paper": Grid(
        seeds=(0, 1, 2),
        features=256,
        k=128,
        block=64,
        model=("--layers", "6", "--heads", "12", "--head-dim", "64", "--positions", "learned", "--dropout", "0.1"),
        training=(
            *("--length", "512", "--batch", "256", "--vocabulary-size", "30522"),
            *(*OPTIMIZER, "--warm-up", "10000", "--learning-rate", "5e-4", "--weight-decay", "0.01", "--steps", "250000"),
            *("--precision", "bfloat16", "--evaluate-every", "5000", "--checkpoint-every", "1000"),
        ),
        steps=2000,
        tune_steps=8000,
        conversion=("--batch-tokens", "8192", "--texts", "2000", "--tune-rate", "5e-5", "--map-rate", "1e-3"),
        minutes="a model of DistilBERT's size: weeks with --data for books, days with --original FOLDER for a trained one",
    ),
}
