"""The projections around a mechanism."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from subquad import MECHANISMS, Linear, MultiheadAttention, Softmax, SubquadError


def make(name: str = "linear", kv_heads: int | None = None, bias: bool = True) -> MultiheadAttention:
    generator = torch.Generator().manual_seed(0)
    attend = MECHANISMS[name]().build(heads=4, head_dim=5, generator=generator)
    return MultiheadAttention(
        20, heads=4, attention=attend, kv_heads=kv_heads, context_dim=20, bias=bias, generator=generator
    )


def test_equals_pytorch_s_own_for_softmax() -> None:
    ours, theirs = make("softmax"), nn.MultiheadAttention(20, 4, batch_first=True)
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.cat([ours.to_q.weight, ours.to_k.weight, ours.to_v.weight]))
        theirs.out_proj.weight.copy_(ours.to_out.weight)
    x, context = torch.randn(2, 7, 20), torch.randn(2, 9, 20)
    keep = torch.rand(2, 9) > 0.3
    wanted = theirs(x, context, context, key_padding_mask=~keep)[0]
    assert_close(ours(x, context, keep=keep), wanted, rtol=1e-5, atol=1e-5)
    later = torch.ones(7, 7, dtype=torch.bool).triu(1)
    assert_close(ours.causal(x)[0], theirs(x, x, x, attn_mask=later)[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["softmax", "linear", "favor"])
def test_steps_equal_the_causal_form(name: str) -> None:
    layer = make(name)
    x = torch.randn(2, 6, 20)
    whole, _ = layer.causal(x)
    state, parts = None, []
    for place in range(6):
        mixed, state = layer.step(x[:, place : place + 1], state)
        parts.append(mixed)
    assert_close(torch.cat(parts, dim=1), whole, rtol=1e-5, atol=1e-5)


def test_grouped_heads_are_repeated_heads() -> None:
    grouped, full = make(kv_heads=2), make()
    with torch.no_grad():
        full.load_state_dict(
            grouped.state_dict()
            | {
                f"{name}.{part}": getattr(getattr(grouped, name), part)
                .unflatten(0, (2, 5))
                .repeat_interleave(2, dim=0)
                .flatten(0, 1)
                for name in ("to_k", "to_v")
                for part in ("weight", "bias")
            }
        )
    x = torch.randn(2, 7, 20)
    assert grouped.to_k.out_features == 10
    assert_close(grouped(x), full(x))


@pytest.mark.parametrize("name", MECHANISMS)
def test_merging_heads_costs_no_copy(name: str) -> None:
    """The result has the layout of the projections, so heads lie beside each other already."""
    layer = make(name)
    q, k, v = layer._inputs(torch.randn(2, 300, 20), None, None)
    mixed = layer.attend(q, k, v)
    if name in ("linformer", "nystrom", "lsh"):
        pytest.skip("PyTorch's attention decides on the layout")
    assert mixed.transpose(1, 2).flatten(2).data_ptr() == mixed.data_ptr()


def test_bias_is_optional_and_context_may_have_another_width() -> None:
    layer = MultiheadAttention(6, heads=2, attention=Linear(), context_dim=11, bias=False)
    assert {name for name, _ in layer.named_parameters()} == {f"to_{part}.weight" for part in ("q", "k", "v", "out")}
    assert layer(torch.randn(1, 4, 6), torch.randn(1, 8, 11)).shape == (1, 4, 6)


@pytest.mark.usefixtures("unchecked_shapes")
def test_bad_input_is_refused_in_words() -> None:
    softmax = Softmax().build(heads=4, head_dim=5)
    with pytest.raises(SubquadError, match="model_dim must be a multiple of heads, but is 21 for 4 heads"):
        MultiheadAttention(21, heads=4, attention=softmax)
    with pytest.raises(SubquadError, match="kv_heads must divide the 4 heads, but is 3"):
        MultiheadAttention(20, heads=4, attention=softmax, kv_heads=3)
    with pytest.raises(SubquadError, match=r"x must be \(batch, positions, 20\), but its shape is \(2, 7, 19\)"):
        make()(torch.randn(2, 7, 19))
    with pytest.raises(SubquadError, match=r"context must be \(batch, positions, 20\), but its shape is \(2, 20\)"):
        make()(torch.randn(2, 7, 20), torch.randn(2, 20))
    with pytest.raises(SubquadError, match="linformer has no causal form: it mixes positions; choose"):
        make("linformer").causal(torch.randn(2, 7, 20))
