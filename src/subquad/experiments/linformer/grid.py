"""The trainings and measurements for Linformer (Wang et al. 2020): masked language models by slots, sharing and length.

Every model is compared with a softmax model that is trained equally long on sequences of the same length. The paper's figure
of growing lengths lacks this baseline.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import torch

from subquad.attention import Linformer, Softmax
from subquad.attention.linformer import Sharing
from subquad.compare.cells import Setting
from subquad.compare.plan import linformer_plan
from subquad.data.texts import has_labels
from subquad.experiments.base import Scale, Timing, Training, Trial
from subquad.measure.workers import Limits
from subquad.models import ModelOptions
from subquad.tasks import Classify, Mlm
from subquad.training import TrainOptions
from subquad.types import AttentionOptions

CLAIM = "k slots do for masked language models, in any way of sharing and at any length, for less time (Wang et al. 2020)"
SHARINGS: tuple[Sharing, ...] = ("none", "heads", "keys-values", "layerwise")
USUAL: Sharing = "keys-values"
SOFTMAX, LINFORMER, NOTHING = "softmax", "linformer", "nothing"
"""Names of what classifiers start from: a language model with either attention, or random weights."""


class Effort(NamedTuple):
    """How much is spent on measuring errors by the number of slots, at each length."""

    lengths: tuple[int, ...]
    """Lengths of sequences, at most that of the softmax model whose attention is examined."""
    fit_sequences: int
    """Number of training sequences to which projections are fitted."""
    test_sequences: int
    """Number of held-out sequences on which errors are measured."""
    fit_steps: int
    """Number of steps in which E and F are fitted, for each number of slots."""
    fit_batch: int
    """Number of sequences in a step of the fit."""


class Variant(NamedTuple):
    """A language model: length of its sequences, number of slots (0 for softmax), and how projections are shared."""

    length: int
    k: int = 0
    sharing: Sharing = USUAL

    @property
    def attention(self) -> str:
        """Name of the attention."""
        return LINFORMER if self.k else SOFTMAX

    @property
    def options(self) -> AttentionOptions:
        """Options of the attention."""
        return Linformer(k=self.k, max_length=self.length, sharing=self.sharing) if self.k else Softmax()

    @property
    def baseline(self) -> "Variant":
        """The softmax model at the same length."""
        return Variant(self.length)

    def name(self, seed: int) -> str:
        """Name of the trial that trains the model."""
        slots = (self.k, self.sharing) if self.k else ()
        return "-".join(map(str, ("mlm", self.attention, self.length, *slots, seed)))

    def projections(self, layers: int, heads: int) -> int:
        """Number of different projections that the model learns."""
        return {"none": 2 * heads * layers, "heads": 2 * layers, "keys-values": layers, "layerwise": 1}[self.sharing]


@dataclass(frozen=True, kw_only=True)
class Grid(Scale):
    """Language models by slots, sharing and length, and classifiers that start from them."""

    seeds: tuple[int, ...]
    slots: Mapping[int, tuple[int, ...]]
    """Numbers of slots, by length."""
    shared: Variant
    """Model that is trained with every way of sharing projections, and from which classifiers start."""
    lengths: tuple[int, ...]
    """Lengths of the models with `fixed_slots` slots."""
    fixed_slots: int
    """Number of slots k used when the length varies."""
    spectrum_length: int
    """Length of the softmax models whose attention matrices are examined."""
    step_tokens: int
    """Number of tokens in a training step of language models, at every length."""
    model: ModelOptions
    vocabulary: Mlm
    """Task of the language models. Its text and length are replaced."""
    training: TrainOptions
    """Training of the language models. Its batch is replaced."""
    downstream: TrainOptions
    """Training of the classifiers."""
    timing: Timing
    """Comparison that measures the paper's table of speed-ups."""
    effort: Effort
    """How errors by slots and length are measured."""

    @property
    def variants(self) -> list[Variant]:
        """All language models, each once."""
        models = [Variant(length, k) for length, slots in self.slots.items() for k in (0, *slots)]
        models += [self.shared._replace(sharing=sharing) for sharing in SHARINGS]
        models += [Variant(length, k) for length in self.lengths for k in (0, self.fixed_slots)]
        return list(dict.fromkeys([*models, Variant(self.spectrum_length), self.shared.baseline]))

    def trials(self) -> Iterator[Trial]:
        """Yields trials in an order in which every model gets its first results early."""
        for seed in self.seeds:
            yield from (self._pretraining(variant, seed) for variant in self.variants)
            yield from self._classifiers(seed)

    def _pretraining(self, variant: Variant, seed: int) -> Trial:
        task = replace(self.vocabulary, length=variant.length, text=self.data)
        training = replace(self.training, batch=max(1, self.step_tokens // variant.length))
        work = Training(task, variant.options, self.model, training)
        return Trial(variant.name(seed), variant.attention, variant.length, seed, work)

    def _classifiers(self, seed: int) -> Iterator[Trial]:
        """Yields classifiers that start from language models or from nothing. Each seed has another split of the texts."""
        text = self.data if self.data and has_labels(Path(self.data)) else ""
        task = Classify(length=self.shared.length, split_seed=seed, text=text)
        for variant in (self.shared.baseline, self.shared):
            work = Training(task, variant.options, self.model, self.downstream)
            name = f"classify-{variant.attention}-{seed}"
            yield Trial(name, variant.attention, task.length, seed, work, start=variant.name(seed))
        kind, size = self.vocabulary.vocabulary, self.vocabulary.vocabulary_size
        fresh = Training(replace(task, vocabulary=kind, vocabulary_size=size), Softmax(), self.model, self.downstream)
        yield Trial(f"classify-{NOTHING}-{seed}", NOTHING, task.length, seed, fresh)


def table_timing(longest: int, *, memory_bytes: int, budget_seconds: float) -> Timing:
    """The comparison of whole layers at lengths that double from 512, with every number of slots in the paper's table."""
    lengths = tuple(2**power for power in range(9, longest.bit_length()))
    plan = linformer_plan(lengths, settings=(Setting(threads=torch.get_num_threads()),))
    return Timing(plan, Limits(memory_bytes=memory_bytes), budget_seconds)


SCALES: dict[str, Grid] = {
    "quick": Grid(
        seeds=(0, 1, 2),
        slots={64: (8, 16, 32), 128: (16, 32, 64), 256: (32, 64, 128), 512: (32, 64, 128, 256)},
        shared=Variant(128, 32),
        lengths=(64, 128, 256, 512),
        fixed_slots=32,
        spectrum_length=512,
        step_tokens=2048,
        # with rotary positions both attentions learn in fewer steps than with the learned positions of the paper
        model=ModelOptions(layers=2, heads=4, head_dim=16, positions="rotary"),
        vocabulary=Mlm(vocabulary_size=2048),
        training=TrainOptions(
            optimizer="adamw",
            schedule="cosine",
            warm_up=20,
            learning_rate=4e-3,
            steps=320,
            evaluate_every=40,
            checkpoint_every=320,
        ),
        downstream=TrainOptions(
            optimizer="adamw",
            schedule="cosine",
            warm_up=20,
            learning_rate=2e-3,
            batch=32,
            steps=100,
            evaluate_every=25,
            checkpoint_every=100,
        ),
        timing=table_timing(4096, memory_bytes=3 * 2**30, budget_seconds=120),
        effort=Effort((32, 64, 128, 256, 512), fit_sequences=64, test_sequences=8, fit_steps=100, fit_batch=4),
        minutes="under 20 minutes on two cores with Python's own texts; with --data longer: each training reads them",
    ),
    "paper": Grid(
        seeds=(0, 1, 2),
        slots={512: (64, 128, 256), 1024: (128, 256, 512)},
        shared=Variant(512, 128),
        lengths=(512, 1024, 2048, 4096),
        fixed_slots=256,
        spectrum_length=512,
        step_tokens=131_072,
        model=ModelOptions(layers=12, heads=12, head_dim=64, positions="learned", dropout=0.1),
        vocabulary=Mlm(vocabulary_size=32_768),
        training=TrainOptions(
            optimizer="adamw",
            schedule="cosine",
            warm_up=10_000,
            learning_rate=4e-4,
            weight_decay=0.01,
            steps=250_000,
            precision="bfloat16",
            evaluate_every=5000,
            checkpoint_every=1000,
        ),
        downstream=TrainOptions(optimizer="adamw", schedule="cosine", warm_up=100, learning_rate=3e-5, batch=32, steps=5000),
        timing=table_timing(65_536, memory_bytes=16 * 2**30, budget_seconds=7200),
        effort=Effort((32, 64, 128, 256, 512), fit_sequences=256, test_sequences=64, fit_steps=1000, fit_batch=16),
        minutes="weeks on many GPUs, with --data for books",
    ),
}
