"""Every shape annotation below the public surface is checked while tests run."""

from collections.abc import Iterator

import hypothesis
import jaxtyping
import pytest
import torch

hypothesis.settings.register_profile("subquad", deadline=None, max_examples=20, derandomize=True)
hypothesis.settings.load_profile("subquad")

# The mechanisms and models check their input in words, which bad-input tests read. What they call is checked here.
jaxtyping.install_import_hook(["subquad.ops", "subquad.feature_maps"], "beartype.beartype")

torch.set_num_threads(1)  # workers share the cores; more threads each would wait for one another


@pytest.fixture(autouse=True)
def _deterministic() -> Iterator[None]:
    torch.manual_seed(0)
    yield
    torch.manual_seed(0)
