"""Tests of the native kernels need the compiled library. Without a C compiler there is none.

SUBQUAD_TEST_LIBRARY names another library to test, such as one with sanitizers.
"""

import os
from pathlib import Path

import pytest

from subquad import native
from subquad.native.build import find_compiler


@pytest.fixture(autouse=True)
def _library() -> None:
    if native.missing() is not None and find_compiler() is None:
        pytest.skip("no C compiler, so no native kernels")
    assert native.missing() is None, native.missing()


if another := os.environ.get("SUBQUAD_TEST_LIBRARY"):
    native.LIBRARY = Path(another)
