"""How an attention is called is found out by trying, and said; what cannot be called is refused in words."""

from dataclasses import asdict
from typing import Any

import pytest
import torch

from subquad.attention import Outside, options_from
from subquad.attention.outside.importing import import_named
from subquad.attention.outside.trust import trusting
from subquad.check.guessing import CallError, guess
from subquad.check.request import Request
from subquad.cli.outside import read_arguments
from subquad.errors import SubquadError

HERE = "tests.check.faults"


@pytest.fixture(autouse=True)
def _shapes_are_free(unchecked_shapes: None) -> None:
    """Attentions of others are called with layouts that the annotations here do not know."""


@pytest.mark.parametrize(
    ("name", "layout", "mask", "shape", "causal_by", "forms"),
    [
        ("torch.nn.functional:scaled_dot_product_attention", "bhnd", "keep", "scores", "call", 2),
        ("torch.nn:MultiheadAttention", "nbm", "pad", "keys", "mask", 2),
        ("torch.nn:TransformerEncoderLayer", "nbm", "pad", "keys", "mask", 2),
        (f"{HERE}:by_position", "bnhd", "pad", "keys", "nothing", 1),
        (f"{HERE}:adds_its_mask", "bhnd", "additive", "scores", "mask", 2),
        (f"{HERE}:adds_its_mask_before_it_scales", "bhnd", "additive", "scores", "mask", 2),
        (f"{HERE}:adds_a_bias", "bhnd", "additive", "scores", "mask", 2),
        (f"{HERE}:optional_keys", "bnhd", "keep", "scores", "mask", 2),
        (f"{HERE}:clean", "bhnd", "keep", "keys", "call", 2),
        (f"{HERE}:takes_lengths", "bhnd", "lengths", "keys", "nothing", 1),
        (f"{HERE}:Layer", "bnm", "keep", "keys", "constructor", 2),
        (f"{HERE}:make", "bhnd", None, "keys", "method", 2),
        ("subquad.attention:Linear", "bhnd", "keep", "keys", "method", 2),
        ("subquad.attention:Linformer", "bhnd", "keep", "keys", "nothing", 1),
    ],
)
def test_the_call_is_found_out(name: str, layout: str, mask: str, shape: str, causal_by: str, forms: int) -> None:
    guessed = guess(Request(name, heads=3, head_dim=8))
    found = guessed.outside
    assert (found.layout, found.mask, found.causal_by, len(guessed.forms)) == (layout, mask, causal_by, forms)
    assert mask is None or found.mask_shape == shape
    assert f"layout {' '.join(layout)}" in guessed.notes


def test_what_rounds_to_float32_is_asked_in_it() -> None:
    rounded, exact = (guess(Request(f"{HERE}:{name}", heads=3, head_dim=8)) for name in ("weighs_in_float32", "clean"))
    assert (rounded.outside.is_double, exact.outside.is_double) == (False, True)
    assert "asked in float32, as it does not compute in float64" in rounded.notes


def test_a_length_that_is_refused_does_not_lead_to_another_layout() -> None:
    """In the layout b n m, whose third axis is even, the call returns something too."""
    guessed = guess(Request(f"{HERE}:takes_even_lengths", heads=3, head_dim=8))
    assert (guessed.outside.layout, guessed.whole) == ("bhnd", 256)


def test_a_message_ends_with_one_full_stop() -> None:
    with pytest.raises(CallError, match="must be even\\): --call"):
        guess(Request(f"{HERE}:takes_even_lengths", heads=3, head_dim=8, length=157, layout="bhnd"))


def test_what_is_given_is_not_guessed() -> None:
    given = Request(
        "torch.nn:MultiheadAttention", 3, 8, layout="bnm", mask="pad", arguments={"batch_first": True}, causal=True
    )
    guessed = guess(given)
    assert (guessed.outside.layout, guessed.forms) == ("bnm", ("causal",))
    assert not any(note.startswith("layout") for note in guessed.notes)


def test_an_attention_that_says_nothing_of_being_causal_is_asked_with_causal() -> None:
    assert guess(Request(f"{HERE}:by_position", 3, 8)).forms == ("bidirectional",)
    assert guess(Request(f"{HERE}:by_position", 3, 8, causal=True)).forms == ("causal",)


