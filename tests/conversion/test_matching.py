"""What a mechanism learns from the exact attention."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.testing import assert_close

from subquad import Favor, Hybrid, Learned, Linear, Linformer, Softmax
from subquad.attention.looking import Call
from subquad.conversion.matching import Gain, Moments, calibrate, divergences, listen, match, match_step, some_places
from tests.conversion.models import original

B, H, N, D = 3, 2, 13, 4


def inputs(seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    drawing = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(B, H, N, D, generator=drawing, dtype=torch.float64) * 1.5 for _ in range(3))
    return q, k, v


def padded() -> Tensor:
    return torch.arange(N) < torch.tensor([N, N - 4, 2])[:, None]


def build(options: Any) -> Any:
    return options.build(heads=H, head_dim=D, generator=torch.Generator().manual_seed(0)).double()


def call(keep: Tensor | None = None, *, causal: bool = False) -> Call:
    return Call(build(Softmax()), *inputs(), keep, causal)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("options", [Softmax(), Linear(Learned()), Favor(features=8), Hybrid(block=3, log_gain=0.0)])
def test_rows_at_some_places_are_those_of_the_whole_matrix(options: Any, causal: bool) -> None:
    attend, (q, k, _), places = build(options), inputs(), torch.tensor([0, 3, 4, 12])
    for keep in (None, padded()):
        whole = attend.weights(q, k, keep=keep, causal=causal)
        assert_close(attend.weights(q, k, keep=keep, causal=causal, places=places), whole[:, :, places])


def test_softmax_matches_itself() -> None:
    found = match(build(Softmax()), call(padded()), torch.arange(N))
    assert found.divergence is not None
    assert_close(found.divergence, torch.zeros(H, dtype=torch.float64), atol=1e-12, rtol=0)
    assert_close(found.error, torch.zeros(H, dtype=torch.float64), atol=1e-12, rtol=0)


def test_divergence_and_error_are_as_defined() -> None:
    given, attend = call(), build(Linear(Learned()))
    found = match(attend, given, torch.arange(N))
    exact, own = (one.weights(given.q, given.k) for one in (build(Softmax()), attend))
    wanted = F.kl_div(own.log(), exact, reduction="none").sum(-1).mean((0, 2))
    assert_close(found.divergence, wanted)
    missed = ((own - exact) @ given.v).square().sum((0, 2, 3))
    assert_close(found.error, missed / (exact @ given.v).square().sum((0, 2, 3)))


@pytest.mark.parametrize("options", [Linear(Learned()), Hybrid(block=3), Linformer(k=4, max_length=N)])
def test_padding_does_not_count(options: Any) -> None:
    """Whatever stands in the padding, and as if each sequence had been alone."""
    keep, attend = padded(), build(options)
    before = match(attend, call(keep), torch.arange(N))
    q, k, v = (torch.where(keep[:, None, :, None], x, torch.full_like(x, 7.0)) for x in inputs())
    after = match(attend, Call(build(Softmax()), q, k, v, keep, False), torch.arange(N))
    assert_close(after.loss, before.loss)


def test_listening_hears_the_layers_it_is_asked_for(tmp_path: Path) -> None:
    teacher = original(tmp_path)
    batch = teacher.batch(64, 16, 0)
    calls = listen(teacher, batch, [0, 2])
    assert list(calls) == [0, 2]
    hidden = teacher.teacher.embeddings(batch.tokens)
    own = teacher.teacher.encoder.layer[0].attention.self
    assert_close(calls[0].v, own.value(hidden).unflatten(-1, (2, 8)).transpose(1, 2))


def test_matching_makes_mechanisms_like_softmax_and_touches_nothing_else(tmp_path: Path) -> None:
    teacher = original(tmp_path)
    student = teacher.student([Linear(Learned()), None, Linear(Learned())], 0)
    before = {name: tensor.clone() for name, tensor in student.state_dict().items()}
    maps = [parameter for attend in teacher.mechanisms(student) for parameter in attend.parameters()]
    optimizer = torch.optim.Adam(maps, 1e-2)
    batches = [teacher.batch(128, 16, seed) for seed in range(3)]
    first = divergences(teacher, student, batches, [0, 2], 0)
    for step in range(25):
        optimizer.zero_grad()
        match_step(teacher, student, teacher.batch(128, 16, step), [0, 2], torch.Generator().manual_seed(step))
        optimizer.step()
    last = divergences(teacher, student, batches, [0, 2], 0)
    assert all(last[layer] < 0.8 * first[layer] for layer in (0, 2))
    for name, tensor in student.state_dict().items():
        assert torch.equal(tensor, before[name]) != (".subquad." in name), name


def test_moments_are_those_of_real_positions() -> None:
    moments, keep = Moments(), padded()
    for seed in range(2):
        moments.add(Call(build(Softmax()), *inputs(seed), keep, False))
    real = torch.cat([inputs(seed)[1].transpose(1, 2)[keep] for seed in range(2)])  # positions, heads, head_dim
    assert_close(moments.means()[1], real.mean(0))
    assert_close(moments.covariances()[1][1], torch.cov(real[:, 1].T, correction=0))


def test_calibration_gives_each_layer_its_own_moments(tmp_path: Path) -> None:
    teacher = original(tmp_path)
    student = teacher.student([Linear(Learned())] * 3, 0)
    told: dict[int, Any] = {}
    for layer, attend in enumerate(teacher.mechanisms(student)):
        attend.feature_map.calibrate = lambda *given, layer=layer: told.__setitem__(layer, given)
    batch = teacher.batch(64, 16, 0)
    calibrate(teacher, student, [batch], [0, 1, 2], seed=0)
    assert [part.shape for part in told[2]] == [(2, 8), (2, 8), (2, 8, 8), (2, 8, 8)]
    heard = listen(teacher, batch, [1])[1]
    assert_close(told[1][1], heard.k.double().mean((0, 2)))


def test_places_are_few_and_in_order() -> None:
    places = some_places(1000, torch.Generator().manual_seed(0))
    assert len(places) == 128
    assert bool((places.diff() > 0).all())


@pytest.mark.parametrize("causal", [False, True])
def test_the_gain_is_the_one_with_the_least_divergence(causal: bool) -> None:
    given, attend, places = call(padded(), causal=causal), build(Hybrid(block=3)), torch.arange(N)
    gain = Gain(attend)
    with torch.no_grad():
        gain.add(given, places)
        best = gain.solve()
        found = []
        for away in (-0.1, 0.0, 0.1):
            attend.log_gain.copy_(best + away)
            divergence = match(attend, given, places).divergence
            assert divergence is not None
            found.append(divergence)
    assert (found[1] < found[0]).all()
    assert (found[1] < found[2]).all()


def test_a_hybrid_is_given_its_gain(tmp_path: Path) -> None:
    teacher = original(tmp_path)
    batch = teacher.batch(64, 16, 0)
    student = teacher.student([Hybrid(block=2)] * 3, 0)
    before = divergences(teacher, student, [batch], [0, 1, 2], seed=0)
    calibrate(teacher, student, [batch], [0, 1, 2], seed=0)
    after = divergences(teacher, student, [batch], [0, 1, 2], seed=0)
    assert all(after[layer] < 0.5 * before[layer] for layer in range(3))
