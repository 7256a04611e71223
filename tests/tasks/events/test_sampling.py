"""Forecasts by sampling: continuations are distributed as the model says, and scores of streams are its likelihoods."""

import math
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats

from subquad import MECHANISMS, ModelOptions
from subquad.tasks.base import Outlook
from subquad.tasks.events import EventSequences
from subquad.tasks.events.ahead import Cut, ahead_rows, count_rows, cut_sequences
from subquad.tasks.events.baselines import fit_baselines
from subquad.tasks.events.follow import Follower
from subquad.tasks.events.mixture import MixtureHead
from subquad.tasks.events.model import EventModel, HeadOptions
from subquad.tasks.events.outlook import look_ahead
from subquad.tasks.events.sampling import Paths, continuations, histories
from subquad.tasks.events.scales import learn
from subquad.tasks.events.scoring import encode, score
from tests.tasks.events.sequences import random_sequences
from tests.tasks.events.test_returns import yearly

CAUSAL = [name for name, options in MECHANISMS.items() if options().traits.causal]


def model(sequences: EventSequences, name: str = "linear", head: str = "mixture") -> EventModel:
    scales = learn(sequences, components=4, returns=head == "mixture")
    options = HeadOptions(head=head, inner=8, components=4)  # type: ignore[arg-type]
    size = ModelOptions(layers=2, heads=2, head_dim=8)
    return EventModel(scales, MECHANISMS[name](), size, options, torch.Generator().manual_seed(0)).eval()


def beginnings(sequences: EventSequences, lengths: list[int]) -> EventSequences:
    """The first events of the first sequences."""
    at = np.concatenate([sequences.offsets[number] + np.arange(length) for number, length in enumerate(lengths)])
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    times = sequences.times[at]
    starts, ends = times[offsets[:-1]], times[offsets[1:] - 1]
    names = sequences.names[: len(lengths)]
    return EventSequences(names, offsets, times, sequences.types[at], sequences.type_names, starts=starts, ends=ends)


def drawn_from(made: EventModel, sequences: EventSequences, samples: int, events: int) -> EventSequences:
    """Sequences continued by the model, the history and what was drawn together."""
    encoded = encode(made.scales, sequences)
    generator = torch.Generator().manual_seed(0)
    names, times, types = [], [], []
    for chosen, history in histories(made, encoded, 1000, np.arange(len(sequences.names))):
        paths = continuations(made, history, samples, generator, events=events)
        for at, number in enumerate(chosen):
            start, end = sequences.offsets[number], sequences.offsets[number + 1]
            for sample in range(samples):
                names.append(f"{number}-{sample}")
                later = sequences.times[end - 1] + paths.times[at, sample] * made.scales.mean_gap
                times.append(np.concatenate([sequences.times[start:end], later]))
                types.append(np.concatenate([sequences.types[start:end], paths.types[at, sample]]))
    offsets = np.concatenate([[0], np.cumsum([len(each) for each in times])])
    starts, ends = (np.array([each[at] for each in times]) for at in (0, -1))
    return EventSequences(
        names, offsets, np.concatenate(times), np.concatenate(types), sequences.type_names, starts=starts, ends=ends
    )


@pytest.mark.parametrize("name", ["softmax", "favor", "hybrid", "infinity"])
def test_draws_of_a_model_have_the_coverage_that_it_says(name: str) -> None:
    """Events that the model drew step by step, scored as whole sequences: their probabilities are uniform."""
    sequences = beginnings(yearly(), [6, 9])
    made = model(yearly(), name)
    scored = score(made, drawn_from(made, sequences, 150, 4), tokens=4000, residuals=True)
    fresh = np.zeros(len(scored.gaps), bool)
    for first, end in pairwise(np.concatenate([[0], np.cumsum(scored.lengths)])):
        fresh[end - 4 : end] = True
        assert end - first >= 4
    passed = -np.expm1(-scored.rescaled[fresh])
    assert stats.kstest(passed, "uniform").pvalue > 1e-3
    inside = (scored.quantiles[fresh, 0] <= scored.gaps[fresh]) & (scored.gaps[fresh] <= scored.quantiles[fresh, -1])
    assert stats.binomtest(int(inside.sum()), len(inside), 0.9).pvalue > 1e-3
    right = (scored.types == scored.likeliest)[fresh]
    chance = float(scored.confidence[fresh].mean())
    assert stats.binomtest(int(right.sum()), len(right), chance).pvalue > 1e-3


def test_draws_with_returns_have_the_coverage_that_the_model_says() -> None:
    sequences = yearly().select(np.arange(3))
    made = model(yearly())
    assert made.scales.returns
    scored = score(made, drawn_from(made, sequences, 40, 3), tokens=20_000, residuals=True)
    ends = np.cumsum(scored.lengths)
    passed = -np.expm1(-scored.rescaled[np.concatenate([np.arange(end - 3, end) for end in ends])])
    assert stats.kstest(passed, "uniform").pvalue > 1e-3


def test_the_ranked_score_is_least_for_the_distribution_that_was_drawn_from() -> None:
    """Draws of the model, judged by the model and by one that thinks of gaps twice as long."""
    sequences = random_sequences([6, 9])
    made = model(sequences)
    drawn = drawn_from(made, sequences, 200, 3)
    own = score(made, drawn, tokens=4000, residuals=True).crps
    assert isinstance(made.head, MixtureHead)
    made.head.starts += math.log(2.0)
    other = score(made, drawn, tokens=4000, residuals=True).crps
    assert own.mean() < other.mean()


