"""The trainings and conversions: a masked language model whose softmax is replaced by other attentions in several ways.

A project of 2020 put FAVOR+ into DistilBERT, fine-tuned it, and ended with a perplexity far above the original's. Here a
softmax model is trained, or a trained one is taken, and converted in several ways. Each is compared with softmax that is
fine-tuned for as many steps on the same batches.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from subquad.attention import Favor, Hybrid, Linear, Linformer, Softmax
from subquad.conversion import ConversionOptions
from subquad.experiments.base import Conversion, Scale, Training, Trial
from subquad.feature_maps import Elu, Learned
from subquad.models import ModelOptions
from subquad.tasks import Mlm
from subquad.training import TrainOptions
from subquad.types import AttentionOptions

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
    """An attention, and whether its layers are matched to softmax before the whole model is fine-tuned."""

    attention: str
    is_matched: bool = False

    @property
    def words(self) -> str:
        """Name in verdicts and legends."""
        return f"{WORDS[self.attention]}, {'matched and ' if self.is_matched else ''}fine-tuned"

    def name(self, seed: int) -> str:
        """Name of the trial that converts the model of a seed."""
        return f"convert-{self.attention}-{'matched-' if self.is_matched else ''}{seed}"


CONVERSIONS = (
    Way(HYBRID, is_matched=True),  # the longest; its controls are Way(HYBRID), WINDOW and SOFTMAX
    *(Way(attention, is_matched) for attention in (ADAPTED, LEARNED, LINFORMER) for is_matched in (True, False)),
    *(Way(attention) for attention in (FAVOR, CALIBRATED, ELU)),  # these have no weights that could be matched
)
"""Ways that are runs of `subquad convert`."""
WAYS = tuple(
    Way(name, matched) for name in WORDS for matched in (False, True) if matched <= (Way(name, True) in CONVERSIONS)
)
"""Ways with results, including controls, softmax first."""


@dataclass(frozen=True, kw_only=True)
class Grid(Scale):
    """Every way of converting, with every seed."""

    seeds: tuple[int, ...]
    features: int
    """Number of features of FAVOR+. A learned map has twice the head's dimension."""
    k: int
    """Number of slots of Linformer."""
    block: int
    """Block length of the hybrid, which attends exactly to its own block and both neighbouring ones."""
    model: ModelOptions
    task: Mlm
    """Task of the softmax model. Its field `text` is replaced by the data of the scale."""
    training: TrainOptions
    """Training of the softmax model."""
    match_steps: int
    """Number of steps in which layers are matched."""
    tune_steps: int
    """Number of steps in which a matched model is fine-tuned. A model that is not matched is fine-tuned for all steps."""
    conversion: ConversionOptions
    """Options of all conversions. Their steps and controls are replaced by those of each way."""

    @property
    def total_steps(self) -> int:
        """Number of steps of every way."""
        return self.match_steps + self.tune_steps

    @property
    def cost(self) -> str:
        """The training that each way takes, beside that of the model to be converted if it is trained here."""
        if self.original:
            return f"{self.total_steps} steps"
        trained = self.training.steps * self.training.batch * self.task.length
        share = self.total_steps * self.conversion.batch_tokens / trained
        return f"{self.total_steps} steps, which read {share:.0%} of the tokens that the original's training read"

    def trials(self) -> Iterator[Trial]:
        """Yields the trainings of the models to be converted, then long conversions before short ones."""
        if not self.original:
            yield from map(self._pretraining, self.seeds)
        for seed in self.seeds:
            yield from (self._conversion(way, seed) for way in CONVERSIONS)

    def _pretraining(self, seed: int) -> Trial:
        work = Training(replace(self.task, text=self.data), Softmax(), self.model, self.training)
        return Trial(pretrained_name(seed), SOFTMAX, 0, seed, work)

    def _conversion(self, way: Way, seed: int) -> Trial:
        match_steps, tune_steps = (self.match_steps, self.tune_steps) if way.is_matched else (0, self.total_steps)
        has_controls = way.attention == HYBRID
        options = replace(self.conversion, steps=match_steps, tune_steps=tune_steps, controls=has_controls)
        attention = self._attention(way.attention)
        if not self.original:
            work = Conversion(attention, options)
            return Trial(way.name(seed), way.attention, 0, seed, work, start=pretrained_name(seed))
        if (Path(self.original) / "run.json").exists():  # a run is converted on its own text
            work = Conversion(attention, options, self.original)
        else:
            work = Conversion(attention, replace(options, cost_lengths=()), self.original, self.data)
        return Trial(way.name(seed), way.attention, 0, seed, work)

    def _attention(self, name: str) -> AttentionOptions:
        """Options of an attention, by its name in `WORDS`."""
        attentions: dict[str, AttentionOptions] = {
            FAVOR: Favor(features=self.features),
            CALIBRATED: Favor(features=self.features, projections="calibrated"),
            ADAPTED: Favor(features=self.features, projections="learned"),
            ELU: Linear(Elu()),
            LEARNED: Linear(Learned()),
            LINFORMER: Linformer(k=self.k),
            HYBRID: Hybrid(block=self.block),
        }
        return attentions[name]


