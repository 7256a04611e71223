"""Native kernels: a small library in C, called with pointers, sizes and strides.

The library is compiled when the package is installed (`build.py`). It holds builds for several kinds of processors, of which
`subquad_target` names the fastest that this one can run. Without the library, PyTorch's operations do the same.

The variable SUBQUAD_KERNELS chooses: `native` (the default: this library on a CPU, Triton kernels on a GPU, where they are
there), `torch`, or `fla` (on a GPU, flash-linear-attention's kernels for the forms that it has).
"""

import ctypes
import os
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import Literal, get_args

from subquad.errors import SubquadError
from subquad.native.build import library_name, sources_hash, targets_of

VARIABLE = "SUBQUAD_KERNELS"
KERNELS = ("native", "torch")
MISSING = (
    "native kernels were not compiled, with which linear attention is several times as fast: install a C compiler, then run "
    "`python -m subquad.native`"
)
"""What is missed where the library is not there, and what to do."""
TARGET_VARIABLE = "SUBQUAD_TARGET"  # for tests: a slower build, such as avx2, in place of the fastest
LIBRARY = Path(__file__).parent / library_name()

Kernel = Callable[[int], int]
Kernels = Literal["native", "torch", "fla"]
"""Who computes: kernels of this package, PyTorch's operations, or the package flash-linear-attention on a GPU."""


@cache
def _library() -> ctypes.CDLL | None:
    """Loads the compiled library; None if there is none that can be used: see `missing`."""
    return None if missing() else ctypes.CDLL(str(LIBRARY))


@cache
def missing() -> str | None:
    """Returns a sentence on why native kernels cannot be used and what to do; None if they can."""
    if not LIBRARY.exists():
        return MISSING
    try:
        library = ctypes.CDLL(str(LIBRARY))
    except OSError as error:
        return f"the native kernels cannot be loaded ({error}): run `python -m subquad.native`, which compiles them"
    try:
        library.subquad_sources.restype = ctypes.c_char_p
        compiled_from = library.subquad_sources().decode()
    except AttributeError:
        compiled_from = ""
    if compiled_from == sources_hash():
        return None
    return "the native kernels were compiled from other sources than these: run `python -m subquad.native`"


@cache
def target() -> str:
    """Returns the name of the build that is used, such as avx512: the fastest that this processor runs, or a slower one.

    Raises `SubquadError` if SUBQUAD_TARGET names one that this processor does not run.
    """
    library = _library()
    assert library is not None
    library.subquad_target.restype = ctypes.c_char_p
    fastest = library.subquad_target().decode()
    name = os.environ.get(TARGET_VARIABLE) or fastest
    names = [build.name for build in targets_of()]
    runnable = names[names.index(fastest) :]  # an instruction that the processor does not have ends the process
    if name not in runnable:
        raise SubquadError(
            f"{TARGET_VARIABLE} is {name}, but this processor runs {' or '.join(runnable)}: change it, or leave it out"
        )
    return name


def is_there() -> bool:
    """Whether the library was compiled and can be loaded."""
    return _library() is not None


_chosen: ContextVar[Kernels | None] = ContextVar("kernels", default=None)  # None: as the variable says


@cache
def _by_variable() -> Kernels:
    """Returns the kernels that SUBQUAD_KERNELS names; native if it is not set."""
    word = os.environ.get(VARIABLE) or "native"
    for kernels in get_args(Kernels):
        if word == kernels:
            return kernels
    raise SubquadError(f"{VARIABLE} is {word}, but must be {' or '.join(get_args(Kernels))}: change it, or leave it out")


def is_chosen() -> bool:
    """Whether native kernels are used: they are there, and neither SUBQUAD_KERNELS nor `using` says torch."""
    return wanted() != "torch" and is_there()


def wanted() -> Kernels:
    """Returns the kernels that SUBQUAD_KERNELS or `using` asks for, whether or not they are there."""
    return _chosen.get() or _by_variable()


def chosen() -> Kernels:
    """Returns the kernels that are used: native or torch."""
    return "native" if is_chosen() else "torch"


def describe() -> str:
    """Describes the kernels that are used, for the record of a run: "native (avx512)", or "torch"."""
    return f"native ({target()})" if is_chosen() else "torch"


def choose(kernels: Kernels) -> None:
    """Chooses kernels, `native` or `torch`, for the rest of a process."""
    _chosen.set(kernels)


@contextmanager
def using(kernels: Kernels) -> Iterator[None]:
    """Chooses kernels, `native` or `torch`, inside a `with` block."""
    token = _chosen.set(kernels)
    try:
        yield
    finally:
        _chosen.reset(token)


def share_threads(parallel: int | None) -> None:
    """Lets kernels run on threads that OpenMP has for others already, given the address of its function GOMP_parallel.

    None gives them up: kernels then start threads of their own, as in a process that was forked, where OpenMP's are lost.
    """
    library = _library()
    if library is not None:
        library.subquad_share_threads(ctypes.c_void_p(parallel))


@cache
def kernel(name: str, number: str) -> Kernel:
    """Returns a function of the library, for a type of number: float or double."""
    library = _library()
    assert library is not None
    function = library[f"subquad_{name}_{target()}_{number}"]
    function.argtypes = [ctypes.c_void_p]
    function.restype = ctypes.c_int
    return function


def call(name: str, number: str, arguments: Sequence[int]) -> int:
    """Calls a function of the library with a structure of 64-bit integers and pointers, and returns what it returns.

    Raises `MemoryError` if it cannot allocate its buffers.
    """
    structure = array("q", arguments)  # held until the function returns
    status = kernel(name, number)(structure.buffer_info()[0])
    if status == 1:
        raise MemoryError("native kernels found no memory for their buffers: use shorter or fewer sequences")
    return status
