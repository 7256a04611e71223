"""The decision of a race: which attention is recommended, why, and what is given up, in three sentences.

The rules, in this order:

1. If not even the best contestant is better than the trivial answer, nothing can be told.
2. If no attention is better than the best model without attention, that model is recommended.
3. Otherwise the standard is softmax, or an attention that is better than softmax. The fastest attention that is level with
   the standard is recommended if it is clearly faster than the standard, and else the standard itself.

"Better" and "level" are said of paired intervals only. Level means that not more is lost than a margin, with 95% certainty.
"""

import math
from collections.abc import Mapping, Sequence
from statistics import NormalDist
from typing import Literal, NamedTuple

from subquad.choose.standings import READ_AT, SOFTMAX, Contestant, Standings
from subquad.statistics import ENDS, Interval
from subquad.words import amount, capitalized, compact, digits, duration

WORTH = 1.2
"""Speed-up from which on another attention is recommended instead of the standard."""
LEVEL_SHARE = 0.03
"""Default margin of "level": this share of what the best contestant gains over the trivial answer."""
LEVEL_WITHOUT_TRIVIAL = 0.01
"""The same where no trivial answer is known, as a share of the best contestant's score."""
ENOUGH = 0.25
"""Share of the usual number of training steps below which a race says that its runs were short."""
LONGER = 1.3
"""How many times as many steps runs must have for their gain to tell whether attentions are still learning."""

Kind = Literal["attention", "softmax", "rival", "nothing", "none", "unknown"]
Level = Literal["better", "level", "worse", "unclear"]


class Wishes(NamedTuple):
    """What the user asks of the recommended attention; None where nothing is asked."""

    quality_loss: float | None = None
    """Largest loss of quality, in the metric's unit."""
    max_seconds: float | None = None
    """Largest time of a forward pass through all layers for a batch of sequences of the length `READ_AT`."""
    max_memory: float | None = None
    """Largest peak memory of one attention in bytes, forward and backward, for a batch of the longest sequences."""


class Decision(NamedTuple):
    """The recommendation, and where each attention stands."""

    kind: Kind
    chosen: str
    """Name of the recommended contestant; empty if nothing is recommended."""
    sentences: tuple[str, ...]
    margin: float
    levels: Mapping[str, Level]
    """Each attention beside the standard, which is itself level."""
    standard: str
    front: tuple[str, ...]


def decide(standings: Standings, wishes: Wishes, gives_up: Mapping[str, str], usual_steps: int = 0) -> Decision:
    """Returns the decision.

    Args:
        standings: what is known of each contestant.
        wishes: what the user asks of the recommended attention.
        gives_up: what a user does without, for each attention.
        usual_steps: number of training steps of this task without a budget; 0 if it has none.
    """
    attentions = standings.of("attention")
    if not attentions:
        sentence = "Nothing was scored on the test yet: go on with --resume, or give a larger --budget."
        return Decision("unknown", "", (sentence,), 0.0, {}, "", ())
    margin = wishes.quality_loss if wishes.quality_loss is not None else default_margin(standings)
    allowed = [each for each in attentions if _fits(each, wishes)]
    standard = find_standard(standings, allowed or attentions)
    levels = {each.name: level_of(standings, each.name, standard.name, margin) for each in attentions}
    front = tuple(standings.front())

    def decision(kind: Kind, chosen: str, *sentences: str) -> Decision:
        said = (*sentences, _few_steps(attentions, usual_steps) or _still_learning(standings, margin))
        return Decision(kind, chosen, tuple(filter(None, said)), margin, levels, standard.name, front)

    if (doubt := _nothing_told(standings)) is not None:
        return decision("nothing", "", *doubt)
    if (rival := _rival(standings)) is not None:
        return decision("rival", rival.name, *_rival_sentences(standings, rival))
    if not allowed:
        return decision("none", "", *_none_sentences(attentions, wishes))
    chosen = _cheapest(allowed, standard, levels)
    kind: Kind = "softmax" if chosen.name == SOFTMAX else "attention"
    return decision(
        kind, chosen.name, *_sentences(standings, chosen, standard, levels, margin), _given_up(chosen, standings, gives_up)
    )


def default_margin(standings: Standings) -> float:
    """The loss below which contestants count as level, if the user names none."""
    best = standings.of("attention", "rival")[0].quality.value
    if trivial := standings.of("trivial"):
        return LEVEL_SHARE * abs(best - trivial[0].quality.value)
    return LEVEL_WITHOUT_TRIVIAL * abs(best)


def find_standard(standings: Standings, attentions: Sequence[Contestant]) -> Contestant:
    """Softmax if it is among the attentions and none of them is better, else the best of them.

    The standard of conversions is the original model, also where one is better: each was trained on the texts in addition.
    """
    exact = next((each for each in attentions if each.name == SOFTMAX), None)
    best = attentions[0]
    if exact is None:
        return best
    if standings.is_conversion:
        return exact
    gain = standings.advantage(best.name, SOFTMAX)
    return best if gain is not None and widened(gain, len(attentions) - 1).low > 0 else exact


