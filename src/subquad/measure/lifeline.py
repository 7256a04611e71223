"""Makes child processes end together with the process that started them."""

import ctypes
import os
import signal
import sys
import threading

import psutil

PARENT = "SUBQUAD_PARENT"
"""Environment variable with the id of the parent process for `subquad.measure.tied`."""
_SET_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG in Linux's prctl.h


def end_with(parent: int) -> None:
    """Makes this process end when the process with the id `parent` ends, at once if it has ended already.

    Linux kills the process, even while it is suspended. On other systems a thread waits for the end of the parent.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_DEATH_SIGNAL, signal.SIGKILL)
        if os.getppid() != parent:  # the parent ended before the call above
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
