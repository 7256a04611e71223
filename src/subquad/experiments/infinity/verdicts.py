"""Verdicts on the infinity-former (Martins et al. 2022): does a memory of fixed size help, at a constant cost?

1. On the sorting task, a model with the memory answers better than the same model without it, which sees one segment.
2. Sticky memories, whose points are drawn where attention was high, answer better than evenly spaced ones.
3. The cost of the next segment does not depend on how much came before it.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from subquad.experiments.base import Trial, finished_rows, last_value, part_rows
from subquad.experiments.infinity.grid import EVEN, SCALES, STICKY, WINDOW
from subquad.results import Row
from subquad.statistics import Interval, Verdict, all_held, at_most, is_above, mean_over_seeds
from subquad.words import between

SAME = 1.1
"""Largest ratio to the time at the shortest context that counts as the same time."""


def judge(folder: Path, scale: str) -> list[Verdict]:
    """Returns a verdict on each claim."""
    trials = list(SCALES[scale].trials())
    trained = finished_rows(folder, trials)
    verdicts = [*helps(trained, trials, EVEN, WINDOW), *helps(trained, trials, STICKY, EVEN)]
    return [*verdicts, *constant(part_rows(folder / "context", "context") or [])]


def helps(trained: Mapping[str, Sequence[Row]], trials: Sequence[Trial], better: str, worse: str) -> Iterator[Verdict]:
    """Whether the intervals of the accuracy over seeds lie apart, at each length. Overlapping intervals leave it open."""
    for length in dict.fromkeys(trial.length for trial in trials):
        planned = {
            variant: [trial for trial in trials if (trial.variant, trial.length) == (variant, length)]
            for variant in (better, worse)
        }
        claim = f"{better} answers better than {worse} at {length} tokens"
        done = {variant: [trial for trial in group if trial.name in trained] for variant, group in planned.items()}
        if any(len(done[variant]) < len(group) for variant, group in planned.items()):
            counts = ", ".join(f"{len(done[variant])} of {len(group)} with {variant}" for variant, group in planned.items())
            yield Verdict(claim, None, f"runs done: {counts}")
            continue
        high, low = (
            mean_over_seeds([last_value(trained[trial.name], "token_accuracy") for trial in group])
            for group in done.values()
        )
        figures = (
            f"accuracy {_share(high)} against {_share(low)}, a difference of {100 * (high.value - low.value):.1f} points; "
            f"95% intervals over {len(done[better])} seeds"
        )
        yield Verdict(claim, is_above(high, low), figures)


def _share(accuracy: Interval) -> str:
    return between(accuracy.as_share, ".1%")


def constant(rows: Sequence[Row]) -> Iterator[Verdict]:
    """Whether the next segment costs the same after the longest context as after the shortest."""
    by_context = {
        metric: {row["context"]: row for row in rows if row["metric"] == metric} for metric in ("times_first", "state_bytes")
    }
    contexts = sorted(by_context["state_bytes"])
    if len(contexts) < 2:
        return
    first, longest = contexts[0], contexts[-1]
    times, sizes = by_context["times_first"][longest], {row["value"] for row in by_context["state_bytes"].values()}
    yield Verdict(
        f"the next segment costs after {longest} tokens what it costs after {first}",
        all_held([at_most(Interval.of_row(times), SAME), len(sizes) == 1]),
        f"{between(Interval.of_row(times), '.3f')} times the time; "
        f"the state has {', '.join(f'{size:,}' for size in sorted(sizes))} bytes at every context",
    )
