"""Slots for a length: the smallest number, its growth, and what projections are close to, on figures that are known."""

import math
import random
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch

from subquad.attention.looking import Call
from subquad.attention.softmax import Softmax
from subquad.experiments.linformer import errors, measuring, needed
from subquad.experiments.linformer.errors import BEST, FITTED, MEANS, RANDOM, WAYS, Recorded, layer_errors
from subquad.experiments.linformer.grid import SCALES, Effort, Variant
from subquad.experiments.linformer.learned import closeness_of, judge_projections
from subquad.experiments.linformer.projections import CHANGE, CLOSENESS, FRESH, TRAINED, closeness
from subquad.measure.lowrank import leading_vectors, neighbour_means
from subquad.results import Row, Run
from tests.experiments.test_linformer import QUICK, runs

LENGTHS = (32, 64, 128, 256, 512)


@pytest.mark.parametrize(
    ("values", "slots"),
    [
        ({4: 0.9, 16: 0.1}, 8.0),  # half way, in log k
        ({4: 0.9, 16: 0.5}, 16.0),
        ({4: 0.9, 8: 0.6}, None),  # not reached
        ({4: 0.4, 8: 0.2}, None),  # reached before the first that was tried
        ({1: 0.4, 8: 0.2}, 1.0),  # with fewer there is nothing
        ({2: 0.9, 4: 0.4, 8: 0.6, 16: 0.3}, 2 * 2**0.8),  # the first time that it is reached
    ],
)
def test_the_smallest_number_of_slots_is_interpolated(values: Mapping[int, float], slots: float | None) -> None:
    assert needed.smallest(values, 0.5) == (None if slots is None else pytest.approx(slots))


def by_law(slots: Callable[[int], float], scatter: float = 0.02) -> needed.Needed:
    """Slots that follow a law, but for a little scatter that differs between seeds."""
    drawing = random.Random(0)
    return {seed: {n: slots(n) * (1 + scatter * drawing.gauss(0, 1)) for n in LENGTHS} for seed in range(4)}


@pytest.mark.parametrize(
    ("slots", "same", "in_log"),
    [(lambda n: 4 * math.log2(n), False, True), (lambda n: 3 + n / 8, False, False), (lambda n: 8.0, True, None)],
    ids=("log n", "n", "neither"),
)
def test_the_law_of_growth_is_found(slots: Callable[[int], float], same: bool | None, in_log: bool | None) -> None:
    first, second = needed.grows("an aim", by_law(slots))
    assert (first.held, second.held) == (same, in_log)


def test_slopes_are_those_of_the_law() -> None:
    found = needed.law(by_law(lambda n: 4 * math.log2(n), scatter=0.0))
    assert found is not None
    assert found.per_doubling.value == pytest.approx(4.0)
    found = needed.law(by_law(lambda n: n / 8, scatter=0.0))
    assert found is not None
    assert found.per_token.value == pytest.approx(1 / 8)
    assert found.exponent.value == pytest.approx(1.0)


def test_lengths_that_a_seed_lacks_are_left_out() -> None:
    slots: needed.Needed = {0: {32: 4.0, 64: 5.0, 128: 6.0}, 1: {32: 4.0, 64: 5.0}}
    assert list(needed.over_seeds(slots)) == [32, 64]
    assert needed.law(slots) is None
    (verdict,) = needed.grows("an aim", slots)
    assert verdict.held is None
    assert list(needed.grows("an aim", {})) == []


def test_slots_for_a_perplexity_are_counted_beside_softmax(tmp_path: Path) -> None:
    given = {Variant(128): 50.0, Variant(128, 16): 100.0, Variant(128, 64): 50.0}
    slots = needed.perplexity_slots(runs(tmp_path, given), QUICK)
    assert slots == {seed: {128: pytest.approx(32.0)} for seed in range(3)}


def error_rows(errors_by_slots: Mapping[str, Mapping[int, float]], seeds: int = 3) -> list[Row]:
    return [
        {
            "metric": "output_error",
            "way": way,
            "length": 64,
            "k": k,
            "layer": layer,
            "seed": seed,
            "value": value + layer / 100,
        }
        for way, values in errors_by_slots.items()
        for k, value in values.items()
        for layer in (1, 2)
        for seed in range(seeds)
    ]


