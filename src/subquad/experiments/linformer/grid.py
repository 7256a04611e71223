"""Linformer (Wang et al. 2020): what slots, shared projections and the length do to a masked language model.

Every model is trained beside one with softmax, as long and on sequences of the same length: the baseline that the paper's
figure of growing lengths does not have. `subquad.experiments.linformer.verdicts` has the verdicts, and
`subquad.experiments.linformer` the paper's table of speed-ups.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from subquad.experiments.base import Trial

CLAIM = "k slots do for masked language models, in any way of sharing and at any length, for less time (Wang et al. 2020)"
SHARINGS = ("none", "heads", "keys-values", "layerwise")
USUAL = "keys-values"
SOFTMAX, LINFORMER, NOTHING = "softmax", "linformer", "nothing"
"""What classifiers start from."""


class Variant(NamedTuple):
    """A model: the length of its sequences, its slots (0: softmax), and how their projections are shared."""

    length: int
    k: int = 0
    sharing: str = USUAL

    @property
    def attention(self) -> str:
        """What it is built with."""
        return LINFORMER if self.k else SOFTMAX

    @property
    def baseline(self) -> "Variant":
        """Softmax at the same length."""
        return Variant(self.length)

    def name(self, seed: int) -> str:
        """Of its training."""
        own = (self.k, self.sharing) if self.k else ()
        return "-".join(map(str, ("mlm", self.attention, self.length, *own, seed)))

    def projections(self, layers: int, heads: int) -> int:
        """How many different ones it learns."""
        return {"none": 2 * heads * layers, "heads": 2 * layers, "keys-values": layers, "layerwise": 1}[self.sharing]


@dataclass(frozen=True)
class Grid:
    """What a scale runs."""

    seeds: tuple[int, ...]
    slots: Mapping[int, tuple[int, ...]]
    """Numbers of slots that are tried, by length."""
    shared: Variant
    """Of which every way of sharing is tried, and which classifiers start from."""
    lengths: tuple[int, ...]
    """At which the same number of slots is tried,"""
    fixed: int
    """which is this one."""
    looked_at: int
    """The length of the softmax models whose attention matrices are looked at."""
    tokens: int
    """In a step, at every length."""
    model: tuple[str, ...]
    """What models that start from nothing are given,"""
    training: tuple[str, ...]
    """the training of language models,"""
    downstream: tuple[str, ...]
    """and that of classifiers."""
    timing: tuple[str, ...]
    """What `subquad compare` is given."""
    timing_budget: int
    """Seconds."""
    minutes: str
    data: str = ""
    """Texts; Python's own unless told."""

    @property
    def variants(self) -> list[Variant]:
        """Each once."""
        found = [Variant(length, k) for length, slots in self.slots.items() for k in (0, *slots)]
        found += [self.shared._replace(sharing=sharing) for sharing in SHARINGS]
        found += [Variant(length, k) for length in self.lengths for k in (0, self.fixed)]
        return list(dict.fromkeys([*found, Variant(self.looked_at), self.shared.baseline]))

    def trials(self) -> Iterator[Trial]:
        """In an order in which every model gets its first results early."""
        for seed in self.seeds:
            yield from (self._pretraining(variant, seed) for variant in self.variants)
            yield from self._classifiers(seed)

    def _pretraining(self, variant: Variant, seed: int) -> Trial:
        length = str(variant.length)
        slots = ("--k", str(variant.k), "--max-length", length, "--sharing", variant.sharing) if variant.k else ()
        batch = ("--batch", str(max(1, self.tokens // variant.length)))
        given = ("mlm", "--attention", variant.attention, *slots, "--length", length, *batch, "--seed", str(seed))
        text = ("--text", self.data) if self.data else ()
        arguments = (*given, *self.model, *self.training, *text)
        return Trial(variant.name(seed), variant.attention, variant.length, seed, arguments)

    def _classifiers(self, seed: int) -> Iterator[Trial]:
        """From the language models, and softmax from nothing. Each seed has other texts for its test."""
        from subquad.tasks.texts import has_labels

        text = ("--text", self.data) if self.data and has_labels(Path(self.data)) else ()
        length = self.shared.length
        given = (
            "classify",
            "--length",
            str(length),
            "--seed",
            str(seed),
            "--split-seed",
            str(seed),
            *self.downstream,
            *text,
        )
        for variant in (self.shared.baseline, self.shared):
            name = f"classify-{variant.attention}-{seed}"
            yield Trial(name, variant.attention, length, seed, given, start=variant.name(seed))
        fresh = (*given, "--attention", SOFTMAX, *self.model)
        yield Trial(f"classify-{NOTHING}-{seed}", NOTHING, length, seed, fresh)


OPTIMIZER = ("--optimizer", "adamw", "--schedule", "cosine")
SCALES: dict[str, Grid] = {
    "quick": Grid(
        seeds=(0, 1, 2, 3),
        slots={128: (16, 32, 64)},
        shared=Variant(128, 32),
        lengths=(64, 128, 512),
        fixed=32,
        looked_at=512,
        tokens=2048,
        # rotary positions, with which both attentions learn in fewer steps than with those that the paper's models learn
        model=("--layers", "2", "--heads", "4", "--head-dim", "16", "--positions", "rotary", "--vocabulary-size", "2048"),
        training=(
            *(*OPTIMIZER, "--warm-up", "20", "--learning-rate", "4e-3", "--steps", "320"),
            *("--evaluate-every", "40", "--checkpoint-every", "320"),
        ),
        downstream=(
            *(*OPTIMIZER, "--warm-up", "20", "--learning-rate", "2e-3", "--batch", "32", "--steps", "100"),
            *("--evaluate-every", "25", "--checkpoint-every", "100"),
        ),
        timing=("--grid", "linformer", "--lengths", "512..4096", "--memory-limit", "3GiB"),
        timing_budget=120,
        minutes="under 15 minutes on two cores with Python's own texts; with --data longer: each training reads them",
    ),
    "paper": Grid(
        seeds=(0, 1, 2),
        slots={512: (64, 128, 256), 1024: (128, 256, 512)},
        shared=Variant(512, 128),
        lengths=(512, 1024, 2048, 4096),
        fixed=256,
        looked_at=512,
        tokens=131_072,
        model=(
            *("--layers", "12", "--heads", "12", "--head-dim", "64", "--positions", "learned", "--dropout", "0.1"),
            *("--vocabulary-size", "32768"),
        ),
        training=(
            *(*OPTIMIZER, "--warm-up", "10000", "--learning-rate", "4e-4", "--weight-decay", "0.01", "--steps", "250000"),
            *("--precision", "bfloat16", "--evaluate-every", "5000", "--checkpoint-every", "1000"),
        ),
        downstream=(*OPTIMIZER, "--warm-up", "100", "--learning-rate", "3e-5", "--batch", "32", "--steps", "5000"),
        timing=("--grid", "linformer", "--lengths", "512..65536", "--memory-limit", "16GiB"),
        timing_budget=7200,
        minutes="weeks on many GPUs, with --data for books; can be interrupted and gone on with at any time",
    ),
}
