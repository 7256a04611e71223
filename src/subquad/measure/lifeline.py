"""Child processes that end with the process that started them, however that ends."""

import ctypes
import os
import signal
import sys
import threading

import psutil

PARENT = "SUBQUAD_PARENT"
"""The environment variable by which `subquad.measure.tied` is told the id of a parent."""
_SET_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG in Linux's prctl.h


def end_with(parent: int) -> None:
    """Makes this process end when its parent ends, whose id is `parent`, and at once if that has ended already.

    Linux kills the process itself, also while it is suspended. Elsewhere a thread waits for the parent's end.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_DEATH_SIGNAL, signal.SIGKILL)
        if os.getppid() != parent:  # it ended before the line above
            os.kill(os.getpid(), signal.SIGKILL)
    else:
        threading.Thread(target=_outlive, args=(parent,), daemon=True).start()


def _outlive(parent: int) -> None:
    try:
        psutil.Process(parent).wait()
    except psutil.NoSuchProcess:
        pass
    finally:
        os._exit(1)
