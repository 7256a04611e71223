"""The Hawkes process that is fitted by EM: its parameters on simulated data, and its sums against double loops."""

import numpy as np
import pytest

from subquad.tasks.events import EventSequences, Hawkes
from subquad.tasks.events.hawkes import HawkesProcess, fit_hawkes, moments, parts_of
from tests.tasks.events.sequences import random_sequences

PROCESS = HawkesProcess(np.array([0.3, 0.2, 0.1]), 0.05 * np.arange(1.0, 19.0).reshape(3, 3, 2) / 6.0, np.array([0.5, 4.0]))


def intensity(process: HawkesProcess, times: list[float], types: list[int], at: float) -> np.ndarray:
    """The sum over all events before a time, term by term."""
    total = process.rates.copy()
    for time, kind in zip(times, types, strict=True):
        for kernel, decay in enumerate(process.decays):
            total += process.branching[:, kind, kernel] * decay * np.exp(-decay * (at - time))
    return total


def untied() -> EventSequences:
    sequences = random_sequences([5, 1, 7])
    return sequences._replace(times=sequences.times + 1e-3 * np.arange(13))


def test_states_give_the_intensities_of_a_double_loop() -> None:
    sequences = untied()
    parts = parts_of(sequences, 0.0)
    before = moments(parts, 3, PROCESS.decays)
    after = moments(parts, 3, PROCESS.decays, after=True, elapsed=False).kernel
    for first, end in zip(sequences.offsets[:-1], sequences.offsets[1:], strict=True):
        times, types = sequences.times[first:end].tolist(), sequences.types[first:end].tolist()
        for place in range(end - first):
            expected = intensity(PROCESS, times[:place], types[:place], times[place])
            at = first + place
            np.testing.assert_allclose(PROCESS.intensities(before.kernel[at : at + 1])[0], expected, rtol=1e-10)
            expected = intensity(PROCESS, times[: place + 1], types[: place + 1], times[place])
            np.testing.assert_allclose(PROCESS.intensities(after[at : at + 1])[0], expected, rtol=1e-10)
            waited = sum(
                PROCESS.decays[0] * np.exp(-PROCESS.decays[0] * (times[place] - time)) * (times[place] - time)
                for time, kind in zip(times[:place], types[:place], strict=True)
                if kind == 1
            )
            assert before.elapsed[at, 1, 0] == pytest.approx(waited, rel=1e-9)


def test_the_integral_is_that_of_the_intensity() -> None:
    sequences = untied()
    after = moments(parts_of(sequences, 0.0), 3, PROCESS.decays, after=True, elapsed=False).kernel
    grid = np.linspace(0.0, 2.5, 2001)
    times, types = sequences.times[:5].tolist(), sequences.types[:5].tolist()
    total = [intensity(PROCESS, times, types, times[-1] + gap).sum() for gap in grid]
    found = PROCESS.integral(after[4:5], np.array([2.5]))
    assert float(found[0]) == pytest.approx(float(np.trapezoid(total, grid)), rel=1e-5)


def test_em_recovers_the_parameters_of_a_simulated_process() -> None:
    true = Hawkes()
    fitted = fit_hawkes(true.draw(200, 0), 1e-9, (1.0,), rounds=30)
    assert fitted is not None
    np.testing.assert_allclose(fitted.rates, true.rates, atol=0.04)
    np.testing.assert_allclose(fitted.branching[:, :, 0], true.branching, atol=0.06)
    assert float(fitted.decays[0]) == pytest.approx(true.decay, rel=0.12)


def test_too_many_types_are_left_out_and_long_sequences_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    sequences = random_sequences([30, 30])
    many = sequences._replace(type_names=[str(number) for number in range(2000)])
    assert fit_hawkes(many, 1e-6) is None
    monkeypatch.setattr("subquad.tasks.events.hawkes.PIECE", 7)
    parts = parts_of(sequences, 1e-6)
    assert np.diff(parts.offsets).tolist() == [7, 7, 7, 7, 2] * 2
    assert np.isfinite(np.concatenate([part.ravel() for part in fit_hawkes(sequences, 1e-6, rounds=3) or ()])).all()
