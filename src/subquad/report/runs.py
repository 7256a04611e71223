"""What every page says about a run: the machine, the versions, and the command that runs it again."""

from subquad.report.page import Command
from subquad.results import Run
from subquad.words import amount


def machine_of(run: Run) -> str:
    """The machine that a run was made on, in words."""
    machine = run.about.get("machine", {})
    processor = f"{machine.get('processor', 'unknown processor')}, {machine.get('cores', '?')} cores"
    return ", ".join(filter(None, (processor, amount(machine.get("memory_bytes", 0)), machine.get("system", ""))))


def command_of(run: Run, usual: str) -> Command:
    """The command of a run, or the usual one where the run does not say, with its versions and when it was started."""
    versions = ", ".join(f"{name} {version}" for name, version in run.about.get("versions", {}).items())
    about = f"{run.folder.resolve().name}, {run.about.get('started', 'time unknown')}"
    return Command(f"{about}: {versions}" if versions else about, run.about.get("command", usual))
