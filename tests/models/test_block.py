"""Options of a layer: the activation of its feed-forward part, and the initial size of queries and keys."""

import math

import pytest
import torch

from subquad import Linear, Softmax
from subquad.models import Encoder, ModelOptions
from subquad.models.activations import ACTIVATIONS, Activation
from subquad.models.block import Block
from subquad.types import AttentionOptions


@pytest.mark.parametrize(
    ("name", "below", "above"),
    [
        ("relu", 0.0, 2.0),
        ("nelu", math.exp(-2), 3.0),
        ("nelu-printed", -1.0, math.exp(2)),
        ("gelu", -2 * 0.0227501, 2 * 0.9772499),
    ],
)
def test_activations_are_what_they_are_called(name: Activation, below: float, above: float) -> None:
    layer = ACTIVATIONS[name]()
    assert layer(torch.tensor([-2.0, 2.0])).tolist() == pytest.approx([below, above], abs=1e-5)
    x = torch.tensor([-200.0, 80.0], requires_grad=True)
    layer(x).sum().backward()
    assert x.grad is not None
    assert x.grad.isfinite().all()


def test_every_layer_has_the_activation_that_was_asked_for() -> None:
    options = ModelOptions(layers=2, heads=1, head_dim=4, activation="nelu")
    encoder = Encoder(torch.nn.Identity(), Linear(), options)
    assert [type(block.feed[1]) for block in encoder.blocks if isinstance(block, Block)] == [type(ACTIVATIONS["nelu"]())] * 2


@pytest.mark.parametrize(("attention", "usual"), [(Linear(), 5.0), (Softmax(), 1.0)], ids=["linear", "softmax"])
def test_queries_and_keys_start_as_large_as_asked(attention: AttentionOptions, usual: float) -> None:
    """By default as large as the attention wants them. Nothing else changes."""

    def weights(gain: float | None) -> dict[str, torch.Tensor]:
        options = ModelOptions(layers=1, heads=2, head_dim=4, starting_gain=gain)
        drawing = torch.Generator().manual_seed(0)
        return Encoder(torch.nn.Identity(), attention, options, generator=drawing).state_dict()

    default, plain, tripled = weights(None), weights(1.0), weights(3.0)
    for name, weight in plain.items():
        is_scaled = name.endswith(("to_q.weight", "to_k.weight"))
        torch.testing.assert_close(default[name], usual * weight if is_scaled else weight)
        torch.testing.assert_close(tripled[name], 3 * weight if is_scaled else weight)
