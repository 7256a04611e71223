"""The decision of a race: which attention is recommended, why, and what is given up, in three sentences.

The rules, in this order:

1. If not even the best contestant is better than the trivial answer, nothing can be told.
2. If no attention is better than the best model without attention, that model is the answer.
3. Otherwise the standard is softmax, or an attention that is better than softmax. The fastest attention that is level with
   the standard is the answer if it is clearly faster than the standard, and else the standard itself.
4. The answer of rules 2 and 3 is recommended only if the final runs were long enough for it, see `doubt`. If they were not,
   softmax is recommended if nothing else is clearly faster, for which costs are enough, and otherwise nothing is.

"Better" and "level" are said of paired intervals only. Level means that not more is lost than a margin, with 95% certainty.
"""

import math
from collections.abc import Mapping, Sequence
from statistics import NormalDist
from typing import Literal, NamedTuple

from subquad.choose import sentences
from subquad.choose.sentences import Doubt, Level
from subquad.choose.stages import needed_budget
from subquad.choose.standings import READ_AT, SHARE, SOFTMAX, WORTH, Contestant, Standings, is_length, speedup
from subquad.statistics import ENDS, Interval

LEVEL_SHARE = 0.03
"""Default margin of "level": this share of what the best contestant gains over the trivial answer."""
LEVEL_WITHOUT_TRIVIAL = 0.01
"""The same where no trivial answer is known, as a share of the best contestant's score."""
ENOUGH, ENOUGH_TO_DENY = 0.25, 0.5
"""Shares of the usual number of training steps that final runs need: to compare attentions that learned something, and to
say that attention adds nothing. An attention may be level with guessing for long and then learn a task at once."""
LONGER = 1.3
"""How many times as many steps runs must have for their gain to tell whether attentions are still learning."""
MORE = 2.0
"""Smallest factor by which a larger budget is proposed."""

Kind = Literal["attention", "softmax", "rival", "nothing", "none", "short", "unknown"]
UNTOLD: tuple[Kind, ...] = ("nothing", "short", "unknown")
"""Kinds of decisions that say nothing about the qualities of attentions."""


class Wishes(NamedTuple):
    """What the user asks of the recommended attention; None where nothing is asked."""

    quality_loss: float | None = None
    """Largest loss of quality, in the metric's unit."""
    max_seconds: float | None = None
    """Largest time of a forward pass through all layers for a batch of sequences of the length `READ_AT`."""
    max_memory: float | None = None
    """Largest peak memory of one attention in bytes, forward and backward, for a batch of the longest sequences."""


class Training(NamedTuple):
    """How long models of the task are usually trained, and what the race had."""

    usual_steps: int = 0
    """Number of training steps of `subquad train`; 0 if there is no usual number."""
    budget: float = 0.0
    """Seconds of the race."""
    jobs: int = 1
    """Number of runs side by side."""


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


def decide(
    standings: Standings,
    wishes: Wishes,
    gives_up: Mapping[str, str],
    training: Training = Training(),  # noqa: B008
) -> Decision:
    """Returns the decision.

    Args:
        standings: what is known of each contestant.
        wishes: what the user asks of the recommended attention.
        gives_up: what a user does without, for each attention.
        training: how long models are usually trained, and the budget of the race.
    """
    attentions = standings.of("attention")
    if not attentions:
        failures = () if standings.can_go_on else standings.failures
        return Decision("unknown", "", (sentences.no_score(failures),), 0.0, {}, "", ())
    margin = wishes.quality_loss if wishes.quality_loss is not None else default_margin(standings)
    allowed = [each for each in attentions if _fits(each, wishes)]
    standard = find_standard(standings, allowed or attentions)
    levels = {each.name: level_of(standings, each.name, standard.name, margin) for each in attentions}
    answer = rival = _rival(standings)
    if answer is None and allowed:
        answer = _cheapest(allowed, standard, levels)
    doubtful = None if answer is None else doubt(standings, answer, levels, margin, training.usual_steps)
    budget = proposed_budget(standings, training)
    kind: Kind
    if (failed := _without_gain(standings)) is not None:
        kind, chosen, said = "nothing", "", sentences.nothing(standings, *failed, budget, training.usual_steps)
    elif answer is None:
        limits = {"--max-seconds": wishes.max_seconds, "--max-memory": wishes.max_memory}
        kind, chosen, said = "none", "", sentences.no_attention_fits(attentions, limits)
    elif doubtful is not None:
        levels = {name: "level" if name == standard.name else "unclear" for name in levels}
        exact = None if rival is not None or doubtful.unscored else _softmax_by_cost(allowed)
        if exact is not None:
            kind, chosen, said = "softmax", SOFTMAX, sentences.softmax_by_cost(standings, exact, doubtful, budget)
        else:
            kind, chosen, said = "short", "", sentences.too_short(standings, answer, doubtful, budget)
    elif rival is not None:
        kind, chosen, said = "rival", rival.name, sentences.rival(standings, rival)
    else:
        kind, chosen = "softmax" if answer.name == SOFTMAX else "attention", answer.name
        said = sentences.attention(standings, answer, standard, levels, margin, gives_up.get(chosen, ""))
    if wishes.max_seconds is not None and not _is_at_wanted_length(standings):
        said += (sentences.another_length(standings),)
    if standings.without_rivals:
        said += (sentences.without_rivals(standings.without_rivals),)
    return Decision(kind, chosen, said, margin, levels, standard.name, tuple(standings.front()))


