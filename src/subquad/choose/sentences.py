"""What a decision says: the answer with its reason, the evidence, and what is given up or what to do next."""

import math
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from subquad.choose.standings import READ_AT, SOFTMAX, WORTH, Contestant, Standings, is_length, speedup
from subquad.statistics import Interval
from subquad.words import amount, capitalized, compact, digits, duration, to_precision

Level = Literal["better", "level", "worse", "unclear"]
TIME_NOISE = 1.1
"""Ratio by which times of the same attention may differ between two measurements."""


class Doubt(NamedTuple):
    """Why the final runs of a race are too short for an answer."""

    steps: float
    """Training steps of the longest final runs."""
    usual_steps: int
    """Steps of `subquad train`; 0 if there is no usual number."""
    learning: Contestant | None = None
    """An attention that is still learning and would change the answer; None if all runs are far too short."""
    to_come: float = 0.0
    """By how much usual training would still improve it."""
    lead: float = 0.0
    """By how much the answer is ahead of it."""
    restless: Contestant | None = None
    """An attention that is far better than the answer with one of its seeds, though not on average."""
    is_one_seed: bool = False
    """Whether each attention has one final run only."""
    unscored: str = ""
    """An attention that is clearly faster than the answer and has no final run yet."""


def no_score(failures: Sequence[str]) -> str:
    """Says that no attention has a score on the test, and what to do."""
    if not failures:
        return "No attention was scored on the test yet: go on with --resume and a larger --budget."
    runs = "one run" if len(failures) == 1 else f"{len(failures)} runs"
    return (
        f"No attention was scored on the test: {runs} failed, the first by {failures[0]}. Change that, and start a new race."
    )


def another_length(standings: Standings) -> str:
    """Says that a limit on the time was compared with times at another length than it is for."""
    wanted = standings.lengths[READ_AT]
    return (
        f"--max-seconds was compared with times at {_length(standings)} positions: not all were measured at {wanted:,.0f}."
    )


def without_rivals(why: str) -> str:
    """Says that models without attention may be as good, as they were not judged."""
    return f"Models without attention were not judged ({why}): they may be as good."


def nothing(
    standings: Standings, trivial: Contestant, best: Contestant, gain: Interval, budget: float | None, usual_steps: int
) -> tuple[str, ...]:
    """Says that no model is better than the trivial answer, by an advantage that is widened for the number of models.

    A larger budget is proposed only if runs had less than the usual steps.
    """
    larger = "a larger --budget" if budget is None else f"a larger budget, such as --budget {said_budget(budget)},"
    if usual_steps and all((each.steps or 0.0) >= usual_steps for each in standings.of("attention")):
        larger = f"more --steps than the usual {usual_steps:,}"
    allowing = f"if one allows for taking the best of {len(standings.of('attention', 'rival'))}"
    return (
        f"Nothing can be told: no model is better than {trivial.name}, which has {score(standings, trivial)}.",
        f"The best model, {best.name}, has {score(standings, best)}, {beside(gain, 'it')} {allowing}.",
        f"More data, other columns or {larger} may show something.",
    )


def rival(standings: Standings, best: Contestant) -> tuple[str, ...]:
    """Says that a model without attention is recommended."""
    attention = standings.of("attention")[0]
    gain = standings.advantage(attention.name, best.name)
    return (
        f"{capitalized(best.name)}: attention adds nothing here that can be shown.",
        f"It has {score(standings, best)}, and the best attention, {attention.name}, "
        f"{score(standings, attention)}{_comma(gain)}.",
        "What is given up: nothing that was measured; the best attention is kept all the same, for more data.",
    )


def no_attention_fits(attentions: Sequence[Contestant], limits: Mapping[str, float | None]) -> tuple[str, ...]:
    """Says that no attention keeps the limits on time and memory, which are given by the name of their option."""
    names = " and ".join(name for name, limit in limits.items() if limit is not None)
    costs = "; ".join(f"{each.name}: {_cost(each)}" for each in attentions)
    said = (f"No attention keeps {names}: allow more, or shorten the sequences.", f"What was measured: {costs}.")
    if "unknown" not in costs:
        return said
    return (
        *said,
        "What is unknown was not measured and counts as too much: a larger --budget gives more time for that.",
    )


def attention(
    standings: Standings,
    chosen: Contestant,
    standard: Contestant,
    levels: Mapping[str, Level],
    margin: float,
    gives_up: str,
) -> tuple[str, ...]:
    """Recommends an attention with the reason and the evidence, and says what a user does without, if that is known."""
    given_up = [f"What is given up: {gives_up}."] if gives_up else []
    return (*_reason_and_evidence(standings, chosen, standard, levels, margin), *given_up)


