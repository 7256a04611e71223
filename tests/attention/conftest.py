"""The contract suite runs over native kernels and over PyTorch's operations for the mechanisms that have native kernels."""

from collections.abc import Iterator

import pytest

from subquad import native

NATIVE = ("linear", "favor", "hybrid")  # beginnings of the names of cases that reach native kernels
COMPILED = (
    "test_compiles_whole",
    "test_exports_for_any_length",
)  # take seconds each: over PyTorch's operations they are slow


@pytest.fixture(params=native.KERNELS)
def kernels(request: pytest.FixtureRequest) -> Iterator[None]:
    """Chooses the kernels that a test runs with."""
    name = request.node.callspec.params.get("name", "")
    if request.param == "native" and name.startswith(NATIVE) and not native.is_there():
        pytest.skip("the native kernels are not compiled")
    with native.using(request.param):
        yield


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out the second run of cases without native kernels, which would be the same as the first."""
    same, kept = [], []
    for item in items:
        parameters = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
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