def test_a_table_has_the_next_events_in_order(tmp_path: Path) -> None:
    sequences = random_sequences([5, 0, 8, 5])
    made = model(sequences, head="hawkes")
    outlook = Outlook(events=3, samples=40, seed=1)
    table = look_ahead(made, sequences, outlook, 100)
    assert table.columns == ["sequence", "event", "low", "median", "high", "type", "p_t0", "p_t1", "p_t2"]
    assert [(line[0], line[1]) for line in table.lines] == [(name, str(k)) for name in ("s0", "s2", "s3") for k in (1, 2, 3)]
    for line in table.lines:
        low, median, high = map(float, line[2:5])
        end = int(line[0][1:]) + 1
        assert sequences.times[sequences.offsets[end] - 1] <= low <= median <= high
        assert sum(map(float, line[6:])) == pytest.approx(1.0)
        assert float(line[6 + int(line[5][1:])]) == max(map(float, line[6:]))
    assert look_ahead(made, sequences, outlook, 100) == table
    assert look_ahead(made, sequences, Outlook(events=3, samples=40, seed=2), 100) != table


def test_counts_of_the_parts_of_a_window_add_up() -> None:
    sequences = random_sequences([5, 8])
    made = model(sequences)
    whole, parts = (look_ahead(made, sequences, Outlook(window=6.0, points=n, samples=50), 100) for n in (1, 3))
    for at in range(2):
        line, three = whole.lines[at], parts.lines[3 * at : 3 * at + 3]
        assert float(line[3]) == pytest.approx(sum(float(part[3]) for part in three), rel=1e-4)
        assert float(line[3]) == pytest.approx(sum(map(float, line[7:])), rel=1e-4)
        assert float(three[0][2]) == pytest.approx(float(line[1]) + 2.0)
        assert float(line[4]) <= float(line[3]) <= float(line[5])
        assert float(line[6]) > 0


@pytest.mark.parametrize("name", CAUSAL)
def test_scores_of_a_stream_are_the_likelihoods(name: str) -> None:
    sequences = random_sequences([7, 5])
    made = model(sequences, name)
    scored = score(made, sequences, tokens=100, residuals=True)
    follower, found = Follower(made, 10, score=True), []
    for at in np.argsort(sequences.times, kind="stable"):
        number = int(np.searchsorted(sequences.offsets, at, side="right")) - 1
        kind = sequences.type_names[sequences.types[at]]
        taken = follower.take([sequences.names[number], repr(float(sequences.times[at])), kind])
        assert taken is not None
        found.append((int(at), follower.forecast(taken)))
    lines = [line for at, line in sorted(found) if not sequences.first[at]]
    expected = np.stack([-scored.time - scored.type, -scored.time, -scored.type, -np.expm1(-scored.rescaled)], axis=1)
    np.testing.assert_allclose(np.array([line[4:8] for line in lines], float), expected, rtol=2e-3, atol=2e-4)
    firsts = [line for at, line in found if sequences.first[at]]
    assert all(line[4:] == [""] * 5 for line in firsts)
    assert follower.columns[:5] == ["sequence", "events", "time", "type", "score"]


def test_rows_about_several_events_ahead() -> None:
    sequences = random_sequences([30] * 12 + [3], seed=2)
    made = model(sequences)
    rows = ahead_rows(made, sequences, fit_baselines(sequences, made.scales), 1000)
    covered = {row["event"]: row["value"] for row in rows if row["metric"] == "coverage_ahead"}
    assert sorted(covered) == list(range(1, 11))
    assert all(0.0 <= value <= 1.0 for value in covered.values())
    assert {row["metric"] for row in rows if row.get("split") == "test"} >= {"crps_ahead", "count_mae", "count_coverage"}
    shown = [row for row in rows if row["metric"] == "timeline"]
    assert {row["kind"] for row in shown} == {"before", "came", "forecast"}
    cut = cut_sequences(sequences)
    assert cut is not None
    for row in shown:
        if row["kind"] == "came":
            at = cut.whole.names.index(row["sequence"])
            assert row["value"] == cut.whole.times[cut.whole.offsets[at] + cut.length + row["event"] - 1]
    assert cut_sequences(random_sequences([1, 1])) is None
    assert ahead_rows(made, random_sequences([2, 1]), fit_baselines(sequences, made.scales), 1000)


def test_counts_leave_out_no_sequence_that_ends_early() -> None:
    """Sequences of 20 events each: a window that is longer than the rest of a fast one has all of its events."""
    gaps = np.array([0.1, 1.0, 4.0])
    whole = random_sequences([20] * 3)._replace(times=(gaps[:, None] * np.arange(20)).ravel())
    cut = Cut(whole, length=10, events=10)
    assert cut.last.tolist() == pytest.approx([0.9, 9.0, 36.0])
    times = np.repeat(gaps[:, None, None] * np.arange(1, 11), 8, axis=1)  # continuations as the sequences go on
    rows = {row["metric"]: row for row in count_rows(cut, Paths(times, np.zeros(times.shape, np.int64)), 1.0)}
    assert rows["count_mae"]["value"] == 0.0
    assert rows["count_coverage"]["value"] == 1.0
    assert rows["count_mae_of_mean_rate"]["value"] == pytest.approx((5 + 0 + 4) / 3)  # 10, 5 and 1 events came, not 5 each
    assert (rows["count_mae"]["window"], rows["count_mae"]["most"]) == (5.0, 10)