def test_errors_are_means_over_layers_and_judged_beside_the_best() -> None:
    rows = error_rows({BEST: {8: 0.485, 16: 0.085}, FITTED: {8: 0.885, 16: 0.385}})
    assert needed.mean_errors(rows, BEST, 64, 16) == {seed: pytest.approx(0.1) for seed in range(3)}
    assert needed.error_slots(rows, BEST, 0.25)[0] == {64: pytest.approx(8 * 2**0.625)}
    assert needed.error_slots(rows, FITTED, 0.25)[0] == {}
    (verdict,) = needed.reference(rows)
    assert verdict.held is False
    assert verdict.figures.startswith("4.00 (4.00 to 4.00) times: 0.400 (0.400 to 0.400), 0.100")
    assert list(needed.reference([])) == []


def recorded(length: int) -> Recorded:
    """The attention of two heads to keys that repeat in every sequence, as positions would make them."""
    attend = Softmax().build(heads=2, head_dim=4)
    drawing = torch.Generator().manual_seed(0)
    common = 2 * torch.randn(1, 2, length, 4, generator=drawing)
    parts = common + 0.3 * torch.randn(2, 3, 4, 2, length, 4, generator=drawing)
    return Recorded(*(Call(attend, q, k, v, None, causal=False) for q, k, v in parts))


def test_ways_of_choosing_slots_are_measured_on_the_same_attention() -> None:
    effort = Effort((16,), fit_sequences=4, test_sequences=4, fit_steps=30, fit_batch=2)
    found = layer_errors(recorded(16), effort, torch.Generator().manual_seed(0))
    assert list(found) == [1, 2, 4, 8, 16]
    assert all(set(by_way) == set(WAYS) for by_way in found.values())
    assert found[4][FITTED] < found[4][MEANS]  # fitting helps
    assert all(by_way[BEST] < min(by_way[RANDOM], by_way[MEANS]) for k, by_way in found.items() if k < 16)
    for way in (BEST, MEANS):  # every position is a slot
        assert found[16][way] == pytest.approx(0.0, abs=1e-5)
    best = [by_way[BEST] for by_way in found.values()]
    assert best == sorted(best, reverse=True)


def test_numbers_of_slots_are_powers_of_two() -> None:
    assert errors.slot_counts(24) == [1, 2, 4, 8, 16]


def test_closeness_of_a_projection_made_of_singular_vectors_is_one() -> None:
    grams = torch.randn(1, 12, 12, generator=torch.Generator().manual_seed(0))
    vectors = leading_vectors(grams @ grams.mT, 3)
    mixed = torch.randn(1, 3, 3, generator=torch.Generator().manual_seed(1)) @ vectors
    assert float(closeness(mixed, vectors)["singular"]) == pytest.approx(1.0)
    assert float(closeness(neighbour_means(3, 12)[None], vectors)["neighbours"]) == pytest.approx(1.0)


def share_rows(shares: Mapping[str, float]) -> list[Row]:
    place = {"length": 128, "k": 32, "sharing": "none", "layer": 1}
    return [
        {"metric": metric, "value": share + seed / 1000, "model": model, "seed": seed, "side": side, "head": 1, **place}
        for metric, share in shares.items()
        for model in (TRAINED, FRESH, CHANGE)
        for side in ("keys", "values")
        for seed in range(3)
    ]


def test_what_projections_learn_is_judged_over_seeds() -> None:
    rows = share_rows(dict(zip((*CLOSENESS, "learned"), (0.01, 0.7, 0.3, 0.499, 0.8), strict=True)))
    found = [verdict.held for verdict in judge_projections(rows, SCALES["quick"])]
    assert found == [False, True, False, None, True]
    variant = Variant(128, 32, "none")
    assert closeness_of(rows, variant, "neighbours", TRAINED) == closeness_of(rows, variant, "neighbours", TRAINED, "keys")
    assert closeness_of(rows, variant, "neighbours", TRAINED, "both") is None
    assert closeness_of(rows, Variant(128, 32, "heads"), "neighbours", TRAINED) is None
    assert list(judge_projections([], SCALES["quick"])) == []


def test_an_interrupted_part_is_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Finished parts are kept as they are; half of a part is neither shown nor kept."""
    measured: list[str] = []

    def part(name: str) -> measuring.Part:
        def rows() -> list[Row]:
            measured.append(name)
            return [{"metric": "average", "value": float(at)} for at in range(3)]

        return measuring.Part(name, rows)

    monkeypatch.setattr(measuring, "parts", lambda folder, grid: map(part, "ab"))
    measuring.measure_slots(tmp_path, QUICK, "quick")
    run = Run.open(tmp_path / "slots", "slots")
    run.keep_first_rows(6)  # the second part lacks a row and its end
    assert len(measuring.slot_rows(tmp_path)) == 3
    measuring.measure_slots(tmp_path, QUICK, "quick")
    assert measured == ["a", "b", "b"]
    assert [row["part"] for row in measuring.slot_rows(tmp_path)] == ["a"] * 3 + ["b"] * 3
