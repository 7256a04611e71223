"""Plans how much is measured, and the batch size: all that the options ask for, or as much as fits into the time."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import nn

from subquad.checking import Count, Whole
from subquad.conversion.budget import CALIBRATION, HEADS, PROBE, QUALITY, Budget
from subquad.conversion.convertible import Convertible, some_of
from subquad.conversion.heads import head_rows
from subquad.conversion.options import ConversionOptions
from subquad.conversion.recipes import TRAINED, Phase, counts
from subquad.conversion.schedule import SHORTEST
from subquad.conversion.vectors import FEW

WATCHED = 4  # number of quality measurements while a stage trains
LENGTHS = 6  # largest number of different text lengths
LEAST = 2  # smallest number of texts of each length: a single one has no neighbour
TEST_SECONDS, DEVELOPMENT_SECONDS = 20.0, 8.0  # time limits of one quality measurement, for first figures in a minute
HEADS_LENGTH, HEADS_TEXTS = 256, 4  # length and number of the texts whose attention matrices are compared
EXCESS = 2  # factor by which texts longer than the reach may exceed the time
SENTENCE = 64  # tokens of one sentence of a pair, including padding
READINGS = 2  # timed readings of each text when the pace is measured
STEP = 4  # cost of a training step in readings of a batch: teacher forward, student forward and backward
CALIBRATED = 12  # number of batches for calibration and for the choice of layers
LEAST_STEPS = 20  # smallest number of steps of a stage: if fewer fit, batches are made smaller


@dataclass(frozen=True)
class Plan:
    """How much is measured, and on which texts."""

    lengths: list[Count]  # lengths of texts in tokens, longest first
    tests: Count  # number of test texts of each length
    pairs: Whole  # number of sentence pairs
    heads_length: Whole  # length in tokens of the texts whose attention matrices are compared
    heads_texts: Whole  # number of texts whose attention matrices are compared
    batch_tokens: Count  # number of tokens in a training step
    calibrated: Count = CALIBRATED  # number of batches for calibration and for the choice of layers
    watched: Count = WATCHED  # number of quality measurements while a stage trains, including the one at its end
    is_limited: bool = False  # whether the plan was reduced to fit into the time

    @property
    def developments(self) -> int:
        """Number of development texts of each length: half as many as test texts, as they are measured more often."""
        return max(LEAST, (self.tests + 1) // 2)


class Pace(NamedTuple):
    """Seconds that a converted model takes to read: a constant for each batch, plus a constant for each token."""

    batch: float
    token: float

    def read(self, texts: int, length: int) -> float:
        """Seconds to read a batch of `texts` texts of `length` tokens each."""
        return self.batch + self.token * texts * length


def whole_plan(original: Convertible, options: ConversionOptions) -> Plan:
    """Returns the plan that measures all that the options ask for."""
    lengths = list(halves(original.longest))
    tests = max(LEAST, options.texts // len(lengths))
    pairs = original.pairs()
    return Plan(
        lengths=lengths,
        tests=tests,
        pairs=0 if pairs is None else len(pairs.scores),
        heads_length=min(HEADS_LENGTH, original.longest),
        heads_texts=HEADS_TEXTS,
        batch_tokens=options.batch_tokens,
    )


def halves(longest: int, factor: int = 2) -> Iterator[int]:
    """Yields lengths from `longest` down, each divided by `factor`."""
    for at in range(LENGTHS):
        if at and longest // factor**at < SHORTEST:
            return
        yield longest // factor**at


def find_pace(read: Callable[[int], object], longest: int, now: Callable[[], float], most: float) -> Pace:
    """Times `read` on longer and longer texts, until they reach `longest` tokens or one takes more than `most` seconds.

    Each text is read twice if there is time, and the faster reading counts: other load on the machine only slows it down.
    """

    def seconds(length: int) -> float:
        taken: list[float] = []
        while len(taken) < READINGS and sum(taken) <= most:
            begun = now()
            read(length)
            taken.append(now() - begun)
        return min(taken)

    shortest = min(2 * SHORTEST, longest)
    read(shortest)  # warms up
    first = last = seconds(shortest)
    length = shortest
    while length < longest and last <= most:
        length = min(longest, 4 * length)
        last = seconds(length)
    if length == shortest:
        return Pace(0.0, first / shortest)
    token = max(0.0, last - first) / (length - shortest)
    return Pace(max(0.0, first - token * shortest), token)


def fit_plan(whole: Plan, pace: Pace, phases: Sequence[Phase], seconds: float, reach: float, *, encodes: bool) -> Plan:
    """Returns the largest plan whose quality measurements in all phases take at most `seconds`.

    The number of texts is reduced first, then every second length, then measurements within a stage, then the longest
    texts. The longest texts stay at least twice as long as the mechanism's reach, even if that takes up to twice the time:
    shorter texts do not distinguish a good model from a bad one.
    """
    all_lengths = list(halves(whole.lengths[0]))
    tops = [top for at, top in enumerate(all_lengths) if not at or top >= 2 * reach]
    for top in tops:
        for factor, watched in ((2, whole.watched), (4, whole.watched), (4, 1)):
            lengths = list(halves(top, factor))
            most = max(LEAST, whole.tests * len(whole.lengths) // len(lengths))
            for tests in range(most, LEAST - 1, -1):
                plan = _with_texts(whole, lengths, tests, watched)
                test, development = look_seconds(plan, pace, encodes=encodes)
                fits = all_seconds(plan, pace, phases, encodes=encodes) <= seconds
                if fits and test <= TEST_SECONDS and development <= DEVELOPMENT_SECONDS:
                    return plan
    long, short = (_with_texts(whole, [top], LEAST, watched=1) for top in (tops[-1], all_lengths[-1]))
    return long if all_seconds(long, pace, phases, encodes=encodes) <= EXCESS * seconds else short


def _with_texts(whole: Plan, lengths: list[int], tests: int, watched: int) -> Plan:
    affordable = tests * sum(lengths) // (2 * SENTENCE)
    pairs = min(whole.pairs, affordable) if affordable >= FEW else 0
    return replace(whole, lengths=lengths, tests=tests, pairs=pairs, heads_texts=1, watched=watched, is_limited=True)


def all_seconds(plan: Plan, pace: Pace, phases: Sequence[Phase], *, encodes: bool) -> float:
    """Seconds that all quality measurements of these phases take."""
    often = counts(phases, plan.watched)
    test, development = look_seconds(plan, pace, encodes=encodes)
    return often.test * test + often.development * development


def look_seconds(plan: Plan, pace: Pace, *, encodes: bool) -> tuple[float, float]:
    """Seconds of one measurement on the test texts, and of one on the development texts."""
    longest = plan.lengths[0]
    test = sum(pace.read(plan.tests, length) for length in plan.lengths)
    if not encodes:
        return test, pace.read(plan.developments, longest)
    test += 2 * pace.read((plan.tests + 1) // 2, longest)  # the texts as they are, and with an excerpt replaced
    test += 2 * pace.read(plan.pairs, SENTENCE) if plan.pairs else 0.0
    return test, sum(pace.read(plan.developments, length) for length in plan.lengths)


def fit_heads(
    plan: Plan, look: Callable[[int], object], count: int, now: Callable[[], float], seconds: float
) -> tuple[Plan, float]:
    """Fits the size of the compared attention matrices into `seconds` for `count` looks; also returns one look's time."""
    fitting, taken = 0, 0.0
    for length in reversed(list(halves(plan.heads_length))):
        begun = now()
        look(length)
        last = now() - begun
        if count * last > seconds:
            break
        fitting, taken = length, last
        if 4 * count * last > seconds:
            break
    return replace(plan, heads_length=fitting, heads_texts=plan.heads_texts if fitting else 0), taken


