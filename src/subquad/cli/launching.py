"""Starts the processes of a training whose sequences are cut over several, and waits for them."""

import os
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

import torch

from subquad.cli import BUG, INTERRUPTED, USER_MISTAKE
from subquad.cli.streams import say
from subquad.errors import SubquadError

POLL_SECONDS = 0.1
"""Pause between two looks at the processes."""
GRACE_SECONDS = 10.0
"""Longest time that processes have to end after one of them ended early; then they are killed."""
SECONDARY = "lost another one"
"""Words in the sentence of a process that ends because another one did."""


def is_launched() -> bool:
    """Whether this process is one of several that `launch` or `accelerate launch` started."""
    return int(os.environ.get("WORLD_SIZE", 1)) > 1


def launch(words: Sequence[str], processes: int, folder: Path) -> int:
    """Runs `subquad train` with these words in so many processes on this machine, and returns the exit code of all."""
    group = Processes(words, processes)
    try:
        code = group.wait()
    except KeyboardInterrupt:
        group.interrupt()
        if not group.errors_of(0):
            say(f"interrupted; go on with: subquad train --resume {shlex.quote(str(folder))}")
        return INTERRUPTED
    finally:
        group.kill()
    if code:
        group.explain(folder)
    return code


class Processes:
    """The processes of a training, which end together. The first one prints; sentences of the others are kept."""

    def __init__(self, words: Sequence[str], number: int) -> None:
        shared = _environment(number)
        command = [sys.executable, "-m", "subquad.cli.child", str(os.getpid()), "train", *words]
        self.sentences: list[list[str]] = [[] for _ in range(number)]
        self.running: list[subprocess.Popen[str]] = []
        self.first_failed: int | None = None
        for rank in range(number):
            process = subprocess.Popen(
                command,
                env={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                stdin=subprocess.DEVNULL,
                stdout=None if rank == 0 else subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
            self.running.append(process)
            assert process.stderr is not None
            threading.Thread(target=self._read, args=(rank, process.stderr), daemon=True).start()

    def _read(self, rank: int, lines: IO[str]) -> None:
        """Keeps what a process prints on standard error, and shows that of the first one but what another one caused."""
        for line in lines:
            self.sentences[rank].append(line.rstrip("\n"))
            if rank == 0 and SECONDARY not in line:
                with suppress(OSError, ValueError):
                    sys.stderr.write(line)
                    sys.stderr.flush()

    def wait(self) -> int:
        """Waits until all have ended, and returns 0 if all went well. The others are killed if one fails and they go on."""
        deadline = None
        while any(process.poll() is None for process in self.running):
            failed = [rank for rank, process in enumerate(self.running) if process.poll() not in (None, 0)]
            if failed and deadline is None:
                killed = [rank for rank in failed if (self.running[rank].returncode or 0) < 0]
                self.first_failed, deadline = (killed or failed)[0], time.monotonic() + GRACE_SECONDS
            if deadline is not None and time.monotonic() > deadline:
                self.kill()
            time.sleep(POLL_SECONDS)
        codes = [process.returncode for process in self.running]
        if self.first_failed is None and any(codes):
            self.first_failed = next(rank for rank, code in enumerate(codes) if code)
        if not any(codes):
            return 0
        return next((code for code in (INTERRUPTED, BUG) if code in codes), USER_MISTAKE)

    def explain(self, folder: Path) -> None:
        """Says why the processes ended, unless the first one has said it."""
        assert self.first_failed is not None
        rank, number = self.first_failed, len(self.running)
        again = f"go on from its last checkpoint with: subquad train --resume {shlex.quote(str(folder))}"
        code = self.running[rank].returncode
        causes = [line for each in range(number) for line in self.errors_of(each) if line.startswith("subquad: ")]
        if code < 0 and code != -signal.SIGINT:
            name = signal.Signals(-code).name
            say(f"process {rank + 1} of {number} was killed ({name}), perhaps as memory ran out; {again}")
        elif causes and not self.errors_of(0):
            say(causes[0].removeprefix("subquad: "))
        elif not causes:
            say(f"process {rank + 1} of {number} ended early without a word; {again}")

    def errors_of(self, rank: int) -> list[str]:
        """The sentences of a process about itself."""
        return [line for line in self.sentences[rank] if SECONDARY not in line]

    def interrupt(self) -> None:
        """Interrupts all, and waits for them to end."""
        for process in self.running:
            with suppress(OSError):
                process.send_signal(signal.SIGINT)
        deadline = time.monotonic() + GRACE_SECONDS
        while any(process.poll() is None for process in self.running) and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)

    def kill(self) -> None:
        """Ends those that still run."""
        for process in self.running:
            if process.poll() is None:
                process.kill()
            process.wait()


def _environment(processes: int) -> Mapping[str, str]:
    """Returns the environment of the processes, as `accelerate` and `torch.distributed` read it."""
    on_cpu = torch.accelerator.current_accelerator() is None
    if not on_cpu and torch.accelerator.device_count() < processes:
        devices = torch.accelerator.device_count()
        raise SubquadError(
            f"--sequence-parallel {processes} needs as many GPUs, but this machine has {devices}: give a smaller number, or "
            "set CUDA_VISIBLE_DEVICES= to train on the CPU"
        )
    threads = max(1, (os.cpu_count() or 1) // processes)
    values = {
        "WORLD_SIZE": processes,
        "LOCAL_WORLD_SIZE": processes,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": _free_port(),
    }
    defaults = {"OMP_NUM_THREADS": str(threads)} | ({"ACCELERATE_USE_CPU": "true"} if on_cpu else {})
    if sys.platform == "linux":
        defaults["GLOO_SOCKET_IFNAME"] = "lo"  # all are on this machine, whose name may not be known to itself
    return {**defaults, **os.environ, **{name: str(value) for name, value in values.items()}}


def _free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])
