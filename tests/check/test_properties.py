"""Every check fails for a planted fault and holds without it, and what it shows as a reproducer reproduces."""

import io
import math
from contextlib import redirect_stdout
from typing import Any

import pytest
import torch

from subquad.attention import MECHANISMS
from subquad.check.findings import Finding
from subquad.check.growth import Grown, judge_growth
from subquad.check.guessing import guess
from subquad.check.request import Request
from subquad.check.suite import AttentionCase, answer
from subquad.testing import PROPERTIES, ask, contract
from tests.check.faults import Layer

HERE = "tests.check.faults"
SIZES: dict[str, Any] = {"heads": 3, "head_dim": 8}
FAULTS = {
    "normalises_over_the_future": "future",
    "leaks_in_long_sequences": "future",
    "writes_into_its_inputs": "determinism",
    "rounds_in_float32": "half",
    "counts_padding": "padding",
    "ignores_its_mask": "padding",
    "mixes_the_batch": "batch",
    "StepsOtherwise": "steps",
    "ForgetsItsState": "chunks",
    "draws_anew": "determinism",
    "differentiates_wrongly": "gradients",
    "overflows": "half",
    "shares_memory_between_threads": "threads",
}


@pytest.fixture(autouse=True)
def _shapes_are_free(unchecked_shapes: None) -> None:
    """Attentions of others are called with layouts that the annotations here do not know."""


def printed(lines: str) -> float:
    output = io.StringIO()
    with redirect_stdout(output):
        exec(compile(lines, "pasted", "exec"), {})
    return float(output.getvalue().split()[-1])


def test_random_numbers_of_a_call_fail_determinism_alone() -> None:
    """As in reformer-pytorch, which draws its hash in every call."""
    asked = ("determinism", "batch", "gradients", "threads", "half")
    verdicts = {check: ask(f"{HERE}:draws_weights", check, **SIZES).verdict for check in asked}
    unasked = {"threads": "not asked", "half": "not asked"}
    assert verdicts == {"determinism": "fails", "batch": "holds", "gradients": "holds", **unasked}


@pytest.mark.parametrize("check", ["gradients", "padding", "batch", "determinism"])
def test_weights_in_float32_are_no_fault(check: str) -> None:
    """As in x-transformers. Small steps in float64 would find leaps where they look for derivatives."""
    assert ask(f"{HERE}:weighs_in_float32", check, **SIZES).verdict == "holds"


@pytest.mark.parametrize(("name", "check"), FAULTS.items())
def test_a_planted_fault_fails_and_is_reproduced_by_two_lines(name: str, check: str) -> None:
    finding = ask(f"{HERE}:{name}", check, **SIZES)
    assert finding.verdict == "fails", finding
    lines = finding.reproducer.splitlines()
    assert len(lines) == 2
    assert "subquad" not in finding.reproducer  # plain PyTorch shows it
    number, allowed = printed(finding.reproducer), finding.allowed
    assert allowed is not None
    assert not math.isfinite(number) or number > allowed


@pytest.mark.parametrize(("name", "check"), FAULTS.items())
def test_a_planted_fault_is_found_by_its_own_check_only(name: str, check: str) -> None:
    related = {"gradients"} if check == "determinism" else set()  # noise is no derivative
    for other in (other for other in PROPERTIES if other not in {check, *related}):
        assert ask(f"{HERE}:{name}", other, **SIZES).verdict in ("holds", "not asked"), other


CLEAN: dict[str, set[str]] = {
    "torch.nn.functional:scaled_dot_product_attention": {"chunks", "steps"},
    "torch.nn:MultiheadAttention": {"chunks", "steps"},
    "torch.nn:TransformerEncoderLayer": {"chunks", "steps"},
    f"{HERE}:Cached": {"padding"},
    f"{HERE}:passes_a_state": {"padding"},
    f"{HERE}:by_position": {"future", "chunks", "steps"},
    f"{HERE}:takes_lengths": {"future", "chunks", "steps"},
    f"{HERE}:Layer": {"chunks", "steps"},
}
"""Clean attentions, with what cannot be asked of them."""


@pytest.mark.parametrize(("name", "unasked"), CLEAN.items())
def test_clean_attentions_are_clean(name: str, unasked: set[str]) -> None:
    findings = {check: ask(name, check, **SIZES) for check in PROPERTIES}
    assert {check for check, finding in findings.items() if finding.verdict == "not asked"} == unasked
    assert [finding for finding in findings.values() if finding.verdict == "fails"] == []


