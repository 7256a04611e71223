"""The contract of attention as tests for pytest, for mechanisms of other packages.

.. code-block:: python

    from subquad.testing import contract

    test_attention = contract("mypackage.attention:MyAttention", heads=4, head_dim=16)

pytest then collects one test for each property: padding, future, batch, chunks, steps, half, gradients, determinism and
threads, of the bidirectional and the causal form. A property that cannot be asked is skipped with the reason, and a failure
shows the measured number and two lines that reproduce it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from subquad.attention.outside.conventions import Layout, MaskKind
from subquad.attention.outside.importing import sentence_of
from subquad.check.findings import Finding
from subquad.check.guessing import guess
from subquad.check.models import ModelRequest
from subquad.check.request import Request
from subquad.check.suite import CAUSAL, CHECKS, MODELS, AttentionCase, ModelCase, answer
from subquad.errors import SubquadError

FORMS = ("bidirectional", "causal")
PROPERTIES = tuple(check for check in CHECKS if check not in MODELS)
"""Names of the properties that `contract` tests."""


def ask(
    attention: Any,
    check: str,
    *,
    heads: int = 8,
    head_dim: int = 64,
    layer: bool = False,
    layout: Layout | None = None,
    mask: MaskKind | None = None,
    mask_argument: str = "",
    causal: bool = False,
    arguments: Mapping[str, Any] | None = None,
    call: Mapping[str, Any] | None = None,
    length: int | None = None,
    form: str = "",
) -> Finding:
    """Asks whether one property holds, in this process, and returns what was found.

    `attention` is a name such as ``"package.module:Name"``, or what such a name stands for. The other options are those of
    `contract`; `form` is "bidirectional" or "causal", by default the first that the attention has.
    """
    built, called = dict(arguments or {}), dict(call or {})
    name = _name(attention)
    given = Request(name, heads, head_dim, layer, layout, mask, mask_argument, causal, built, called, length)
    case = _case(given, None if isinstance(attention, str) else attention)
    chosen = form or (case.forms[-1] if check in CAUSAL else case.forms[0])
    return _answer(case, check, chosen, None if isinstance(attention, str) else attention)


def ask_model(
    model: str,
    check: str,
    *,
    causal: bool = False,
    arguments: Mapping[str, Any] | None = None,
    heads: int = 8,
    head_dim: int = 64,
    length: int | None = None,
) -> Finding:
    """Asks whether one property of a whole model holds, in this process. `model` is a folder or an import name."""
    _require(check, tuple(CHECKS))
    return answer(ModelCase(ModelRequest(model, causal, dict(arguments or {}), heads, head_dim, length)), check, "")


def contract(
    attention: Any,
    *,
    heads: int = 8,
    head_dim: int = 64,
    layer: bool = False,
    layout: Layout | None = None,
    mask: MaskKind | None = None,
    mask_argument: str = "",
    causal: bool = False,
    arguments: Mapping[str, Any] | None = None,
    call: Mapping[str, Any] | None = None,
    length: int | None = None,
    checks: Sequence[str] = PROPERTIES,
) -> Callable[..., None]:
    """Returns a test for pytest with one case for each property and form of an attention.

    Args:
        attention: A function on (q, k, v), a module or class of modules, a function of sizes that makes one, or a name such
            as ``"package.module:Name"`` for one of these.
        heads: Number of heads.
        head_dim: Dimension of one head.
        layer: Whether it is called on x, (batch, positions, heads * head_dim), instead of q, k and v.
        layout: Axes of its inputs: "bhnd", "bnhd", "bnm" or "nbm"; found by trying if it is None.
        mask: What its padding mask holds: "keep", "pad" or "additive"; found by trying if it is None.
        mask_argument: Name of the argument that takes the padding mask; found among usual names if it is empty.
        causal: Whether only its causal form is tested.
        arguments: Arguments of its constructor.
        call: Arguments of every call.
        length: Number of positions; one that it takes is found by trying if it is None.
        checks: Names of the properties to test.
    """
    import pytest

    sizes, both = (heads, head_dim, layer, layout), (dict(arguments or {}), dict(call or {}))
    request = Request(_name(attention), *sizes, mask, mask_argument, causal, *both, length)
    thing = None if isinstance(attention, str) else attention

    @cache
    def case() -> AttentionCase:
        return _case(request, thing)

    @pytest.mark.parametrize(("check", "form"), _cases(checks, causal))
    def test(check: str, form: str) -> None:
        problem = ""
        try:
            known = case()
        except SubquadError as error:  # it cannot be imported or called
            problem = str(error)
        if problem:  # out of the handler, so that the sentence is shown once
            pytest.fail(problem, pytrace=False)
        _require_property(known, check, form, thing)

    return test


def _require_property(case: AttentionCase, check: str, form: str, thing: Any) -> None:
    """Fails a test if a property does not hold, and skips it if it cannot be asked."""
    import pytest

    if form not in case.forms:
        pytest.skip(f"it has no {form} form, or does not say so")
    finding = _answer(case, check, form, thing)
    if finding.verdict == "not asked":
        pytest.skip(f"not asked: {finding.sentence}")
    if finding.verdict != "holds":
        pytest.fail(f"{finding}\n{finding.reproducer}", pytrace=False)


def _cases(checks: Sequence[str], causal: bool) -> list[tuple[str, str]]:
    """The names of properties with the forms that they are asked of. Raises `SubquadError` for unknown names."""
    for check in checks:
        _require(check, PROPERTIES)
    return [(check, form) for check in checks for form in FORMS if form == "causal" or not (causal or check in CAUSAL)]


def _name(attention: Any) -> str:
    if isinstance(attention, str):
        return attention
    kind = attention if hasattr(attention, "__qualname__") else type(attention)
    return f"{kind.__module__}:{kind.__qualname__}"


def _case(request: Request, thing: Any) -> AttentionCase:
    return AttentionCase(request, guess(request, thing))


def _answer(case: AttentionCase, check: str, form: str, thing: Any) -> Finding:
    """The finding; an attention that raises has failed."""
    _require(check, PROPERTIES)
    try:
        return answer(case, check, form, thing)
    except Exception as error:  # an attention may raise anything
        return replace(Finding(check, "fails", f"it raises {sentence_of(error)}"), form=form)


def _require(check: str, names: Sequence[str]) -> None:
    if check not in names:
        raise SubquadError(f"there is no property {check!r}: choose from {', '.join(names)}")
