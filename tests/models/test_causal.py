"""The stack over real-valued positions."""

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from subquad import MECHANISMS, Linformer, ModelOptions, SubquadError
from subquad.models import CausalEncoder, detached
from subquad.models.positions import rotation, rotation_at, sinusoids

CAUSAL = [name for name, options in MECHANISMS.items() if options().traits.causal]


def encoder(name: str, positions: str = "rotary") -> CausalEncoder:
    options = ModelOptions(layers=2, heads=2, head_dim=8, positions=positions)  # type: ignore[arg-type]
    return CausalEncoder(nn.Linear(3, 16), MECHANISMS[name](), options, generator=torch.Generator().manual_seed(0)).eval()


def given() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(2, 11, 3, generator=generator), torch.rand(2, 11, generator=generator).double().cumsum(1)


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("positions", ["sinusoidal", "rotary"])
@pytest.mark.parametrize("name", CAUSAL)
def test_parts_and_steps_equal_the_whole(name: str, positions: str, recompute: bool) -> None:
    model, (x, at) = encoder(name, positions), given()
    model.recompute = recompute
    whole = model(x, at)
    first, state = model.causal(x[:, :4], at[:, :4])
    second, state = model.causal(x[:, 4:9], at[:, 4:9], state)
    parts = [first, second]
    for place in (9, 10):
        one, state = model.step(x[:, place : place + 1], at[:, place : place + 1], state)
        parts.append(one)
    assert int(state.position) == 11
    assert_close(torch.cat(parts, 1), whole, rtol=1e-4, atol=1e-4)


def test_only_distances_count_where_positions_rotate() -> None:
    model, (x, at) = encoder("softmax"), given()
    assert_close(model(x, at + 1e6), model(x, at), rtol=1e-3, atol=1e-3)
    assert (model(x, 2.0 * at) - model(x, at)).abs().max() > 1e-2


def test_whole_positions_are_those_of_the_others() -> None:
    whole = rotation(3, 5, 8, torch.zeros(1))
    real = rotation_at(torch.arange(3.0, 8.0)[None].double(), 8)
    assert_close(real.cosines[0, 0], whole.cosines)
    assert_close(real.sines[0, 0], whole.sines)
    far = torch.tensor([1e9 + 0.25], dtype=torch.float64)
    assert_close(sinusoids(far, 4)[0, 0], torch.sin(far[0]))


@pytest.mark.parametrize("name", CAUSAL)
def test_no_gradient_flows_through_a_detached_state(name: str) -> None:
    model, (x, at) = encoder(name), given()
    x.requires_grad_()
    for cut in (False, True):
        _, state = model.causal(x[:, :5], at[:, :5])
        later, _ = model.causal(x[:, 5:], at[:, 5:], detached(state) if cut else state)
        (gradient,) = torch.autograd.grad(later.square().sum(), x)
        assert (gradient[:, :5].abs().sum() == 0) == cut
        assert gradient[:, 5:].abs().sum() > 0


def test_what_cannot_be_built() -> None:
    with pytest.raises(SubquadError, match="linformer has no causal form"):
        CausalEncoder(nn.Identity(), Linformer())
    with pytest.raises(SubquadError, match="learned positions are whole numbers"):
        encoder("linear", "learned")
