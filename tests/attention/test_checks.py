"""Bad input gets one sentence that names the argument, what it got and what it needs."""

from typing import Any

import pytest
import torch
from torch import Tensor

from subquad import Favor, Learned, Linear, Linformer, Random, SubquadError, require_causal
from subquad.attention import options_from
from tests.attention.cases import CASES, CAUSAL, HEADS, WIDTH, build, inputs

x = torch.zeros(2, HEADS, 5, WIDTH)

BAD: dict[str, tuple[dict[str, Tensor], str]] = {
    "rank": ({"q": x[0]}, r"q must be \(batch, heads, positions, width\), but its shape is \(3, 5, 7\)"),
    "heads": ({"k": x[:, :2]}, r"k must have the shape \(2, 3, 5, 7\) to fit the rest, but has \(2, 2, 5, 7\)"),
    "heads of all": (dict.fromkeys("qkv", x[:, :2]), r"q must have the shape \(2, 3, 5, 7\) .* but has \(2, 2, 5, 7\)"),
    "width": ({"k": x[..., :6]}, r"k must have the shape \(2, 3, 5, 7\) .* but has \(2, 3, 5, 6\)"),
    "batch": ({"v": x[:1]}, r"v must have the shape \(2, 3, 5, 7\) .* but has \(1, 3, 5, 7\)"),
    "keys and values": ({"v": x[:, :, :4]}, r"v must have the shape \(2, 3, 5, 7\) .* but has \(2, 3, 4, 7\)"),
    "integers": ({"q": x.long()}, r"q must hold floating-point numbers, but holds torch.int64: convert it with .float\(\)"),
    "types": ({"v": x.double()}, r"v is torch.float64 on cpu, but q is torch.float32 on cpu: all three must be alike"),
    "devices": ({"k": x.to("meta")}, r"k is torch.float32 on meta, but q is torch.float32 on cpu"),
    "mask shape": ({"keep": torch.ones(2, 4, dtype=torch.bool)}, r"keep must have the shape \(2, 5\) .* but has \(2, 4\)"),
    "mask type": ({"keep": torch.ones(2, 5)}, r"keep must hold booleans, true where a key is real, but holds torch.float32"),
}


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
    v = torch.where(torch.arange(WIDTH) % 2 == 0, 3e38, -3e38).expand_as(v).contiguous()
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


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (Favor(features=0), "features must be at least 1, but is 0"),
        (Favor(features=7, kernel="hyperbolic"), "features must be even and at least 2 for hyperbolic features, but is 7"),
        (Linear(Random(features=-1)), "features must be at least 1, but is -1"),
        (Linear(Learned(features=3)), "features must be even and at least 2 for learned features, but is 3"),
        (Linear(Learned(features=0)), "features must be even and at least 2 for learned features, but is 0"),
        (Linformer(k=0), "linformer's k must be at least 1, but is 0"),
        (Linformer(max_length=0), "linformer's max_length must be at least 1, but is 0"),
    ],
)
def test_impossible_options_are_refused(options: Any, words: str) -> None:
    with pytest.raises(SubquadError, match=words):
        options.build(heads=HEADS, width=WIDTH)


def test_a_mechanism_without_causal_form_is_refused_in_words() -> None:
    attend = Linformer().build(heads=2, width=4)
    with pytest.raises(
        SubquadError,
        match="linformer has no causal form: it mixes positions; choose softmax, linear, favor, infinity or hybrid",
    ):
        require_causal(attend, "linformer")


def test_a_file_with_an_unknown_kind_is_refused() -> None:
    with pytest.raises(
        SubquadError, match="kind must be one of softmax, linear, favor, linformer, infinity, hybrid, but is 'sparse'"
    ):
        options_from({"kind": "sparse"})
    with pytest.raises(SubquadError, match="favor has no options bits: the file is of another version"):
        options_from({"kind": "favor", "bits": 3})
