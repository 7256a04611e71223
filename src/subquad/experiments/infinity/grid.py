"""Infinity-former (Martins et al. 2022): does a memory of fixed size help, at a cost that does not depend on the context?

1. On the sorting task a model with the memory answers better than the same model without it, which sees a segment only.
2. Sticky memories, whose points are drawn where attention has gone, answer better than evenly spaced ones.
3. The cost of the next segment does not depend on how much came before it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from subquad.experiments.base import Trial, last, load
from subquad.measure.machine import describe, versions
from subquad.measure.timing import interleave
from subquad.results import Row, Run
from subquad.statistics import Interval, Verdict, is_above, mean_over_seeds, median_interval, ratio_interval
from subquad.words import between

if TYPE_CHECKING:
    from subquad.attention import Infinity, InfinityAttention, InfinityState

CLAIM = "a continuous memory of fixed size helps to sort long sequences, at a cost that does not grow (Martins et al. 2022)"
EVEN, STICKY, WINDOW = "even memory", "sticky memory", "window only"
SAME = 1.1
"""How many times the time at the shortest context still counts as the same."""


@dataclass(frozen=True)
class Grid:
    """What a scale runs."""

    lengths: tuple[int, ...]
    seeds: tuple[int, ...]
    arguments: tuple[str, ...]
    by_length: Mapping[int, tuple[str, ...]]
    minutes: str

    def trials(self) -> Iterator[Trial]:
        """In an order in which every variant gets its first results early."""
        own = {EVEN: (), STICKY: ("--sticky",), WINDOW: ("--basis", "0")}
        for length in self.lengths:
            for seed in self.seeds:
                for variant, more in own.items():
                    given = ("--attention", "infinity", "--length", str(length), "--seed", str(seed))
                    name = f"sorting-{variant.replace(' ', '-')}-{length}-{seed}"
                    arguments = ("sorting", *given, *self.arguments, *self.by_length.get(length, ()), *more)
                    yield Trial(name, variant, length, seed, arguments)


SMALL = (
    *("--layers", "1", "--heads", "2", "--head-dim", "32", "--positions", "rotary", "--no-tied"),
    *("--basis", "64", "--points", "64", "--widths", "0.05", "--learning-rate", "2e-2", "--schedule", "cosine"),
    *("--evaluate-every", "50", "--checkpoint-every", "100"),
)
SCALES: dict[str, Grid] = {
    "quick": Grid(
        lengths=(4096, 1024, 8192),
        seeds=(0, 1, 2),
        arguments=SMALL,
        by_length={
            1024: ("--segment", "128", "--batch", "8", "--steps", "200"),
            4096: ("--segment", "256", "--batch", "8", "--steps", "300"),
            8192: ("--segment", "512", "--batch", "4", "--steps", "150"),
        },
        minutes="under 20 minutes on two cores",
    ),
    "paper": Grid(
        lengths=(4096, 8192, 16384),
        seeds=(0, 1, 2),
        arguments=(
            *("--layers", "3", "--heads", "6", "--head-dim", "50", "--positions", "rotary", "--segment", "1024"),
            *("--basis", "512", "--points", "512", "--widths", "0.01", "0.05", "--divergence", "1e-6"),
            *("--optimizer", "adamw", "--learning-rate", "2e-4", "--batch", "8", "--steps", "20000"),
        ),
        by_length={},
        minutes="weeks on two cores, a GPU's work; can be interrupted and gone on with at any time",
    ),
}

CONTEXTS = (2048, 8192, 32768)


def measure(folder: Path, scale: str) -> None:
    """The time of the next segment after contexts of several lengths, in turns, and the size of the state."""
    from subquad.attention import Infinity

    own = folder / "context"
    run = Run.open(own, "context") if (own / "run.json").exists() else Run.create(own, "context", _about())
    if not any(row["metric"] == "state_bytes" and row["context"] == CONTEXTS[-1] for row in run.rows()):  # the last one
        run.keep_first_rows(0)
        run.append(context_rows(Infinity(), CONTEXTS, heads=8, head_dim=64))


def _about() -> dict[str, object]:
    return {"versions": versions(), "machine": describe(), "command": "subquad reproduce infinity"}


def context_rows(
    options: "Infinity", contexts: Sequence[int], *, heads: int, head_dim: int, seconds: float = 20.0
) -> list[Row]:
    """For each context the seconds of the next segment, how many times that of the first context, and the state's bytes."""
    import torch

    attend = options.build(heads=heads, head_dim=head_dim, generator=torch.Generator().manual_seed(0)).eval()
    q, k, v = torch.randn(3, 1, heads, options.segment, head_dim, generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        states = {context: _streamed(attend, context) for context in contexts}
        candidates = {str(at): lambda state=state: attend.causal(q, k, v, state) for at, state in states.items()}
        taken = interleave(candidates, seconds=seconds, at_least=10, at_most=200)
    rows: list[Row] = []
    for context, state in states.items():
        taken_here = median_interval(taken[str(context)])
        times = ratio_interval(taken[str(context)], taken[str(contexts[0])])
        for name, interval, unit in (("seconds", taken_here, "s"), ("times_first", times, "times")):
            rows.append({"metric": name, **interval._asdict(), "unit": unit, "context": context})
        rows.append({"metric": "state_bytes", "value": sum(part.nbytes for part in state), "unit": "B", "context": context})
    return rows


def _streamed(attend: "InfinityAttention", context: int) -> "InfinityState":
    """The state after a context, segment by segment."""
    import torch

    state, drawing = None, torch.Generator().manual_seed(2)
    for _ in range(context // attend.options.segment):
        q, k, v = torch.randn(3, 1, attend.heads, attend.options.segment, attend.head_dim, generator=drawing)
        _, state = attend.causal(q, k, v, state)
    assert state is not None
    return state


def judge(folder: Path, scale: str) -> list[Verdict]:
    """A verdict on each claim."""
    trials = list(SCALES[scale].trials())
    trained = load(folder, trials)
    found = [*helps(trained, trials, EVEN, WINDOW), *helps(trained, trials, STICKY, EVEN)]
    context = folder / "context"
    return [*found, *(constant(Run.open(context, "context").rows()) if (context / "run.json").exists() else [])]


def helps(trained: Mapping[str, Sequence[Row]], trials: Sequence[Trial], better: str, worse: str) -> Iterator[Verdict]:
    """Whether the intervals of the accuracy over seeds lie apart, at each length; not decided where they overlap."""
    for length in dict.fromkeys(trial.length for trial in trials):
        of = {
            variant: [trial for trial in trials if (trial.variant, trial.length) == (variant, length)]
            for variant in (better, worse)
        }
        claim = f"{better} answers better than {worse} at {length} tokens"
        done = {variant: [trial for trial in own if trial.name in trained] for variant, own in of.items()}
        if any(len(done[variant]) < len(own) for variant, own in of.items()):
            counts = ", ".join(f"{len(done[variant])} of {len(own)} with {variant}" for variant, own in of.items())
            yield Verdict(claim, None, f"runs done: {counts}")
            continue
        high, low = (
            mean_over_seeds([last(trained[trial.name], "token_accuracy") for trial in own]) for own in done.values()
        )
        figures = (
            f"accuracy {_share(high)} against {_share(low)}, a difference of {100 * (high.value - low.value):.1f} points; "
            f"95% intervals over {len(done[better])} seeds"
        )
        yield Verdict(claim, is_above(high, low), figures)


def _share(found: Interval) -> str:
    return between(Interval(found.value, max(0.0, found.low), min(1.0, found.high)), ".1%")


def constant(rows: Sequence[Row]) -> Iterator[Verdict]:
    """Whether the longest context costs what the shortest does."""
    by_context = {
        metric: {row["context"]: row for row in rows if row["metric"] == metric} for metric in ("times_first", "state_bytes")
    }
    contexts = sorted(by_context["state_bytes"])
    if len(contexts) < 2:
        return
    first, longest = contexts[0], contexts[-1]
    found, sizes = by_context["times_first"][longest], {row["value"] for row in by_context["state_bytes"].values()}
    yield Verdict(
        f"the next segment costs after {longest} tokens what it costs after {first}",
        found["value"] <= SAME and len(sizes) == 1,
        f"{between(Interval.of_row(found), '.3f')} times the time; "
        f"the state has {', '.join(f'{size:,}' for size in sorted(sizes))} bytes at every context",
    )
