"""Options that choose where a command's trainings and measurements run."""

from dataclasses import dataclass

from subquad.checking import Checked, Count, NonNegative, Words
from subquad.errors import SubquadError

RAY, CLIENT = "ray", "ray://"
"""Values of --on: the cluster that this machine belongs to, and the beginning of the address of another one."""


@dataclass(frozen=True)
class Where(Checked):
    """Where the work of a command is done."""

    on: Words = ""
    """Cluster that does the work: ray for the Ray cluster that this machine belongs to, or ray://HOST:PORT; processes of
    this machine by default."""
    store: Words = ""
    """With --on: folder or URL (file, s3 and others of fsspec) that all nodes can read and write, through which files and
    checkpoints travel; by default the folder of the run, which must then be shared."""

    def require_cluster(self) -> None:
        """Raises `SubquadError` for an address that is none, and for options that need a cluster if none is named."""
        if self.on and self.on != RAY and not self.on.startswith(CLIENT):
            raise SubquadError(f"--on must be {RAY} or {CLIENT}HOST:PORT, but is {self.on!r:.80}")
        if given := [] if self.on else self.given:
            raise SubquadError(f"{given[0]} is about the nodes of a cluster: name one with --on, or leave it out")

    @property
    def given(self) -> list[str]:
        """Options beside --on that differ from their defaults."""
        return ["--store"] if self.store else []


@dataclass(frozen=True)
class Placing(Where):
    """Where the trainings of a command run, and what each of them gets."""

    cpus: Count = 1
    """With --on: number of CPUs, and of threads, of each training."""
    gpus: NonNegative = 0.0
    """With --on: number of GPUs of each training; .5 lets two share one."""

    @property
    def given(self) -> list[str]:
        """Options beside --on that differ from their defaults."""
        resources = {"--cpus": self.cpus != 1, "--gpus": self.gpus != 0}
        return super().given + [name for name, is_given in resources.items() if is_given]