def pretrained_name(seed: int) -> str:
    """Name of the trial that trains the model to be converted."""
    return f"pretrain-{seed}"


TRAINING = TrainOptions(optimizer="adamw", schedule="cosine", learning_rate=3e-3)
RATES = ConversionOptions(match_rate=5e-2, tune_rate=1e-3, map_rate=2e-3)
SCALES: dict[str, Grid] = {
    "quick": Grid(
        seeds=(0, 1, 2),
        features=64,
        k=32,
        block=4,
        model=ModelOptions(layers=3, heads=4, head_dim=32, positions="rotary"),
        # not the default split, on whose test texts the block and the learning rates were chosen
        task=Mlm(length=128, vocabulary_size=2048, split_seed=1),
        training=replace(TRAINING, batch=16, warm_up=40, steps=800, evaluate_every=160, checkpoint_every=800),
        match_steps=30,
        tune_steps=90,
        conversion=RATES,
        minutes="under 15 minutes on two cores with Python's own texts; with --data longer: each training reads them",
    ),
    "long": Grid(
        seeds=(0, 1, 2),
        features=64,
        k=32,
        block=8,
        model=ModelOptions(layers=6, heads=4, head_dim=32, positions="rotary"),
        task=Mlm(length=128, held_out=64, tested=256),
        training=replace(
            TRAINING, batch=16, warm_up=100, weight_decay=0.01, steps=1500, evaluate_every=500, checkpoint_every=250
        ),
        match_steps=150,
        tune_steps=250,
        conversion=RATES,
        minutes="6 layers, with --data for books: about 2 hours on two cores",
    ),
    "paper": Grid(
        seeds=(0, 1, 2),
        features=256,
        k=128,
        block=64,
        model=ModelOptions(layers=6, heads=12, head_dim=64, positions="learned", dropout=0.1),
        task=Mlm(length=512, vocabulary_size=30_522),
        training=replace(
            TRAINING,
            batch=256,
            warm_up=10_000,
            learning_rate=5e-4,
            weight_decay=0.01,
            steps=250_000,
            precision="bfloat16",
            evaluate_every=5000,
            checkpoint_every=1000,
        ),
        match_steps=2000,
        tune_steps=8000,
        conversion=ConversionOptions(batch_tokens=8192, texts=2000, tune_rate=5e-5, map_rate=1e-3),
        minutes="a model of DistilBERT's size: weeks with --data for books, days with --original FOLDER for a trained one",
    ),
    "trial": Grid(
        seeds=(0,),
        features=64,
        k=32,
        block=32,
        model=ModelOptions(layers=6, heads=12, head_dim=64, positions="learned"),
        task=Mlm(length=512, vocabulary_size=30_522),
        training=replace(TRAINING, batch=1, warm_up=1, steps=2, evaluate_every=2, checkpoint_every=2),
        match_steps=1,
        tune_steps=1,
        conversion=ConversionOptions(batch_tokens=512, texts=2, tune_rate=5e-5),
        minutes="two steps each at DistilBERT's size: whether --original FOLDER goes through, not what comes of it",
    ),
}
