"""Descriptions of a run for every page: the machine, the versions, and the command that repeats it."""

from subquad.report.page import Command
from subquad.results import Run
from subquad.words import amount


def machine_of(run: Run) -> str:
    """Describes the machine of a run in words."""
    machine = run.about.get("machine", {})
    processor = f"{machine.get('processor', 'unknown processor')}, {machine.get('cores', '?')} cores"
    kernels = f"kernels: {run.about['kernels']}" if "kernels" in run.about else ""
    return ", ".join(filter(None, (processor, amount(machine.get("memory_bytes", 0)), machine.get("system", ""), kernels)))


def command_of(run: Run, usual: str) -> Command:
    """Returns the command of a run with its versions and start time; `usual` is the command if run.json has none."""
    versions = ", ".join(f"{name} {version}" for name, version in run.about.get("versions", {}).items())
    about = f"{run.folder.resolve().name}, {run.about.get('started', 'time unknown')}"
    return Command(f"{about}: {versions}" if versions else about, run.about.get("command", usual))
