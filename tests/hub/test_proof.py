"""A swapped model proves itself: what does not hold is refused, naming the module and the number."""

import copy
from typing import Any

import pytest
import torch
from torch.testing import assert_close

from subquad import Favor, Linear, SubquadError
from subquad.attention import SoftmaxAttention
from subquad.hub import forward
from subquad.hub.attach import attached
from subquad.hub.cache import StateLayer
from subquad.hub.masks import Visible, without_pairs
from tests.families.catalog import entry_of
from tests.families.models import build
from tests.hub.families import CONFIGS, OPTIONS, hf, hidden, hub, model, tokens


def llama() -> Any:
    return model(CONFIGS["llama"](), hf.AutoModelForCausalLM)


@pytest.mark.parametrize("family", ["bert", "gpt2", "llama", "distilbert"])
@pytest.mark.parametrize("name", ["linear", "favor", "hybrid", "infinity"])
def test_every_check_holds(family: str, name: str) -> None:
    network = hub.swap(model(CONFIGS[family]()), OPTIONS[name])
    rows = hub.check(network)
    assert {"softmax", "covered", "right padding", "right alone"} <= {row.check for row in rows}
    assert all(row.holds is not False for row in rows)
    assert next(row.difference for row in rows if row.check == "softmax") < 1e-4


def test_what_a_decoder_is_asked() -> None:
    asked = {row.check for row in hub.check(hub.swap(llama(), Linear())) if row.holds}
    assert {"future", "left padding", "left alone", "cache", "state"} <= asked


def refused(network: Any, says: str) -> None:
    """Swapping is refused with these words, and leaves the model as it was."""
    before, described = hidden(network.base_model, tokens()), copy.deepcopy(network.config.to_dict())
    with pytest.raises(SubquadError, match=says):
        hub.swap(network, Linear())
    assert network.config.to_dict() == described
    assert_close(hidden(network.base_model, tokens()), before, rtol=0, atol=0)
    assert not any("subquad" in name for name, _ in network.named_modules())


def test_scores_that_are_scaled_otherwise_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forward, "_scaled", lambda q, scaling: 1.1 * q)
    says = (
        r"layers\.0\.self_attn: softmax through subquad differs from the model's own attention by .* where 0\.001 is allowed"
    )
    refused(llama(), says)


def test_a_layer_that_sees_the_future_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    exact = forward._is_causal

    def forgetful(module: Any, asked: bool | None, sees: Visible) -> bool:
        return isinstance(attached(module), SoftmaxAttention) and exact(module, asked, sees)

    monkeypatch.setattr(forward, "_is_causal", forgetful)
    refused(llama(), r"self_attn: changing later tokens changed earlier outputs by")


def test_padding_that_is_seen_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    exact = without_pairs
    monkeypatch.setattr(forward, "without_pairs", lambda sees, n, name: exact(sees, n, name)._replace(keep=None))
    refused(model(CONFIGS["bert"]()), r"changing the tokens under padding on the (left|right) changed outputs by")


def test_a_state_that_is_lost_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def forgetful(self: StateLayer, attend: Any, q: Any, k: Any, v: Any, keep: Any) -> Any:
        self.is_waiting = False
        return attend.causal(q, k, v, keep=keep)[0]

    monkeypatch.setattr(StateLayer, "attend", forgetful)
    refused(llama(), r"a continuation from a state cache differs from the whole by")


@pytest.mark.parametrize("class_name", ["PegasusXModel", "BigBirdPegasusModel"])
def test_attention_beside_the_swapped_one_is_noticed(class_name: str) -> None:
    with pytest.raises(SubquadError, match=r"computes attention that does not go through transformers' AttentionInterface"):
        hub.swap(build(entry_of(class_name)).model, Linear())


def test_no_check_swaps_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forward, "_scaled", lambda q, scaling: 1.1 * q)
    network = hub.swap(llama(), Linear(), check=False)
    assert any("subquad" in name for name, _ in network.named_modules())
    assert next(row for row in hub.check(network) if row.check == "softmax").holds is False


def test_a_check_leaves_no_trace() -> None:
    network = llama().train()
    torch.manual_seed(1)
    before = torch.get_rng_state()
    hub.swap(network, Favor(features=16))
    assert network.training
    assert torch.equal(torch.get_rng_state(), before)
    assert all(parameter.grad is None for parameter in network.parameters())


def test_a_model_without_mechanisms_is_not_checked() -> None:
    with pytest.raises(SubquadError, match="a check is for a model with subquad's mechanisms: swap it first"):
        hub.check(llama())


def test_a_model_that_looks_both_ways_has_no_state() -> None:
    network = hub.swap(build(entry_of("RobertaForCausalLM")).model, Linear())
    with pytest.raises(SubquadError, match="no attention of RobertaForCausalLM is causal, so it has no state"):
        hub.state_cache(network)