def doubt(
    standings: Standings, chosen: Contestant, levels: Mapping[str, Level], margin: float, usual_steps: int
) -> Doubt | None:
    """Why the final runs of a race are too short for its answer; None if they are long enough.

    Too short are runs with less than a share of the usual number of steps (`ENOUGH`), all attentions alike. So are runs of
    an attention that is still learning, if it alone would change the answer by what usual training adds to it (`to_come`):
    another attention would then be better than the answer by more than the margin, or a faster one that is worse be level.
    A model without attention is no answer as long as an attention is far better than it with one of its seeds. Nor is any
    answer known as long as each attention has one final run, or a clearly faster one than the answer has none yet.
    """
    attentions = standings.of("attention")
    for name, seconds in standings.unscored.items():
        if chosen.seconds is not None and chosen.seconds >= WORTH * seconds:
            return Doubt(chosen.steps or 0.0, usual_steps, unscored=name)
    if not standings.is_conversion and all(each.seeds < 2 for each in attentions):
        return Doubt(max(each.steps or 0.0 for each in attentions), usual_steps, is_one_seed=True)
    most = max((each.steps or 0.0 for each in attentions), default=0.0)
    enough = ENOUGH_TO_DENY if chosen.role == "rival" else ENOUGH
    if most and most < enough * usual_steps:
        return Doubt(most, usual_steps)
    if chosen.role == "rival" and (restless := _restless(standings, chosen, margin)) is not None:
        return Doubt(most, usual_steps, restless=restless)
    for each in attentions:
        lead = standings.advantage(chosen.name, each.name)
        if each.name == chosen.name or lead is None or each.progress is None:
            continue
        is_faster = levels[each.name] == "worse" and speedup(each, chosen) >= WORTH
        gain = to_come(standings, each, usual_steps)
        if gain > max(0.0, lead.value - margin if is_faster else lead.value + margin):
            return Doubt(most, usual_steps, each, gain, lead.value)
    return None


def to_come(standings: Standings, contestant: Contestant, usual_steps: int) -> float:
    """By how much usual training would still improve an attention, at its pace between its search and its final runs.

    The pace is the gain in development for each doubling of the steps. Without a usual number of steps, one more doubling is
    looked at. A share, such as an accuracy, does not go beyond 1 or 0.
    """
    known = contestant.progress
    if known is None or known.more_steps < LONGER * known.few_steps:
        return 0.0
    sign = 1.0 if standings.good == "high" else -1.0
    gain = sign * (known.after_more - known.after_few) / math.log2(known.more_steps / known.few_steps)
    doublings = math.log2(usual_steps / known.more_steps) if usual_steps else 1.0
    best = 1.0 if standings.good == "high" else 0.0
    room = sign * (best - known.after_more) if standings.unit == SHARE else math.inf
    return min(max(0.0, room), max(0.0, gain) * max(0.0, doublings))


def proposed_budget(standings: Standings, training: Training) -> float | None:
    """Seconds of a race whose final runs have the usual number of steps, by the paces here; None if these are not known."""
    paces = [each.pace for each in standings.of("attention") if each.pace]
    if not paces or not training.usual_steps or not training.budget:
        return None
    usual_seconds = training.usual_steps * sum(paces) / len(paces)
    return max(MORE * training.budget, needed_budget(training.jobs, len(paces), usual_seconds))


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


def _is_at_wanted_length(standings: Standings) -> bool:
    """Whether times were measured at the length at which limits hold, as far as that is known."""
    known, wanted = standings.measured_at, standings.lengths.get(READ_AT)
    return known is None or wanted is None or is_length(known, wanted)


def _without_gain(standings: Standings) -> tuple[Contestant, Contestant, Interval] | None:
    """The trivial answer, the best contestant and its advantage, if not even that one is better; None otherwise.

    The advantages are widened for the number of contestants.
    """
    trivial, others = standings.of("trivial"), standings.of("attention", "rival")
    if not trivial:
        return None
    known = [(each, standings.advantage(each.name, trivial[0].name)) for each in others]
    gains = [(each, widened(gain, len(others))) for each, gain in known if gain is not None]
    if not gains or any(gain.low > 0 for _, gain in gains):
        return None
    return (trivial[0], *gains[0])


def _rival(standings: Standings) -> Contestant | None:
    """The best model without attention, if no attention is better than it."""
    rivals, attentions = standings.of("rival"), standings.of("attention")
    if not rivals:
        return None
    gains = [standings.advantage(each.name, rivals[0].name) for each in attentions]
    is_beaten = any(gain is not None and widened(gain, len(attentions)).low > 0 for gain in gains)
    return None if is_beaten else rivals[0]


def _restless(standings: Standings, rival: Contestant, margin: float) -> Contestant | None:
    """The first attention with a seed that is better than the whole interval of a rival by more than the margin."""
    sign = 1.0 if standings.good == "high" else -1.0
    beyond = sign * (rival.quality.high if standings.good == "high" else rival.quality.low) + margin
    return next((each for each in standings.of("attention") if any(sign * score > beyond for score in each.by_seed)), None)


def _softmax_by_cost(allowed: Sequence[Contestant]) -> Contestant | None:
    """Softmax, if the costs of all attentions are known and none is clearly faster; None otherwise."""
    exact = next((each for each in allowed if each.name == SOFTMAX), None)
    if exact is None or any(each.seconds is None or speedup(each, exact) >= WORTH for each in allowed):
        return None
    return exact


def _cheapest(allowed: Sequence[Contestant], standard: Contestant, levels: Mapping[str, Level]) -> Contestant:
    """The fastest attention that is level with the standard, if it is clearly faster, and else the standard."""
    good = [each for each in allowed if levels[each.name] in ("better", "level") and each.seconds is not None]
    if standard.seconds is None or not good:
        return standard
    fastest = min(good, key=lambda each: each.seconds or 0.0)
    return fastest if standard.seconds >= WORTH * (fastest.seconds or 0.0) else standard
