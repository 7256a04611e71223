"""The trainings on event sequences: every attention on every source, with times encoded in one or two ways.

Times are encoded as in the paper (Zuo et al. 2020), by sinusoids that are added to the embeddings, and on some sources also
by rotation of queries and keys, which is not in the paper.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Literal, NamedTuple

from subquad.attention import Favor, Infinity, Linear, Softmax
from subquad.experiments.base import Scale, Training, Trial
from subquad.models import ModelOptions
from subquad.tasks import Events
from subquad.training import TrainOptions
from subquad.types import AttentionOptions

CLAIM = "FAVOR+ predicts the next event's time and type at least as well as softmax (after Zuo et al. 2020), for less"
ATTENTIONS = ("softmax", "favor", "linear", "infinity")
BASELINE, CLAIMED = "softmax", "favor"
SIMULATED = "simulated"
TABLE = "Chang et al. 2025 (S2P2), on the splits of EasyTPP (Xue et al. 2024)"
"""Where the published values come from."""
PUBLISHED: dict[str, dict[str, float]] = {
    "amazon": {"THP": 2.096, "NHP": -0.129, "AttNHP": -0.484, "S2P2": -0.781},
    "retweet": {"THP": 6.659, "NHP": 6.348, "AttNHP": 6.499, "S2P2": 6.365},
    "taxi": {"THP": -0.372, "NHP": -0.514, "AttNHP": -0.493, "S2P2": -0.522},
    "taobao": {"THP": -0.790, "NHP": -1.157, "AttNHP": -1.259, "IFTPP": -1.318, "S2P2": -1.304},
    "stackoverflow": {"THP": 2.338, "NHP": 2.241, "AttNHP": 2.194, "S2P2": 2.163},
}
"""Negative log-likelihood for each event, by source and model, as in `TABLE`, from transcriptions of it.

Of IFTPP only the value on taobao was at hand. For THP on taobao one transcription has 1.712 instead.
"""
LONG = 3319
"""Number of events of a sequence of the order book, on which the cost of a step is measured."""
BATCH = 4
"""Number of sequences in the step whose cost is measured, the same as in trainings on the order book."""

Times = Literal["sinusoidal", "rotary"]
SINUSOIDAL: Times = "sinusoidal"
ROTARY: Times = "rotary"


class Setting(NamedTuple):
    """A source of sequences and the encoding of times."""

    source: str
    times: Times = SINUSOIDAL

    def __str__(self) -> str:
        return f"{self.source}, {self.times} times"


@dataclass(frozen=True)
class Source:
    """Options for one source of sequences."""

    model: ModelOptions
    training: TrainOptions
    task: Events = field(default_factory=Events)


@dataclass(frozen=True, kw_only=True)
class Grid(Scale):
    """Every attention in every setting with every seed."""

    seeds: tuple[int, ...]
    attentions: Mapping[str, AttentionOptions]
    usual: Source
    """Options for sources that `by_source` does not name."""
    by_source: Mapping[str, Source] = field(default_factory=dict)
    """Options by the name of the source."""
    also_rotary: tuple[str, ...] = (SIMULATED, "taxi", "stackoverflow")
    """Sources on which models are also trained with rotary times."""

    @property
    def sources(self) -> dict[str, str]:
        """Paths of the sources by name: an empty path for simulated sequences, and each folder of data."""
        paths = {SIMULATED: ""}
        if self.data:
            folder = Path(self.data)
            inner = sorted(path for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []
            paths |= {path.name.lower(): str(path) for path in inner or [folder]}
        return paths

    def trials(self) -> Iterator[Trial]:
        """Yields trials in an order in which every attention gets its first results early."""
        for setting, seed, attention in product(self.settings(), self.seeds, ATTENTIONS):
            source = self.by_source.get(setting.source, self.usual)
            work = Training(
                replace(source.task, data=self.sources[setting.source]),
                self.attentions[attention],
                replace(source.model, positions=setting.times),
                source.training,
            )
            yield Trial(f"events-{setting.source}-{setting.times}-{attention}-{seed}", attention, 0, seed, work)

    def settings(self) -> Iterator[Setting]:
        """Yields all sources with sinusoidal times, then some with rotary times."""
        yield from map(Setting, self.sources)
        yield from (Setting(source, ROTARY) for source in self.sources if source in self.also_rotary)


def attentions(features: int, infinity: Infinity) -> dict[str, AttentionOptions]:
    """The attentions that are compared, by name."""
    return {"softmax": Softmax(), "favor": Favor(features=features), "linear": Linear(), "infinity": infinity}


SMALL = ModelOptions(layers=2, heads=4, head_dim=16)
SMALL_TRAINING = TrainOptions(
    optimizer="adamw", schedule="cosine", warm_up=50, evaluate_every=100, checkpoint_every=100, learning_rate=3e-3
)
SCALES: dict[str, Grid] = {
    "quick": Grid(
        seeds=(0, 1, 2),
        attentions=attentions(64, Infinity(segment=128, basis=64)),
        usual=Source(replace(SMALL, dropout=0.1), replace(SMALL_TRAINING, batch=64, steps=500, learning_rate=4e-3)),
        by_source={
            SIMULATED: Source(SMALL, replace(SMALL_TRAINING, batch=32, steps=600)),
            "financial": Source(SMALL, replace(SMALL_TRAINING, batch=BATCH, steps=120), Events(chunk=512)),
        },
        minutes="under 20 minutes on two cores with simulated sequences; with --data a minute or two more for each training",
    ),
    "paper": Grid(
        seeds=(0, 1, 2, 3, 4),
        attentions=attentions(128, Infinity()),
        usual=Source(ModelOptions(layers=4, heads=4, head_dim=32, dropout=0.1), TrainOptions(batch=32, steps=10_000)),
        minutes="hours on two cores for each source",
    ),
}
