"""The contract suite runs over native kernels, over PyTorch's operations, and where it is slow over Triton kernels.

PyTorch's operations are left out for mechanisms without native kernels, for which they are the same. Triton kernels run the
values, gradients and edge cases of a few mechanisms, in Triton's interpreter.
"""

from collections.abc import Iterator
from importlib.util import find_spec

import pytest

from subquad import native
from tests.interpreting import interpreted

NATIVE = ("linear", "favor", "hybrid")  # beginnings of the names of cases that reach native kernels
COMPILED = (
    "test_compiles_whole",
    "test_exports_for_any_length",
)  # take seconds each: over PyTorch's operations they are slow
TRITON = "triton"
INTERPRETED: dict[str, dict[str, tuple[float, ...]]] = {
    "test_equals_its_equation": {"queries": (131,)},
    "test_causal_equals_its_equation": {"length": (157,)},
    "test_padding_changes_nothing_in_the_causal_form": {},
    "test_the_future_changes_nothing": {},
    "test_step_equals_causal": {},
    "test_finite_for_loud_input": {"scale": (1.0, 30.0)},
    "test_half_precision_is_as_good_as_its_inputs": {},
    "test_nothing_to_see_gives_zeros": {},
    "test_an_empty_sequence_gives_an_empty_result": {},
    "test_no_sequences_give_none": {"length": (200,)},
    "test_split_heads_need_not_be_contiguous": {},
}
"""Tests that Triton kernels run, without these values of parameters, for which the interpreter takes minutes."""
INTERPRETED_CASES = ("linear", "favor", "favor-hyperbolic")


TRITON_PARAMS = [pytest.param(TRITON, marks=pytest.mark.slow)] if find_spec("triton") is not None else []


@pytest.fixture(params=[*native.KERNELS, *TRITON_PARAMS])
def kernels(request: pytest.FixtureRequest) -> Iterator[None]:
    """Chooses the kernels that a test runs with."""
    if request.param == TRITON:
        with interpreted():
            yield
        return
    name = request.node.callspec.params.get("name", "")
    if request.param == "native" and name.startswith(NATIVE) and not native.is_there():
        pytest.skip("the native kernels are not compiled")
    with native.using(request.param):
        yield


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out runs over PyTorch's operations that would be the same as the first, and most runs over Triton kernels."""
    same, kept = [], []
    for item in items:
        parameters = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
        if parameters.get("kernels") == TRITON and not _is_interpreted(item.name, parameters):
            same.append(item)
            continue
        if parameters.get("kernels") == "torch":
            if not str(parameters.get("name", "")).startswith(NATIVE):
                same.append(item)
                continue
            if item.name.startswith(COMPILED):
                item.add_marker(pytest.mark.slow)
        kept.append(item)
    if same:
        config.hook.pytest_deselected(items=same)
        items[:] = kept


def _is_interpreted(test: str, parameters: dict[str, object]) -> bool:
    """Whether Triton kernels run a test with these parameters."""
    left_out = INTERPRETED.get(test.split("[")[0])
    if left_out is None or parameters.get("name") not in INTERPRETED_CASES:
        return False
    return not any(parameters[name] in values for name, values in left_out.items())
