"""Attention matrices, and the ranks that they can have."""

from typing import Any

import pytest
import torch
from torch import Tensor

from subquad import (
    Decoder,
    Encoder,
    Favor,
    Hybrid,
    Linear,
    Linformer,
    ModelOptions,
    Softmax,
    SubquadError,
    Taylor,
    TokenEmbedding,
)
from subquad.attention import MECHANISMS
from subquad.attention.looking import attention_matrix, watched
from subquad.attention.softmax import SoftmaxAttention
from subquad.models import MultiheadAttention


def drawn(n: int = 21, d: int = 6) -> tuple[Tensor, Tensor, Tensor]:
    return tuple(torch.randn(2, 2, n, d, dtype=torch.float64) for _ in range(3))  # type: ignore[return-value]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", MECHANISMS)
def test_the_matrix_times_the_values_is_the_attention(name: str, causal: bool) -> None:
    attend: Any = MECHANISMS[name]().build(heads=2, head_dim=6, generator=torch.Generator().manual_seed(0)).double()
    q, k, v = drawn()
    if causal and not hasattr(attend, "causal"):
        pytest.skip(f"{name} has no causal form")
    keep = torch.ones(2, 21, dtype=torch.bool)
    keep[1, 15:] = False
    with torch.no_grad():
        for mask in (None, keep):
            matrix = attention_matrix(attend, q, k, mask, causal=causal)
            mixed = attend.causal(q, k, v, keep=mask)[0] if causal else attend(q, k, v, keep=mask)
            assert matrix.shape == (2, 2, 21, 21)
            real = slice(None) if mask is None else slice(0, 15)
            torch.testing.assert_close((matrix @ v)[:, :, real], mixed[:, :, real], rtol=1e-6, atol=1e-8)


def test_slots_that_mix_coordinates_have_no_matrix() -> None:
    q, k, _ = drawn()
    attend = Linformer(k=4, max_length=32, method="convolution").build(heads=2, head_dim=6).double()
    with pytest.raises(SubquadError, match="linformer by convolution has no attention matrix"):
        attention_matrix(attend, q, k)


def test_what_mechanisms_are_asked_is_noted_in_order_and_they_are_left_as_they_were() -> None:
    sizes = ModelOptions(layers=3, heads=2, head_dim=4)
    encoder = Encoder(TokenEmbedding(9, 8), Softmax(), sizes)
    tokens = torch.randint(9, (1, 7))
    mechanisms = [module.attend for module in encoder.modules() if isinstance(module, MultiheadAttention)]
    before = encoder(tokens)
    with watched(mechanisms) as calls:
        assert torch.equal(encoder(tokens), before)
    assert [call.attend for call in calls] == mechanisms
    assert [call.causal for call in calls] == [False] * 3
    assert all(torch.allclose(call.matrix().sum(-1), torch.ones(1, 2, 7)) for call in calls)
    encoder(tokens)
    assert len(calls) == 3
    assert not any(name in vars(attend) for attend in mechanisms for name in ("forward", "causal"))


def test_a_decoders_matrices_look_back_only() -> None:
    decoder = Decoder(9, Hybrid(block=2), ModelOptions(layers=2, heads=2, head_dim=4))
    mechanisms = [module.attend for module in decoder.modules() if isinstance(module, MultiheadAttention)]
    with watched(mechanisms) as calls:
        decoder(torch.randint(9, (1, 7)))
    assert len(calls) == 2
    for call in calls:
        assert torch.allclose(call.matrix().triu(1), torch.zeros(7, 7), atol=1e-6)


@pytest.mark.usefixtures("unchecked_shapes")
def test_a_failure_leaves_mechanisms_as_they_were() -> None:
    attend = Softmax().build(heads=1, head_dim=2)
    with pytest.raises(SubquadError), watched([attend]):
        attend(torch.zeros(1), torch.zeros(1), torch.zeros(1))
    assert "forward" not in vars(attend)
    assert isinstance(attend, SoftmaxAttention)


@pytest.mark.parametrize(
    ("options", "rank"),
    [
        (Linear(), 6),
        (Linear(feature_map=Taylor()), 1 + 6 + 21),
        (Favor(features=10), 10),
        (Linformer(k=5, max_length=64), 5),
        (Softmax(), None),
        (Hybrid(), None),
    ],
)
def test_no_matrix_has_a_higher_rank_than_its_mechanism_can_have(options: Softmax, rank: int | None) -> None:
    attend = options.build(heads=2, head_dim=6).double()
    bound = options.rank_bound(6)
    assert (None if bound is None else bound.rank) == rank
    q, k, _ = drawn(n=40)
    found = torch.linalg.matrix_rank(attention_matrix(attend, q, k))
    assert int(found.max()) <= (rank or 40)
    assert int(found.min()) >= min(rank or 40, 40) - 1  # and it is reached
