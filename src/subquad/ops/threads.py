"""Threads that native kernels share with PyTorch."""

import ctypes
import os
from functools import cache, partial
from pathlib import Path

import torch

from subquad import native


@cache
def share_with_pytorch() -> None:
    """Lets native kernels run on the OpenMP threads of PyTorch, if its library of OpenMP is found.

    These threads wait by spinning for some milliseconds after each operation, and would share the cores with others.
    """
    for path in sorted(Path(torch.__file__).parent.glob("lib/lib*omp*.so*")):
        try:
            parallel = ctypes.CDLL(str(path)).GOMP_parallel
        except (OSError, AttributeError):
            continue
        native.share_threads(ctypes.cast(parallel, ctypes.c_void_p).value)
        os.register_at_fork(after_in_child=partial(native.share_threads, None))
        return