def fit_batch(plan: Plan, pace: Pace, seconds: float) -> Plan:
    """Reduces the batch size until a stage of `seconds` has enough steps, down to one text."""
    longest = plan.lengths[0]
    fitting = seconds / LEAST_STEPS / (STEP * max(pace.token, 1e-12))
    texts = max(1, int(min(plan.batch_tokens, fitting) // longest))
    return replace(plan, batch_tokens=min(plan.batch_tokens, texts * longest))


def fit_calibration(plan: Plan, pace: Pace, seconds: float) -> Plan:
    """Reduces the number of calibration batches to those that teacher and student can read in `seconds`."""
    batch = 2 * pace.read(max(1, plan.batch_tokens // plan.lengths[0]), plan.lengths[0])
    return replace(plan, calibrated=max(1, min(plan.calibrated, int(seconds / max(batch, 1e-12)))))


def make_plan(
    whole: Plan, original: Convertible, student: nn.Module, budget: Budget, phases: Sequence[Phase], reach: float
) -> tuple[Plan, float]:
    """Times the student on a few texts; returns a plan that fits into the budget, and the seconds of a training step."""
    encodes = original.kind == "encoder"

    @torch.no_grad()
    def read(length: int) -> None:
        held_out = original.held_out("development", 1, length, 0)
        original.outputs(student, some_of(held_out, slice(1)), logits=not encodes)

    def look(length: int) -> None:
        head_rows(original, student, some_of(original.held_out("development", 1, length, 0), slice(1)))

    with budget.measuring("pace"):
        pace = find_pace(read, original.longest, budget.now, PROBE * budget.seconds)
        plan = fit_plan(whole, pace, phases, budget.for_measuring(QUALITY), reach, encodes=encodes)
        heads_looks = counts(phases, plan.watched).heads + 1
        plan, heads = fit_heads(plan, look, heads_looks, budget.now, budget.for_measuring(HEADS))
    test, development = look_seconds(plan, pace, encodes=encodes)
    budget.spent.latest |= {"test": test, "development": development, "heads": heads}
    shares = [budget.for_training(phase, phases, phases, plan.watched) for phase in phases if phase.does in TRAINED]
    plan = fit_calibration(fit_batch(plan, pace, min(shares)), pace, CALIBRATION * budget.seconds)
    return plan, STEP * pace.read(max(1, plan.batch_tokens // plan.lengths[0]), plan.lengths[0])


def left_out(plan: Plan, whole: Plan) -> str:
    """Describes what `plan` leaves out of the whole plan; an empty string if nothing."""
    parts = []
    if (had := whole.tests * len(whole.lengths)) > (has := plan.tests * len(plan.lengths)):
        parts.append(f"{has} test texts in place of {had}")
    if whole.lengths[0] > plan.lengths[0]:
        parts.append(f"texts of up to {plan.lengths[0]} tokens in place of {whole.lengths[0]}")
    if whole.pairs > plan.pairs:
        parts.append(f"{plan.pairs} pairs in place of {whole.pairs}")
    if not plan.heads_texts:
        parts.append("no spectra of heads")
    elif plan.heads_length < whole.heads_length:
        parts.append(f"spectra of heads on {plan.heads_length} tokens in place of {whole.heads_length}")
    if plan.watched < whole.watched:
        parts.append("quality at the end of each stage only")
    if plan.batch_tokens < whole.batch_tokens:
        parts.append(f"batches of {plan.batch_tokens} tokens in place of {whole.batch_tokens}")
    if plan.calibrated < whole.calibrated:
        parts.append(f"calibration on {plan.calibrated} batches in place of {whole.calibrated}")
    return ", ".join(parts)