def level_of(standings: Standings, name: str, standard: str, margin: float) -> Level:
    """Where an attention stands beside the standard, by the paired interval of its advantage."""
    if name == standard:
        return "level"
    advantage = standings.advantage(name, standard)
    if advantage is None or not math.isfinite(advantage.low):
        return "unclear"
    if advantage.low > 0:
        return "better"
    if advantage.low >= -margin:
        return "level"
    return "worse" if advantage.high < 0 else "unclear"


def widened(found: Interval, comparisons: int) -> Interval:
    """An interval that holds for the best of so many comparisons together (Bonferroni's correction)."""
    quantile = NormalDist().inv_cdf
    factor = quantile(1 - ENDS[0] / max(1, comparisons)) / quantile(ENDS[1])
    return Interval(
        found.value, found.value - factor * (found.value - found.low), found.value + factor * (found.high - found.value)
    )


def _fits(contestant: Contestant, wishes: Wishes) -> bool:
    """Whether an attention keeps the limits; one whose cost is not known does not."""
    limits = ((contestant.seconds, wishes.max_seconds), (contestant.memory, wishes.max_memory))
    return all(limit is None or (known is not None and known <= limit) for known, limit in limits)


def _nothing_told(standings: Standings) -> tuple[str, ...] | None:
    """Sentences if not even the best contestant is better than the best trivial answer, or None."""
    trivial, others = standings.of("trivial"), standings.of("attention", "rival")
    if not trivial:
        return None
    gains = [(each, standings.advantage(each.name, trivial[0].name)) for each in others]
    told = [each for each, gain in gains if gain is not None and widened(gain, len(others)).low > 0]
    if told:
        return None
    best, gain = next(((each, gain) for each, gain in gains if gain is not None), (None, None))
    if best is None or gain is None:
        return None
    return (
        f"Nothing can be told: no model is better than {trivial[0].name}, which has {_score(standings, trivial[0])}.",
        f"The best model, {best.name}, has {_score(standings, best)}, an advantage of {_signed(gain)}.",
        "More data, other columns or a larger --budget may show something.",
    )


def _rival(standings: Standings) -> Contestant | None:
    """The best model without attention, if no attention is better than it."""
    rivals, attentions = standings.of("rival"), standings.of("attention")
    if not rivals:
        return None
    gains = [standings.advantage(each.name, rivals[0].name) for each in attentions]
    is_beaten = any(gain is not None and widened(gain, len(attentions)).low > 0 for gain in gains)
    return None if is_beaten else rivals[0]


def _rival_sentences(standings: Standings, rival: Contestant) -> tuple[str, ...]:
    best = standings.of("attention")[0]
    gain = standings.advantage(best.name, rival.name)
    by_how_much = "" if gain is None else f"; its advantage is {_signed(gain)}"
    return (
        f"{capitalized(rival.name)}: attention adds nothing here that can be shown.",
        f"It has {_score(standings, rival)}, and the best attention, {best.name}, {_score(standings, best)}{by_how_much}.",
        "What is given up: nothing that was measured; the best attention is kept all the same, for more data.",
    )


def _none_sentences(attentions: Sequence[Contestant], wishes: Wishes) -> tuple[str, ...]:
    asked = {"--max-seconds": wishes.max_seconds, "--max-memory": wishes.max_memory}
    names = " and ".join(name for name, limit in asked.items() if limit is not None)
    costs = "; ".join(f"{each.name}: {_cost(each)}" for each in attentions)
    return (f"No attention keeps {names}: allow more, or shorten the sequences.", f"What was measured: {costs}.")


def _cheapest(allowed: Sequence[Contestant], standard: Contestant, levels: Mapping[str, Level]) -> Contestant:
    """The fastest attention that is level with the standard, if it is clearly faster, and else the standard."""
    good = [each for each in allowed if levels[each.name] in ("better", "level") and each.seconds is not None]
    if standard.seconds is None or not good:
        return standard
    fastest = min(good, key=lambda each: each.seconds or 0.0)
    return fastest if standard.seconds >= WORTH * (fastest.seconds or 0.0) else standard


