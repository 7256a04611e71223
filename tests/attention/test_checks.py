"""Bad input gets one sentence that names the argument, what it got and what it needs."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from subquad import Favor, Learned, Linear, Linformer, Random, SubquadError, require_causal
from subquad.attention import options_from
from tests.attention.cases import CASES, CAUSAL, HEAD_DIM, HEADS, build, gradients, inputs

x = torch.zeros(2, HEADS, 5, HEAD_DIM)

BAD: dict[str, tuple[dict[str, Tensor], str]] = {
    "rank": ({"q": x[0]}, r"q must be \(batch, heads, positions, head_dim\), but its shape is \(3, 5, 7\)"),
    "heads": ({"k": x[:, :2]}, r"k must have the shape \(2, 3, 5, 7\) to fit the rest, but has \(2, 2, 5, 7\)"),
    "heads of all": (dict.fromkeys("qkv", x[:, :2]), r"q must have the shape \(2, 3, 5, 7\) .* but has \(2, 2, 5, 7\)"),
    "head_dim": ({"k": x[..., :6]}, r"k must have the shape \(2, 3, 5, 7\) .* but has \(2, 3, 5, 6\)"),
    "batch": ({"v": x[:1]}, r"v must have the shape \(2, 3, 5, 7\) .* but has \(1, 3, 5, 7\)"),
    "keys and values": ({"v": x[:, :, :4]}, r"v must have the shape \(2, 3, 5, 7\) .* but has \(2, 3, 4, 7\)"),
    "integers": ({"q": x.long()}, r"q must hold floating-point numbers, but holds torch.int64: convert it with .float\(\)"),
    "types": ({"v": x.double()}, r"v is torch.float64 on cpu, but q is torch.float32 on cpu: all three must be alike"),
    "devices": ({"k": x.to("meta")}, r"k is torch.float32 on meta, but q is torch.float32 on cpu"),
    "mask shape": ({"keep": torch.ones(2, 4, dtype=torch.bool)}, r"keep must have the shape \(2, 5\) .* but has \(2, 4\)"),
    "mask type": ({"keep": torch.ones(2, 5)}, r"keep must hold booleans, true where a key is real, but holds torch.float32"),
}


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("what", BAD)
def test_bad_input_is_refused_in_words(name: str, what: str) -> None:
    changed, words = BAD[what]
    attend = build(name, torch.float32)
    arguments: dict[str, Any] = {"q": x, "k": x, "v": x, **changed}
    with pytest.raises(SubquadError, match=words):
        attend(arguments.pop("q"), arguments.pop("k"), arguments.pop("v"), **arguments)


def forms(name: str) -> list[Any]:
    attend = build(name, torch.float32)
    return [attend, attend.causal] if name in CAUSAL else [attend]


def with_bad(argument: str, bad: float) -> list[Tensor]:
    tensors = dict(zip("qkv", (part.detach() for part in inputs(9, dtype=torch.float32)), strict=True))
    tensors[argument][1, 2, 3, 4] = bad
    return list(tensors.values())


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("argument", ["q", "k", "v"])
def test_nan_is_named_with_its_place(name: str, argument: str) -> None:
    for form in forms(name):
        with pytest.raises(SubquadError, match=rf"{argument} holds NaN, first at \(1, 2, 3, 4\) of its shape"):
            form(*with_bad(argument, float("nan")))


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("argument", ["q", "k", "v"])
def test_infinite_numbers_give_no_silent_nan(name: str, argument: str) -> None:
    """Some maps can make sense of them; what cannot says which argument holds them."""
    for form in forms(name):
        said, mixed = "", torch.zeros(1)
        try:
            result = form(*with_bad(argument, float("inf")))
            mixed = result[0] if isinstance(result, tuple) else result
        except SubquadError as error:
            said = str(error)
        assert not mixed.isnan().any()
        assert not said or f"{argument} holds infinite numbers, first at (1, 2, 3, 4)" in said


def test_finite_input_whose_sum_overflows_is_no_mistake() -> None:
    attend = build("softmax", torch.float32)
    q, k, v = (part.detach() for part in inputs(64, dtype=torch.float32))
    v = torch.where(torch.arange(HEAD_DIM) % 2 == 0, 3e38, -3e38).expand_as(v).contiguous()
    assert not attend(q, k, v).isnan().any()


@pytest.mark.parametrize("name", CAUSAL)
def test_the_causal_form_needs_as_many_keys_as_queries(name: str) -> None:
    attend = build(name)
    with pytest.raises(SubquadError, match="k has 7 positions and q has 5: the causal form needs as many"):
        attend.causal(*inputs(5, 7))


@pytest.mark.parametrize("name", CAUSAL)
def test_a_state_of_another_batch_is_refused(name: str) -> None:
    attend = build(name)
    state = attend.causal(*inputs(5, batch=3))[1]
    for form in (attend.causal, attend.step):
        with pytest.raises(SubquadError, match=r"state\.\w+ must have the shape \(2, 3, "):
            form(*inputs(1), state)


def started(name: str) -> tuple[Any, Any, list[Tensor]]:
    """A mechanism, a state of it, and one position more."""
    attend = build(name, torch.float32)
    with torch.no_grad():
        state = attend.causal(*inputs(70, dtype=torch.float32))[1]
    return attend, state, [part.detach() for part in inputs(1, dtype=torch.float32, seed=2)]


@pytest.mark.parametrize("name", CAUSAL)
@pytest.mark.parametrize("kind", [tuple, list])
def test_the_parts_of_a_state_are_the_state(name: str, kind: Any) -> None:
    attend, state, one = started(name)
    for form in (attend.causal, attend.step):
        assert_close(form(*one, kind(state)), form(*one, state), rtol=0, atol=0)
        assert isinstance(form(*one, kind(state))[1], type(state))


@pytest.mark.parametrize("name", CAUSAL)
def test_what_is_no_state_is_refused_in_words(name: str) -> None:
    attend, state, one = started(name)
    other = build("infinity" if name.startswith(("hybrid", "linear", "favor", "softmax")) else "hybrid", torch.float32)
    kind, fields = type(state).__name__, ", ".join(state._fields)
    wanted = rf"state must be the {kind} that an earlier call returned, or its parts \({fields}\), but is of type "
    bad: dict[str, Any] = {
        "dict": state._asdict(),
        "Tensor": state[0],
        "int": 3,
        "tuple with 2 parts": tuple(state)[:2],
        r"\w+State": other.causal(*one)[1],
    }
    for form in (attend.causal, attend.step):
        for words, wrong in bad.items():
            with pytest.raises(SubquadError, match=wanted + words + "$"):
                form(*one, wrong)
        with pytest.raises(SubquadError, match=rf"state\.{state._fields[-1]} must be a tensor, but is of type list"):
            form(*one, [*state[:-1], []])


@pytest.mark.parametrize("name", CAUSAL)
def test_a_state_of_another_type_or_device_is_refused(name: str) -> None:
    attend, state, one = started(name)
    for field, part in state._asdict().items():
        floats = [torch.float64, torch.int64] if field in ("keys", "values") else [torch.float64, torch.float16, torch.int32]
        for wrong in (part.to("meta"), *(part.to(dtype) for dtype in floats if dtype != part.dtype)):
            words = rf"state\.{field} is {wrong.dtype} on {wrong.device}, but must be {part.dtype} on cpu to go with"
            for form in (attend.causal, attend.step):
                with pytest.raises(SubquadError, match=words):
                    form(*one, state._replace(**{field: wrong}))


@pytest.mark.parametrize("name", CAUSAL)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_inputs_of_half_precision_continue_a_state_of_float32_and_the_other_way_round(name: str, dtype: torch.dtype) -> None:
    """As where a prompt is read under autocast and the rest is not."""
    attend, state, one = started(name)
    half = [part.to(dtype) for part in one]
    for form in (attend.causal, attend.step):
        mixed, after = form(*half, state)
        assert mixed.dtype == dtype
        assert_close(mixed.float(), form(*one, state)[0], rtol=0.02, atol=0.02)
        assert form(*one, after)[0].dtype == torch.float32


@pytest.mark.parametrize("name", CAUSAL)
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_nan_in_a_state_is_named(name: str, bad: float) -> None:
    attend, state, one = started(name)
    for field, part in state._asdict().items():
        if not part.is_floating_point() or not part.numel():
            continue
        spoiled = part.clone()
        spoiled.view(-1)[0] = bad
        for form in (attend.causal, attend.step):
            said, mixed = "", torch.zeros(1)
            try:
                mixed = form(*one, state._replace(**{field: spoiled}))[0]
            except SubquadError as error:
                said = str(error)
            what = "NaN" if bad != bad else "infinite numbers"
            assert not mixed.isnan().any()
            assert not said or f"state.{field} holds {what}, first at (0, " in said
            used = field not in ("peak", "histogram") or name in ("favor", "infinity-sticky")
            used = used and not name.startswith("lsh")  # a query reads the keys of its own buckets only
            assert said or not (used and bad != bad)


@pytest.mark.parametrize("name", CAUSAL)
def test_a_state_is_not_reused_while_gradients_are_recorded(name: str) -> None:
    attend, state, one = started(name)
    words = r"reuse=True writes over the state, .*: leave reuse out, or call step under torch.no_grad\(\)"
    recorded = [part.clone().requires_grad_() for part in one]
    for before in (None, state):
        with pytest.raises(SubquadError, match=words):
            attend.step(*recorded, before, reuse=True)
    with pytest.raises(SubquadError, match=words):
        attend.step(*one, attend.step(*recorded, state)[1], reuse=True)
    if list(attend.parameters()):
        with pytest.raises(SubquadError, match=words):
            attend.step(*one, state, reuse=True)
    with torch.no_grad():
        assert_close(attend.step(*recorded, state, reuse=True)[0], attend.causal(*one, started(name)[1])[0])


@pytest.mark.parametrize("name", CAUSAL)
def test_sequences_that_share_a_state_do_not_share_what_is_written(name: str) -> None:
    """A prompt is read once, and its state expanded to several sequences."""
    attend, state, one = started(name)
    shared = type(state)(*(part[:1].expand_as(part) for part in state))
    with torch.no_grad():
        wanted = attend.step(*one, type(state)(*(part.clone() for part in shared)))
        assert_close(attend.step(*one, shared, reuse=True), wanted, rtol=0, atol=0)


@pytest.mark.parametrize("name", CAUSAL)
def test_a_state_of_inference_mode_is_continued_outside(name: str) -> None:
    attend, _, one = started(name)
    prompt = [part.detach() for part in inputs(70, dtype=torch.float32)]
    wanted = attend.causal(*one, attend.causal(*prompt)[1])[0]
    with torch.inference_mode():
        state = attend.causal(*prompt)[1]
    recorded = [part.clone().requires_grad_() for part in one]
    for form in (attend.causal, attend.step):
        mixed = form(*recorded, state)[0]
        assert_close(mixed, wanted)
        gradients(mixed, *recorded)
    with torch.no_grad():
        assert_close(attend.step(*one, state, reuse=True)[0], wanted)


@pytest.mark.parametrize("name", CAUSAL)
def test_a_step_of_several_positions_is_a_piece(name: str) -> None:
    attend, state, _ = started(name)
    several = [part.detach() for part in inputs(5, dtype=torch.float32)]
    for before in (None, state):
        assert_close(attend.step(*several, before), attend.causal(*several, before), rtol=0, atol=0)


def test_a_convolution_over_values_of_another_width_is_refused() -> None:
    q, k, v = inputs(9)
    with pytest.raises(SubquadError, match="v is 5 wide and k is 7: linformer by convolution mixes coordinates"):
        build("linformer-convolution")(q, k, v[..., :5])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (lambda: Favor(features=0), "features must be positive, but is 0"),
        (lambda: Favor(features=7, kernel="hyperbolic"), "features must be even and at least 2 for hyperbolic features"),
        (lambda: Linear(Random(features=-1)), "features must be positive, but is -1"),
        (lambda: Linear(Learned(features=3)), "features must be even and at least 2 for learned features, but is 3"),
        (lambda: Linear(Learned(features=0)), "features must be positive, but is 0"),
        (lambda: Linformer(k=0), "k must be positive, but is 0"),
        (lambda: Linformer(max_length=0), "max_length must be positive, but is 0"),
    ],
)
def test_impossible_options_are_refused(options: Callable[[], Any], words: str) -> None:
    with pytest.raises(SubquadError, match=words):
        options().build(heads=HEADS, head_dim=HEAD_DIM)


def test_a_mechanism_without_causal_form_is_refused_in_words() -> None:
    attend = Linformer().build(heads=2, head_dim=4)
    with pytest.raises(
        SubquadError,
        match=r"linformer has no causal form: it mixes positions; choose softmax, linear, favor, (\w+, )+\w+ or \w+$",
    ):
        require_causal(attend)
    with pytest.raises(SubquadError, match="linformer has no causal form"):
        require_causal(Linformer())


def test_a_file_with_an_unknown_kind_is_refused() -> None:
    with pytest.raises(
        SubquadError, match=r"must have a kind out of softmax, linear, favor, linformer, .*, but is .*unheard-of"
    ):
        options_from({"kind": "unheard-of"})
    with pytest.raises(SubquadError, match="has 'bits', which this version does not know: it was made by another one"):
        options_from({"kind": "favor", "bits": 3})