def _reason_and_evidence(
    standings: Standings, chosen: Contestant, standard: Contestant, levels: Mapping[str, Level], margin: float
) -> tuple[str, str]:
    has = f"It has {score(standings, chosen)} on the test"
    others = [each for each in standings.of("attention") if each.name != chosen.name]
    faster = [each for each in others if speedup(each, chosen) >= WORTH]
    close_calls = _close_calls(chosen, standard, [each for each in others if levels[each.name] in ("better", "level")])
    if chosen.name != standard.name:
        gain = standings.advantage(chosen.name, standard.name)
        level = "better than" if levels[chosen.name] == "better" else "level with"
        speed = f"{digits(speedup(chosen, standard))} times as fast at {_length(standings)} positions"
        evidence = f"{has}{_comma(gain, standard.name)}; a loss of up to {compact(margin)} counts as level."
        first = f"{capitalized(chosen.name)}: it is {level} {standard.name} on your sequences and {speed}."
        return first, evidence + close_calls
    if not faster and chosen.name == SOFTMAX:
        return _short_sequences(standings), f"{has}{_next_best(standings, chosen, others)}.{close_calls}"
    why = "" if chosen.name == SOFTMAX else f"{_rank(levels.get(SOFTMAX))}, and "
    if chosen.name != SOFTMAX and levels.get(SOFTMAX, "worse") != "worse":
        has += _comma(standings.advantage(chosen.name, SOFTMAX), SOFTMAX)
    if not faster:
        first = f"{capitalized(chosen.name)}: {why}nothing that was {_raced(standings)} is {WORTH:g} times as fast."
        return first, f"{has}{_next_best(standings, chosen, others)}.{close_calls}"
    lost = "; ".join(_why_not(standings, each, chosen, levels[each.name]) for each in faster[:3])
    first = f"{capitalized(chosen.name)}: {why}nothing faster is shown to be level with it."
    return first, f"{has}. Faster ones: {lost}.{close_calls}"


def softmax_by_cost(standings: Standings, softmax: Contestant, doubt: Doubt, budget: float | None) -> tuple[str, str, str]:
    """Recommends softmax because nothing is faster, though qualities are not known yet."""
    return (
        _short_sequences(standings),
        f"That is by the cost alone: {_reason(doubt, SOFTMAX)}.",
        f"It has {score(standings, softmax)} on the test so far. {_larger(doubt, budget)}",
    )


def too_short(standings: Standings, best: Contestant, doubt: Doubt, budget: float | None) -> tuple[str, str, str]:
    """Says that nothing is recommended, what is known all the same, and the budget that would tell more."""
    costs = [each for each in standings.of("attention") if each.seconds is not None]
    costs.sort(key=lambda each: each.seconds or 0.0)
    known = ", ".join(f"{each.name} {duration(each.seconds or 0.0)}" for each in costs)
    said = f"What is known is the time of a forward pass at {_length(standings)} positions: {known}" if costs else ""
    leading = standings.of("attention", "rival")[0]
    first = best if best.quality.value == leading.quality.value else leading
    leads = f"first on the test so far is {first.name} with {score(standings, first)}"
    return (
        f"Nothing is recommended, as quality cannot be told yet: {_reason(doubt, best.name)}.",
        f"{said}; {leads}." if said else f"{capitalized(leads)}.",
        _larger(doubt, budget),
    )


def score(standings: Standings, contestant: Contestant) -> str:
    """A score with its interval, such as "an accuracy of 0.910 (0.901 to 0.919)" or "4.31 (4.12 to 4.50) nats per token"."""
    name = standings.metric.replace("_", " ")
    article = "an" if name[:1] in "aeiou" or name[:3] == "nll" else "a"
    found = contestant.quality
    value, low, high = (to_precision(number, found.spread) for number in found)
    said = f"{value} ({low} to {high})" if math.isfinite(found.spread) else value
    return f"{said} {name}" if name.startswith(("nats ", "bits ")) else f"{article} {name} of {said}"


def beside(gain: Interval, other: str = "") -> str:
    """An advantage with its interval, such as "0.010 behind softmax (0.022 behind to 0.002 ahead)"."""
    value, low, high = (to_precision(abs(number), gain.spread) for number in gain)
    if float(value) == 0:
        said = f"level with {other}" if other else "level"
    else:
        said = f"{value} {_side(gain.value)}" + (f" {'of ' if gain.value > 0 else ''}{other}" if other else "")
    if not math.isfinite(gain.low):
        return f"{said} (one seed)"
    if gain.low == gain.high:
        return said
    if gain.low * gain.high > 0:
        near, far = sorted((low, high), key=float)
        return f"{said} ({near} to {far})"
    return f"{said} ({low} behind to {high} ahead)"


def said_budget(seconds: float) -> str:
    """A budget as the option takes it, rounded up to a few minutes or hours, such as "15m" or "2h"."""
    minutes = math.ceil(seconds / 60)
    if minutes <= 10:
        return f"{minutes}m"
    return f"{5 * math.ceil(minutes / 5)}m" if minutes <= 90 else f"{math.ceil(minutes / 60)}h"


def _side(value: float) -> str:
    return "ahead" if value > 0 else "behind"


def _comma(gain: Interval | None, other: str = "") -> str:
    return "" if gain is None else f", {beside(gain, other)}"