def test_one_length_is_noticed() -> None:
    guessed = guess(Request(f"{HERE}:OneLength", 3, 8, length=24))
    assert (guessed.whole, guessed.part, guessed.outside.is_fixed) == (24, None, True)
    assert guessed.outside.sizes["seq_len"] == "length"
    assert guessed.outside.for_length(48).length == 48


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("raises", "ValueError: no such thing"),
        ("sums_positions", "it returns the shape"),
        ("returns_nothing", "it returns NoneType, not a tensor"),
        ("needs_a_gpu", "it seems to need a GPU, but is tried on a CPU: make it compute where its inputs are"),
        ("takes_two", "takes 2 positional arguments"),
    ],
)
def test_what_cannot_be_called_is_said_in_one_sentence(name: str, says: str) -> None:
    with pytest.raises(CallError) as error:
        guess(Request(f"{HERE}:{name}", 3, 8))
    assert says in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        (f"{HERE}:Needs", "its argument 'feature_map' has no default; give it with --arguments feature_map=VALUE"),
        (f"{HERE}:number", "is of type int, which cannot be called"),
        (f"{HERE}:nowhere", "has no 'nowhere'"),
        ("no_such_module:f", "there is no module no_such_module"),
        ("tests.no_such_module:f", "there is no module tests.no_such_module"),
        ("nonsense", "is no name to import"),
        ("a b:c", "is no name to import"),
    ],
)
def test_what_cannot_be_imported_or_built_is_refused(name: str, says: str) -> None:
    with pytest.raises(SubquadError) as error:
        guess(Request(name, 3, 8))
    assert says in str(error.value)
    assert not isinstance(error.value, CallError)


def test_modules_of_the_current_folder_are_found(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lying_here.py").write_text("def f(q, k, v):\n    return v\n")
    (tmp_path / "lying_broken.py").write_text("import not_there_at_all\n")
    (tmp_path / "lying_wrong.py").write_text("1 / 0\n")
    monkeypatch.chdir(tmp_path)
    assert import_named("lying_here:f")(1, 2, 3) == 3
    with pytest.raises(SubquadError, match="lying_broken cannot be imported, it needs not_there_at_all"):
        import_named("lying_broken:f")
    with pytest.raises(SubquadError, match="lying_wrong cannot be imported: ZeroDivisionError"):
        import_named("lying_wrong:f")


def test_an_outside_attention_is_a_mechanism() -> None:
    options = guess(Request("torch.nn:MultiheadAttention", heads=3, head_dim=8)).outside
    attend = options.build(heads=3, head_dim=8).eval()
    q, k, v = torch.randn(3, 2, 3, 11, 8)
    keep = torch.arange(11).expand(2, 11) < 7
    mixed = attend(q, k, v, keep=keep)
    assert mixed.shape == (2, 1, 11, 24)
    k[:, :, 7:] = 100
    torch.testing.assert_close(attend(q, k, v, keep=keep), mixed)
    whole, state = attend.causal(q[:, :, :7], k[:, :, :7], v[:, :, :7])[0], None
    for at in range(7):  # it keeps no state of its own, so it reads everything again
        step, state = attend.step(*(x[:, :, at : at + 1] for x in (q, k, v)), state)
        torch.testing.assert_close(step, whole[:, :, at : at + 1])
    assert (options.traits.causal, options.traits.steps, options.traits.foreign) == (True, False, True)


def test_an_outside_attention_comes_back_from_a_file() -> None:
    options = guess(Request(f"{HERE}:Layer", heads=3, head_dim=8)).outside
    with trusting([HERE]):
        assert options_from(asdict(options), "a file") == options
        assert isinstance(options, Outside)
        with pytest.raises(SubquadError, match="layout"):
            options_from({**asdict(options), "layout": "dnhb"}, "a file")


@pytest.mark.parametrize(
    ("words", "values"),
    [
        (["a=1", "b=2.5", "c=true", "d=None"], {"a": 1, "b": 2.5, "c": True, "d": None}),
        (["a=elu", "b=[1, 2]", "c=a=b", "d="], {"a": "elu", "b": [1, 2], "c": "a=b", "d": ""}),
    ],
)
def test_arguments_are_read(words: list[str], values: dict[str, Any]) -> None:
    assert read_arguments("--arguments", words) == values


@pytest.mark.parametrize("word", ["features", "=3", "a b=3", ""])
def test_arguments_that_are_none_are_refused(word: str) -> None:
    with pytest.raises(SubquadError, match="--arguments takes words such as features=256"):
        read_arguments("--arguments", [word])


def test_a_result_that_lacks_a_position_is_no_other_layout() -> None:
    """In the layout b n h d it would lack a head, and could be called."""
    with pytest.raises(CallError, match=r"it returns the shape \(2, 3, 156, 8\) for inputs of the shape \(2, 3, 157, 8\)"):
        guess(Request(f"{HERE}:returns_less", heads=3, head_dim=8))
