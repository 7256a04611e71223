"""Triton kernels on CPU tensors, in Triton's interpreter, which conftest.py asks for before Triton is imported."""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import pytest
import torch

from subquad import native
from subquad.ops.linear import gpu

NOT_THERE = "Triton is not installed: the extra gpu has it"


@contextmanager
def interpreted() -> Iterator[None]:
    """Lets Triton kernels process tensors on the CPU, float64 among them. Skips the test without Triton."""
    pytest.importorskip("triton", reason=NOT_THERE)
    with (
        native.using("native"),
        patch.object(gpu, "DEVICES", ("cpu",)),
        patch.object(gpu, "DTYPES", (*gpu.DTYPES, torch.float64)),
    ):
        yield