@pytest.mark.parametrize("name", MECHANISMS)
def test_the_mechanisms_here_are_clean(name: str) -> None:
    kind = MECHANISMS[name]
    request = Request(f"{kind.__module__}:{kind.__qualname__}", heads=2, head_dim=8)
    case = AttentionCase(request, guess(request))
    assert case.forms == ("bidirectional", "causal")[: 1 + kind().traits.causal]
    for form in case.forms:
        for check in PROPERTIES:
            finding = answer(case, check, form)
            is_open = form == "bidirectional" and check in ("future", "chunks", "steps")
            assert finding.verdict == ("not asked" if is_open else "holds"), finding


test_contract_of_a_module = contract(f"{HERE}:Cached", **SIZES)
test_contract_of_a_torch_module = contract("torch.nn:MultiheadAttention", **SIZES, checks=["padding", "future", "batch"])


def test_contract_fails_with_the_number_and_the_lines() -> None:
    test: Any = contract(f"{HERE}:mixes_the_batch", **SIZES)
    with pytest.raises(pytest.fail.Exception, match=r"other sequences move a sequence's results by [\s\S]*import torch"):
        test("batch", "bidirectional")
    with pytest.raises(pytest.skip.Exception, match="no argument for a padding mask"):
        test("padding", "bidirectional")
    with pytest.raises(pytest.skip.Exception, match="no causal form"):
        test("future", "causal")


def test_contract_of_what_is_not_there_fails_in_one_sentence() -> None:
    test: Any = contract(f"{HERE}:absent", **SIZES)
    with pytest.raises(pytest.fail.Exception, match=r"^tests\.check\.faults has no 'absent'") as failure:
        test("batch", "bidirectional")
    assert failure.value.__context__ is None  # pytest would show the sentence twice


def test_an_instance_is_asked_and_left_as_it_is() -> None:
    layer = Layer(24, 3)
    assert ask(layer, "batch", **SIZES).verdict == "holds"
    assert {weight.dtype for weight in layer.parameters()} == {torch.float32}


def test_an_attention_that_raises_has_failed() -> None:
    finding = ask(f"{HERE}:raises_for_three", "batch", **SIZES)
    assert (finding.verdict, finding.value) == ("fails", None)
    assert finding.sentence == "it raises ValueError: three are a crowd"


def test_findings_come_back_from_rows() -> None:
    finding = Finding("time", "fails", "too fast a growth", value=2.0, allowed=1.5, form="causal", low=1.9, high=2.1)
    assert Finding.of_row(finding.row()) == finding
    open_one = Finding("padding", "not asked", "no mask")
    assert Finding.of_row(open_one.row()) == open_one


@pytest.mark.parametrize(
    ("power", "limit", "verdict"),
    [(2.0, 1.5, "fails"), (1.0, 1.5, "holds"), (1.0, None, "measured"), (1.5, 1.5, "not decided")],
)
def test_growth_is_judged_by_its_exponent(power: float, limit: float | None, verdict: str) -> None:
    visits = {length: [length**power * wobble for wobble in (0.98, 1.0, 1.03)] for length in (256, 512, 1024, 2048)}
    finding = judge_growth("time", visits, limit, "")
    assert finding.verdict == verdict
    assert finding.value == pytest.approx(power, abs=0.1)


def test_too_few_lengths_decide_nothing() -> None:
    finding = judge_growth("memory", {256: [1e7], 512: [2e7]}, 1.5, "out of memory at 1024 positions")
    assert (finding.verdict, finding.sentence) == ("not asked", "out of memory at 1024 positions")
    assert Grown({256: [1.0]}, {256: [4096.0]}).rows("causal")[0]["length"] == 256


def test_memory_below_what_can_be_measured_decides_nothing() -> None:
    small = judge_growth("memory", {256: [4096.0], 512: [4096.0], 1024: [266240.0]}, 1.5, "")
    assert small.verdict == "not asked"
    assert "1 MB" in small.sentence


def test_a_mask_of_one_sequence_for_all_is_found() -> None:
    assert ask(f"{HERE}:masks_all_by_the_first", "padding", **SIZES).verdict == "fails"
    assert ask(f"{HERE}:clean", "padding", **SIZES).verdict == "holds"


@pytest.mark.parametrize("check", ["chunks", "steps"])
def test_random_numbers_are_not_blamed_on_a_state(check: str) -> None:
    assert ask(f"{HERE}:DrawsWithState", check, **SIZES).verdict == "not asked"


def test_fixed_costs_do_not_hide_a_square() -> None:
    visits = {
        length: [(1 + 1.5 * (length / 2048) ** 2) * noise for noise in (0.999, 1.0, 1.001)]
        for length in (256, 512, 1024, 2048)
    }
    found = judge_growth("time", visits, 1.2, "")
    assert found.verdict == "not decided"
    assert "fixed costs make up most of it" in found.sentence
