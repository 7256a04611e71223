"""How much is measured and learned from at a time: all that was asked for, or as much as fits into the time."""

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

WATCHED = 4  # looks at quality while a stage trains
LENGTHS = 6  # largest number of lengths of texts
LEAST = 2  # texts of each length, however short the time is: one has no neighbour
TEST_SECONDS, DEVELOPMENT_SECONDS = 20.0, 8.0  # of one look at the texts, so that first figures are there within a minute
HEADS_LENGTH, HEADS_TEXTS = 256, 4  # texts whose attention matrices are compared
EXCESS = 2  # times the seconds that texts longer than the reach may take
SENTENCE = 64  # tokens of one of two sentences that are compared, padding among them
READINGS = 2  # of each text by which the pace is found out
STEP = 4  # times as long as reading a batch takes a step: the original reads it, the student reads it, and its backward
CALIBRATED = 12  # batches that calibration, and the choice of layers, look at
LEAST_STEPS = 20  # steps that a stage is to have: with fewer, batches are made smaller


@dataclass(frozen=True)
class Plan:
    """What is measured, and on how much."""

    lengths: list[Count]  # tokens of texts, longest first
    tests: Count  # test texts of each length
    pairs: Whole  # pairs of sentences
    heads_length: Whole  # tokens of the texts whose attention matrices are compared
    heads_texts: Whole
    batch_tokens: Count  # in a step
    calibrated: Count = CALIBRATED  # batches that calibration, and the choice of layers, look at
    watched: Count = WATCHED  # looks at quality while a stage trains, the one at its end among them
    is_limited: bool = False  # whether it was made to fit into a time

    @property
    def developments(self) -> int:
        """Development texts of each length: half as many as test texts, as they are looked at more often."""
        return max(LEAST, (self.tests + 1) // 2)


class Pace(NamedTuple):
    """Seconds in which a converted model reads a batch: some for each batch, and some for each token."""

    batch: float
    token: float

    def read(self, texts: int, length: int) -> float:
        """Seconds for so many texts of a length."""
        return self.batch + self.token * texts * length


def whole_plan(original: Convertible, options: ConversionOptions) -> Plan:
    """All that was asked for."""
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
    """Lengths from the longest down, each half of the one before, or another part of it."""
    for at in range(LENGTHS):
        if at and longest // factor**at < SHORTEST:
            return
        yield longest // factor**at


def find_pace(read: Callable[[int], object], longest: int, now: Callable[[], float], most: float) -> Pace:
    """Reads texts that become longer, until they are as long as can be or one takes more than `most` seconds.

    Each is read twice if there is time, and the faster reading counts: anything else that the machine does makes it slower.
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
    """As many texts, and as long ones, as all phases can look at in some seconds.

    Texts are given up first, then every second length, then looks on the way, then the longest texts. But the longest stay
    twice as long as the mechanism's reach, even if that takes up to twice the time: shorter ones do not tell a good model
    from a bad one.
    """
    every = list(halves(whole.lengths[0]))
    tops = [top for at, top in enumerate(every) if not at or top >= 2 * reach]
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
    long, short = (_with_texts(whole, [top], LEAST, watched=1) for top in (tops[-1], every[-1]))
    return long if all_seconds(long, pace, phases, encodes=encodes) <= EXCESS * seconds else short


def _with_texts(whole: Plan, lengths: list[int], tests: int, watched: int) -> Plan:
    affordable = tests * sum(lengths) // (2 * SENTENCE)
    pairs = min(whole.pairs, affordable) if affordable >= FEW else 0
    return replace(whole, lengths=lengths, tests=tests, pairs=pairs, heads_texts=1, watched=watched, is_limited=True)


def all_seconds(plan: Plan, pace: Pace, phases: Sequence[Phase], *, encodes: bool) -> float:
    """How long all looks of some phases take."""
    often = counts(phases, plan.watched)
    test, development = look_seconds(plan, pace, encodes=encodes)
    return often.test * test + often.development * development


def look_seconds(plan: Plan, pace: Pace, *, encodes: bool) -> tuple[float, float]:
    """How long a look at the test texts takes, and one at the development texts."""
    longest = plan.lengths[0]
    test = sum(pace.read(plan.tests, length) for length in plan.lengths)
    if not encodes:
        return test, pace.read(plan.developments, longest)
    test += 2 * pace.read((plan.tests + 1) // 2, longest)  # with a stretch replaced, and without
    test += 2 * pace.read(plan.pairs, SENTENCE) if plan.pairs else 0.0
    return test, sum(pace.read(plan.developments, length) for length in plan.lengths)


def fit_heads(
    plan: Plan, look: Callable[[int], object], count: int, now: Callable[[], float], seconds: float
) -> tuple[Plan, float]:
    """Attention matrices as large as can be looked at so often in some seconds, and how long one look takes."""
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
    """Batches so small that a stage of some seconds has enough steps, but no smaller than one text."""
    longest = plan.lengths[0]
    fitting = seconds / LEAST_STEPS / (STEP * max(pace.token, 1e-12))
    texts = max(1, int(min(plan.batch_tokens, fitting) // longest))
    return replace(plan, batch_tokens=min(plan.batch_tokens, texts * longest))


def fit_calibration(plan: Plan, pace: Pace, seconds: float) -> Plan:
    """As many batches to calibrate on as are read in some seconds, by the original and for the student."""
    batch = 2 * pace.read(max(1, plan.batch_tokens // plan.lengths[0]), plan.lengths[0])
    return replace(plan, calibrated=max(1, min(plan.calibrated, int(seconds / max(batch, 1e-12)))))


def make_plan(
    whole: Plan, original: Convertible, student: nn.Module, budget: Budget, phases: Sequence[Phase], reach: float
) -> tuple[Plan, float]:
    """A plan that fits into the time, from how long the converted model takes for a few texts; and the seconds of a step."""
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
    """What a plan does without, in words. Nothing where it does without nothing."""
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
