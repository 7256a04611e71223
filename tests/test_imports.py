"""Each room imports only from those above it."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import subquad

PACKAGE = Path(subquad.__file__).parent
# From the design: a room, and the rooms it may look into.
ROOMS = [
    "errors",
    "checking",
    "files",
    "statistics",
    "words",
    "capacity",
    "types",
    "machine",
    "results",
    "data",
    "ops",
    "feature_maps",
    "attention",
    "models",
    "tasks",
    "hub",
    "training",
    "runs",
    "measure",
]
ROOMS += ["conversion", "compare", "report", "experiments", "cli"]
WITHOUT_TORCH = {"errors", "checking", "files", "statistics", "words", "capacity", "machine", "results", "report"}
CALLABLES_ONLY = {"measure"}  # takes callables, so it knows no mechanism, model or task


def imports(path: Path) -> set[str]:
    """The rooms that a file imports from."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively"
            names = [node.module or ""] if node.module != "subquad" else [f"subquad.{alias.name}" for alias in node.names]
        found |= {name for name in names if name}
    return found


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def test_rooms_look_upwards_only() -> None:
    for path in PACKAGE.rglob("*.py"):
        room = room_of(path)
        if room in ("__init__", "__main__"):
            continue
        assert room in ROOMS, f"{room} is not a room of the house"
        for name in imports(path):
            if name.startswith("subquad."):
                other = name.split(".")[1]
                assert ROOMS.index(other) <= ROOMS.index(room), f"{path} looks down into {other}"
                if room in CALLABLES_ONLY:
                    allowed = {"errors", "checking", "files", "statistics", "machine", "results", room}
                    assert other in allowed, f"{path} knows {other}"
            if room in WITHOUT_TORCH:
                assert name.split(".")[0] != "torch", f"{path} imports torch"


WITHOUT_TORCH_AT_ALL = {
    "report": sorted(path.stem for path in (PACKAGE / "report").glob("*.py") if path.stem != "__init__"),
    "compare": ["views", "sentences", "advice", "linformer_table", "replication"],
}
"""Modules that must not reach PyTorch through what they import, by room."""


@pytest.mark.parametrize("room", WITHOUT_TORCH_AT_ALL)
def test_pages_do_not_reach_torch_through_others(room: str) -> None:
    modules = ["subquad.statistics", "subquad.words", *(f"subquad.{room}.{name}" for name in WITHOUT_TORCH_AT_ALL[room])]
    script = f"import sys\nimport {', '.join(modules)}\nsys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr or f"{room} reaches torch"
