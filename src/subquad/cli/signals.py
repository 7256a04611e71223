"""Handling of signals in commands."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def ends_like_ctrl_c() -> Iterator[None]:
    """Inside the block, SIGTERM raises `KeyboardInterrupt`, so that it ends a command as Ctrl-C does.

    The handler stays unchanged if SIGTERM was ignored at the start, and outside of the main thread, which cannot set it.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
