"""Every shape annotation is checked while tests run."""

import gc
import importlib
import os
from collections.abc import Iterator
from importlib.util import find_spec

os.environ.setdefault("TRITON_INTERPRET", "1")  # Triton reads it once; tests of its kernels need no GPU then

import hypothesis
import jaxtyping
import pytest
import torch

from tests.shapes import annotated_modules

gc.disable()  # until tests are collected: what is imported and collected stays to the end

hypothesis.settings.register_profile("subquad", deadline=None, max_examples=20, derandomize=True)
hypothesis.settings.load_profile("subquad")

checks = jaxtyping.install_import_hook(list(annotated_modules()), "tests.shapes.check_shapes")
if find_spec("triton") is not None:  # Triton compiles the source of its kernels, which must not be changed by the checks
    importlib.import_module("subquad.ops.linear")
    checks.uninstall()
    for kernels in ("kernels", "back_kernels", "step_kernel"):
        importlib.import_module(f"subquad.ops.linear.gpu.{kernels}")
    jaxtyping.install_import_hook(list(annotated_modules()), "tests.shapes.check_shapes")

os.fsync = os.fstat  # type: ignore[assignment]  # tests wait for no disk: none of them cuts the power

torch.set_num_threads(1)  # workers share the cores; more threads each would wait for one another
os.environ.setdefault("OMP_NUM_THREADS", "1")  # the same for processes that tests start


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.get_closest_marker("first") is None)


def pytest_collection_finish() -> None:
    """Garbage is looked for among what tests make, not in all modules and all tests each time."""
    gc.collect()
    gc.freeze()
    gc.enable()


# Half a millisecond less than torch.manual_seed, which formats the stack for each kind of device that is not there.
_seed = torch.manual_seed if torch.accelerator.is_available() else torch.default_generator.manual_seed


@pytest.fixture(autouse=True)
def _deterministic() -> Iterator[None]:
    _seed(0)
    yield
    _seed(0)


@pytest.fixture
def unchecked_shapes() -> Iterator[None]:
    """Lets wrong shapes through to the words that refuse them. Compilers need it too: they do not see through the checks."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