def _sentences(
    standings: Standings, chosen: Contestant, standard: Contestant, levels: Mapping[str, Level], margin: float
) -> tuple[str, str]:
    """The recommendation with its reason, and the evidence."""
    score = f"It has {_score(standings, chosen)} on the test"
    others = [each for each in standings.of("attention") if each.name != chosen.name]
    faster = [each for each in others if _speedup(each, chosen) >= WORTH]
    if chosen.name != standard.name:
        gain = standings.advantage(chosen.name, standard.name)
        level = "better than" if levels[chosen.name] == "better" else "level with"
        speed = f"{digits(_speedup(chosen, standard))} times as fast at {_length(standings)} positions"
        counted = f"a loss of up to {compact(margin)} counts as level"
        evidence = f"{score}; its advantage over {standard.name} is {_signed(gain)}, and {counted}."
        return f"{capitalized(chosen.name)}: it is {level} {standard.name} on your sequences and {speed}.", evidence
    if not faster and chosen.name == SOFTMAX:
        first = (
            f"Softmax: your sequences are short. Nine of ten have at most {_length(standings)} positions, where nothing "
            f"that was raced is {WORTH:g} times as fast."
        )
        return first, f"{score}{_next_best(standings, chosen, others)}."
    if not faster:
        return (
            f"{capitalized(chosen.name)}: it is better than softmax, and nothing is faster.",
            f"{score}{_next_best(standings, chosen, others)}.",
        )
    lost = "; ".join(_why_not(standings, each, chosen, levels[each.name]) for each in faster[:3])
    better = "" if chosen.name == SOFTMAX else "it is better than softmax, and "
    return (
        f"{capitalized(chosen.name)}: {better}nothing faster is shown to be level with it.",
        f"{score}. Faster ones: {lost}.",
    )


def _next_best(standings: Standings, chosen: Contestant, others: Sequence[Contestant]) -> str:
    if not others:
        return ""
    gain = standings.advantage(others[0].name, chosen.name)
    return f"; {others[0].name} has {_score(standings, others[0])}" + (
        "" if gain is None else f", an advantage of {_signed(gain)}"
    )


def _why_not(standings: Standings, other: Contestant, chosen: Contestant, level: Level) -> str:
    gain = standings.advantage(other.name, chosen.name)
    word = {"worse": "is worse", "unclear": "is not clearly level"}.get(level, "is level")
    speed = f"{digits(_speedup(other, chosen))} times as fast"
    return f"{other.name} ({speed}) {word}" + ("" if gain is None else f", an advantage of {_signed(gain)}")


def _given_up(chosen: Contestant, standings: Standings, gives_up: Mapping[str, str]) -> str:
    words = gives_up.get(chosen.name, "")
    return f"What is given up: {words}." if words else ""


def _few_steps(attentions: Sequence[Contestant], usual_steps: int) -> str:
    """A warning if all final runs were far shorter than the task's trainings usually are."""
    most = max((each.steps or 0.0 for each in attentions), default=0.0)
    if not most or most >= ENOUGH * usual_steps:
        return ""
    return (
        f"The final runs had {most:,.0f} training steps at most, where `subquad train` takes {usual_steps:,}: a larger "
        "--budget may change the answer."
    )


def _still_learning(standings: Standings, margin: float) -> str:
    """A warning if longer runs were better by more than the margin: runs that are longer still might change the answer."""
    sign = 1.0 if standings.good == "high" else -1.0
    gains = [
        (sign * (known.after_more - known.after_few), each.name, known)
        for each in standings.of("attention")
        if (known := each.progress) is not None and known.more_steps >= LONGER * known.few_steps
    ]
    gain, name, known = max(gains, default=(0.0, "", None))
    if known is None or gain <= margin:
        return ""
    return (
        f"The attentions were still learning: {name} had {compact(known.after_few)} in development after "
        f"{known.few_steps:,.0f} steps and {compact(known.after_more)} after {known.more_steps:,.0f}; a larger --budget may "
        "change the answer."
    )


def _speedup(ours: Contestant, theirs: Contestant) -> float:
    return 1.0 if not ours.seconds or not theirs.seconds else theirs.seconds / ours.seconds


def _length(standings: Standings) -> str:
    length = standings.lengths.get(READ_AT)
    return "those" if length is None else f"{length:,.0f}"


def _cost(contestant: Contestant) -> str:
    seconds = "an unknown time" if contestant.seconds is None else duration(contestant.seconds)
    memory = "unknown memory" if contestant.memory is None else amount(contestant.memory)
    return f"{seconds} and {memory}"


def _score(standings: Standings, contestant: Contestant) -> str:
    """A score with its interval, such as "an accuracy of 0.91 (0.9 to 0.92)" or "4.31 (4.1 to 4.5) nats per token"."""
    name = standings.metric.replace("_", " ")
    article = "an" if name[:1] in "aeiou" or name[:3] == "nll" else "a"
    low, high = contestant.quality.low, contestant.quality.high
    spread = f" ({compact(low)} to {compact(high)})" if math.isfinite(low) and math.isfinite(high) else ""
    value = f"{compact(contestant.quality.value)}{spread}"
    return f"{value} {name}" if name.startswith(("nats ", "bits ")) else f"{article} {name} of {value}"


def _signed(gain: Interval | None) -> str:
    if gain is None:
        return "unknown"
    if not math.isfinite(gain.low):
        return f"{gain.value:+.3g} (one seed)"
    return f"{gain.value:+.3g} ({gain.low:+.3g} to {gain.high:+.3g})"
