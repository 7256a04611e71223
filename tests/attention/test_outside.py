"""Attentions of others as mechanisms: their weights, masks and states, and which of them a file may name."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from subquad.attention import Layers, Linear, Outside, options_from, require_causal
from subquad.attention.outside.trust import VARIABLE, trust_words, trusting
from subquad.check.guessing import guess
from subquad.check.request import Request
from subquad.errors import SubquadError

HERE = "tests.attention.foreign"
FAULTS = "tests.check.faults"


def _opened(target: str, **known: Any) -> Outside:
    return guess(Request(target, heads=2, head_dim=4, **known)).outside


def _built(target: str, seed: int = 0, **known: Any) -> Any:
    return _opened(target, **known).build(heads=2, head_dim=4, generator=torch.Generator().manual_seed(seed))


def test_initial_weights_follow_the_generator_and_nothing_else_changes() -> None:
    options: Any = _opened(f"{HERE}:Weighted")
    before = torch.random.get_rng_state()
    generators = [torch.Generator().manual_seed(seed) for seed in (3, 3, 4)]
    first, again, other = (options.build(heads=2, head_dim=4, generator=generator) for generator in generators)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(first.held["causal"].values, again.held["causal"].values)
    assert not torch.equal(first.held["causal"].values, other.held["causal"].values)


def test_layers_have_weights_of_their_own() -> None:
    make = _opened(f"{HERE}:Weighted").layer_builder(heads=2, head_dim=4, generator=torch.Generator().manual_seed(0))
    first: Any = make()
    second: Any = make()
    assert not torch.equal(first.held["causal"].values, second.held["causal"].values)


def test_mechanisms_of_this_interface_draw_from_the_generator_too() -> None:
    first, second = (_built("subquad.attention:Favor", seed) for seed in (0, 1))
    assert not torch.equal(*(next(iter(attend.buffers())) for attend in (first, second)))


def test_both_forms_have_the_same_weights_and_they_are_trained() -> None:
    attend = _built(f"{HERE}:Weighted")
    assert attend.held["causal"] is not attend.held["bidirectional"]
    assert [name for name, _ in attend.named_parameters()] == ["held.bidirectional.values"]
    assert attend.options.size(heads=2, head_dim=4).numbers == sum(part.numel() for part in attend.parameters())
    attend.causal(*torch.randn(3, 1, 2, 5, 4))[0].sum().backward()
    assert attend.held["bidirectional"].values.grad.abs().sum() > 0


@pytest.mark.parametrize("target", [f"{HERE}:Weighted", f"{FAULTS}:Cached", f"{FAULTS}:clean"])
def test_steps_are_the_causal_form(target: str) -> None:
    attend, inputs = _built(target), torch.randn(3, 2, 2, 6, 4)
    whole, state = attend.causal(*inputs)[0], None
    start, state = attend.causal(*inputs[:, :, :, :3], state)
    rest = []
    for at in range(3, 6):
        mixed, state = attend.step(*inputs[:, :, :, at : at + 1], state)
        rest.append(mixed)
    torch.testing.assert_close(torch.cat([start, *rest], 2), whole)


def test_padding_behind_a_causal_sequence_needs_no_mask() -> None:
    attend, inputs = _built(f"{HERE}:Weighted"), torch.randn(3, 2, 2, 6, 4)
    keep = torch.arange(6).expand(2, 6) < 4
    torch.testing.assert_close(
        attend.causal(*inputs, keep=keep)[0][:, :, :4], attend.causal(*inputs[:, :, :, :4])[0], rtol=1e-5, atol=1e-6
    )
    with pytest.raises(SubquadError, match="Weighted takes no padding mask, but the sequences have different lengths"):
        attend.causal(*inputs, keep=~keep)


def test_padding_of_earlier_positions_is_remembered() -> None:
    attend, inputs = _built(f"{HERE}:Weighted"), torch.randn(3, 2, 2, 6, 4)
    state = attend.causal(*inputs[:, :, :, :4], keep=torch.arange(4).expand(2, 4) < 3)[1]
    with pytest.raises(SubquadError, match="takes no padding mask"):
        attend.step(*inputs[:, :, :, 4:5], state)
    masked = _built(f"{FAULTS}:clean")
    state = masked.causal(*inputs[:, :, :, :4], keep=torch.arange(4).expand(2, 4) < 3)[1]
    kept = inputs[:, :, :, [0, 1, 2, 4]]
    mixed = masked.step(*inputs[:, :, :, 4:5], state)[0]
    torch.testing.assert_close(mixed, masked.causal(*kept)[0][:, :, 3:])


def test_a_missing_mask_is_refused_and_a_full_one_is_none() -> None:
    attend, inputs = _built(f"{HERE}:mixes_all"), torch.randn(3, 2, 2, 6, 4)
    torch.testing.assert_close(attend(*inputs, keep=torch.ones(2, 6, dtype=torch.bool)), attend(*inputs))
    with pytest.raises(SubquadError, match="mixes_all takes no padding mask"):
        attend(*inputs, keep=torch.arange(6).expand(2, 6) < 4)


def test_numbers_of_keys_cannot_say_that_padding_comes_first() -> None:
    attend, inputs = _built(f"{FAULTS}:takes_lengths"), torch.randn(3, 2, 2, 6, 4)
    keep = torch.arange(6).expand(2, 6) < 4
    torch.testing.assert_close(attend(*inputs, keep=keep)[:, :, :4], attend(*inputs[:, :, :, :4]), rtol=1e-5, atol=1e-6)
    with pytest.raises(SubquadError, match="which must come first, but padding does"):
        attend(*inputs, keep=keep.flip(1))


def test_one_among_the_layers_speaks_for_the_model() -> None:
    traits = Layers((Linear(), _opened(f"{HERE}:Weighted"))).traits
    assert (traits.foreign, traits.steps, traits.causal) == (True, False, True)
    layers = Layers((Linear(), _opened(f"{HERE}:mixes_all")))
    assert layers.name == f"linear,{HERE}:mixes_all"
    with pytest.raises(SubquadError, match="foreign:mixes_all has no causal form"):
        require_causal(layers)


def test_equal_ones_are_equal_and_can_be_looked_up() -> None:
    options = _opened(f"{HERE}:Weighted", arguments={"spread": 2.0})
    same = _opened(f"{HERE}:Weighted", arguments={"spread": 2.0})
    assert {options: 1}[same] == 1
    assert options != _opened(f"{HERE}:Weighted", arguments={"spread": 3.0})


# What a file may name


def _values(target: str, **other: Any) -> Any:
    return json.loads(json.dumps({**asdict(Outside(target)), **other}))


def test_a_file_may_name_trusted_modules_only(monkeypatch: pytest.MonkeyPatch) -> None:
    values = _values(f"{HERE}:Weighted")
    with pytest.raises(
        SubquadError, match=f"run.json uses {HERE}:Weighted, which is code .*: set {VARIABLE}=tests to allow"
    ):
        options_from(values, "run.json")
    for trusted in ("test", "tests.attention.foreig", "tests.*", "*", "foreign", "tests.check", ""):
        monkeypatch.setenv(VARIABLE, trusted)
        with pytest.raises(SubquadError, match="which is code outside of subquad"):
            options_from(values)
    for trusted in ("tests", "tests.attention", HERE, f"other, {HERE}"):
        monkeypatch.setenv(VARIABLE, trusted)
        assert options_from(values) == Outside(f"{HERE}:Weighted")


def test_trust_ends_with_its_block() -> None:
    values = {"kind": "layers", "mechanisms": [asdict(Linear()), _values(f"{HERE}:Weighted")]}
    with trusting(["tests"]):
        assert options_from(values).name == f"linear,{HERE}:Weighted"
    with pytest.raises(SubquadError, match=r"mechanisms\[1\] uses"):
        options_from(values)


def test_code_is_not_imported_without_trust(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "trap.py").write_text("import pathlib\npathlib.Path('sprung').touch()\ndef attend(q, k, v): return v\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(SubquadError, match="trap:attend, which is code outside of subquad"):
        options_from(_values("trap:attend"))
    assert not (tmp_path / "sprung").exists()
    with trusting(["trap"]):
        options_from(_values("trap:attend"))
    assert (tmp_path / "sprung").exists()


@pytest.mark.parametrize(
    ("target", "module"),
    [
        ("subprocess.Popen", "subprocess"),
        ("torch.hub.load", "torch"),
        ("Weighted.__class__", "builtins"),
    ],
)
def test_what_a_trusted_module_imports_is_not_trusted_with_it(target: str, module: str) -> None:
    with trusting(["tests"]), pytest.raises(SubquadError, match=f"code of {module} outside of subquad"):
        options_from(_values(f"{HERE}:{target}", arguments={"args": "true", "shell": True}))


def test_a_name_that_was_typed_is_trusted_itself() -> None:
    target = "torch.nn.functional:scaled_dot_product_attention"  # which is defined elsewhere in torch
    with trusting([target]):
        assert options_from(_values(target)) == Outside(target)
        with pytest.raises(SubquadError, match="outside of subquad"):
            options_from(_values("torch.nn.functional:softmax"))


def test_damaged_values_are_refused_in_words() -> None:
    with trusting(["tests"]):
        for changed in ({"layout": "dnhb"}, {"target": 3}, {"target": f"{HERE}:Nothing"}, {"target": "no name"}):
            with pytest.raises(SubquadError):
                options_from(_values(f"{HERE}:Weighted") | changed)


def test_the_words_before_a_command_name_each_package_once() -> None:
    assert trust_words([]) == ""
    assert trust_words(["b.c:D", "a:B", "b:E"]) == f"{VARIABLE}=a,b "


def test_lengths_are_given_to_constructors() -> None:
    options = _opened(f"{HERE}:Placed")
    attend: Any = options.for_length(9).build(heads=2, head_dim=4)
    assert attend.held["causal"].places.shape == (9, 1)
    assert replace(options, length=9) == options.for_length(9)
