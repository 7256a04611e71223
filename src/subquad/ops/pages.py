"""New memory in large pages.

The system gives out memory page by page when it is first written, which takes several times as long as writing: 128 MB take
62 ms in pages of 4 kB, and 18 ms in pages of 2 MB. Allocators return large memory to the system when it is freed, so that
every call with long sequences pays for new pages. `native/pages.h` asks in the same way for the results of kernels.
"""

import ctypes
import sys
from functools import cache
from typing import Any

from torch import Tensor

from subquad.ops.autocast import is_traced

WORTH_LARGE_PAGES = 2**24  # bytes of a tensor
LARGE_PAGE = 2**21
ADVISE_LARGE_PAGES = 14  # MADV_HUGEPAGE


def in_large_pages(x: Tensor) -> Tensor:
    """Returns a new tensor, nothing of which has been written yet, after asking for large pages if it is large."""
    size = x.numel() * x.element_size()
    if size >= WORTH_LARGE_PAGES and x.is_cpu and not is_traced():
        _ask_for_large_pages(x.data_ptr(), size)
    return x


def new_empty(like: Tensor, *shape: int) -> Tensor:
    """Returns an uninitialized tensor with the dtype and device of `like`, in large pages if it is large."""
    return in_large_pages(like.new_empty(shape))


def new_zeros(like: Tensor, *shape: int) -> Tensor:
    """Returns zeros with the dtype and device of `like`, in large pages if they are large."""
    return new_empty(like, *shape).zero_()


def _ask_for_large_pages(address: int, size: int) -> None:
    """Asks for large pages within this memory. Nothing happens where there are none, or if the memory was used before."""
    begin = -(-address // LARGE_PAGE) * LARGE_PAGE
    end = (address + size) // LARGE_PAGE * LARGE_PAGE
    advise = _advise()
    if advise is not None and end > begin:
        advise(begin, end - begin, ADVISE_LARGE_PAGES)


@cache
def _advise() -> Any:
    """Returns the system's `madvise`; None where it is not Linux's."""
    if sys.platform != "linux":
        return None
    advise = ctypes.CDLL(None).madvise
    advise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return advise