def _short_sequences(standings: Standings) -> str:
    """Recommends softmax by what was measured of the costs."""
    known, wanted = standings.measured_at, standings.lengths.get(READ_AT)
    if any(each.seconds is None for each in standings.of("attention")):
        return "Softmax: not all costs were measured, and nothing is known to be faster."
    if known is not None and wanted is not None and not is_length(known, wanted):
        return f"Softmax: at {known:,.0f} positions, where costs were measured, nothing is {WORTH:g} times as fast."
    return (
        f"Softmax: your sequences are short. Nine of ten have at most {_length(standings)} positions, where nothing "
        f"that was {_raced(standings)} is {WORTH:g} times as fast."
    )


def _raced(standings: Standings) -> str:
    """What was done with all attentions: where runs failed, a faster one may have been raced and have no score."""
    return "scored" if standings.failures else "raced"


def _reason(doubt: Doubt, answer: str) -> str:
    """Why the final runs are too short, without a full stop."""
    if doubt.is_one_seed:
        return "each attention has one final run so far, which does not tell how far seeds differ"
    if doubt.unscored:
        return f"{doubt.unscored}, which is at least {WORTH:g} times as fast as {answer}, has no final run yet"
    if doubt.restless is not None:
        least, most = (compact(pick(doubt.restless.by_seed)) for pick in (min, max))
        return f"the final runs of {doubt.restless.name} differ by their seeds, with {least} to {most} on the test"
    if doubt.learning is None or doubt.learning.progress is None:
        return f"the final runs had {doubt.steps:,.0f} of the usual {doubt.usual_steps:,} training steps at most"
    name, known = doubt.learning.name, doubt.learning.progress
    gap = f"{compact(abs(doubt.lead))} {'ahead of' if doubt.lead > 0 else 'behind'} it" if doubt.lead else "level with it"
    return (
        f"{name} was still learning, with {compact(known.after_few)} in development after {known.few_steps:,.0f} steps and "
        f"{compact(known.after_more)} after {known.more_steps:,.0f}. At this pace "
        f"{'twice as many' if not doubt.usual_steps else f'the usual {doubt.usual_steps:,}'} steps add "
        f"{compact(doubt.to_come)}, and {answer} is {gap}"
    )


def _larger(doubt: Doubt, budget: float | None) -> str:
    """What to do so that final runs are long enough, or are there at all."""
    if doubt.is_one_seed or doubt.unscored:
        return "Final runs are missing: go on with --resume and a larger --budget."
    if budget is None:
        return "A larger budget lets the models learn for longer."
    return (
        f"Start again with --budget {said_budget(budget)}: by the step times measured here, final runs then have about "
        f"{doubt.usual_steps:,} steps. Fewer --mechanisms take less time."
    )


def _rank(softmax: Level | None) -> str:
    """Where the standard stands if it is not softmax, by the level of softmax beside it; None if softmax was not raced."""
    if softmax is None:
        return "it is the best of those that were raced"
    return "it is better than softmax" if softmax == "worse" else "it is the best one that keeps your limits"


def _next_best(standings: Standings, chosen: Contestant, others: Sequence[Contestant]) -> str:
    if not others:
        return ""
    gain = standings.advantage(others[0].name, chosen.name)
    return f"; {others[0].name} has {score(standings, others[0])}{_comma(gain)}"


def _close_calls(chosen: Contestant, standard: Contestant, level: Sequence[Contestant]) -> str:
    """Names attentions that are level as well and that times measured again might recommend in place of the chosen one."""
    if chosen.name == standard.name:
        names = [each.name for each in level if WORTH / TIME_NOISE <= speedup(each, chosen) < WORTH]
        return f" Level and nearly {WORTH:g} times as fast: {_or_another_run(names)}" if names else ""
    names = [each.name for each in level if each.name != standard.name and 1 / WORTH < speedup(each, chosen) < WORTH]
    said = f" About as fast and level too: {_or_another_run(names)}" if names else ""
    if speedup(chosen, standard) < WORTH * TIME_NOISE:
        said += f" It is hardly {WORTH:g} times as fast as {standard.name}, which another run may recommend."
    return said


def _or_another_run(names: Sequence[str]) -> str:
    return f"{', '.join(names)}; another run may recommend {'one of these' if len(names) > 1 else 'it'}."


def _why_not(standings: Standings, other: Contestant, chosen: Contestant, level: Level) -> str:
    gain = standings.advantage(other.name, chosen.name)
    word = {"worse": "is worse", "unclear": "is not clearly level"}.get(level, "is level")
    return f"{other.name} ({digits(speedup(other, chosen))} times as fast) {word}{_comma(gain)}"


def _length(standings: Standings) -> str:
    length = standings.measured_at or standings.lengths.get(READ_AT)
    return "those" if length is None else f"{length:,.0f}"


def _cost(contestant: Contestant) -> str:
    seconds = "an unknown time" if contestant.seconds is None else duration(contestant.seconds)
    memory = "unknown memory" if contestant.memory is None else amount(contestant.memory)
    return f"{seconds} and {memory}"
