"""Each room imports only from those above it, in its functions as well, and nothing leads around in a circle."""

import ast
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

import subquad

PACKAGE = Path(subquad.__file__).parent
# The rooms in the order of the design's table: each may import from itself and from those before it.
ROOMS = [
    *("errors", "checking", "files", "statistics", "words", "native", "capacity", "machine", "results", "types"),
    *("ops", "feature_maps", "attention", "models", "parallel", "data", "tasks", "training", "runs", "hub", "measure"),
    "places",
    *("conversion", "compare", "check", "testing", "choose", "report", "experiments", "cli"),
]
ANYWHERE = ("__init__", "__main__")  # the package's own face, which imports what it is asked for

WITHOUT_TORCH = ["errors", "checking", "files", "statistics", "words", "native", "capacity", "machine", "results", "report"]
"""Rooms that must not reach torch, directly or through what they import, in whatever function."""

MUST_NOT_KNOW = {
    "measure": {"ops", "feature_maps", "attention", "models", "parallel", "data", "tasks", "training", "hub", "conversion"},
    "training": {"tasks", "hub"},
    "tasks": {"training"},
}
"""Rooms further up that a room still must not import from, except for their contracts."""

CONTRACTS = {"subquad.tasks.base"}
"""Modules that hold what every task has, and no task."""


@cache
def graph() -> Mapping[str, frozenset[str]]:
    """Every module of the package, and the modules that it imports anywhere in its source, those of others included."""
    paths = {name_of(path): path for path in PACKAGE.rglob("*.py")}
    return {name: frozenset(imports_of(name, path, paths)) for name, path in paths.items()}


def name_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(name: str, path: Path, known: Mapping[str, Path]) -> Iterator[str]:
    """What is imported, except for type checkers only. `from package import module` is an import of the module."""
    tree = ast.parse(path.read_text())
    skipped = {id(inner) for node in ast.walk(tree) if is_for_types(node) for inner in ast.walk(node)}
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively"
            parent = node.module or ""
            for alias in node.names:
                yield f"{parent}.{alias.name}" if f"{parent}.{alias.name}" in known else parent


def is_for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def room_of(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def packages_of(module: str) -> list[str]:
    """The packages around a module, whose own files are run when it is imported; the outermost one imports nothing."""
    parts = module.split(".")
    return [".".join(parts[:size]) for size in range(2, len(parts))] if parts[0] == "subquad" else []


def reached_from(module: str, *, with_packages: bool = False) -> dict[str, str]:
    """Every module that this one imports, directly or through others, and the module that imports it on the way."""
    through, waiting = {module: ""}, [module]
    while waiting:
        current = waiting.pop()
        imported = graph().get(current, frozenset())
        packages = [package for other in (current, *imported) for package in packages_of(other)] if with_packages else []
        for other in (*imported, *packages):
            if other not in through:
                through[other] = current
                waiting.append(other)
    return through


def way_to(module: str, through: Mapping[str, str]) -> str:
    way = [module]
    while through[way[-1]]:
        way.append(through[way[-1]])
    return " <- ".join(way)


def own_modules() -> list[str]:
    return [module for module in graph() if room_of(module) not in ANYWHERE]


def test_every_module_is_in_a_room() -> None:
    assert {room_of(module) for module in own_modules()} <= set(ROOMS)


def test_rooms_look_upwards_only() -> None:
    violations = set()
    for module in own_modules():
        room = room_of(module)
        for imported in (imported for imported in graph()[module] if imported.startswith("subquad.")):
            other = room_of(imported)
            is_hidden = other in MUST_NOT_KNOW.get(room, ()) and imported not in CONTRACTS
            if ROOMS.index(other) > ROOMS.index(room) or is_hidden:
                violations.add(f"{module} into {imported}")
    assert violations == set()


def test_rooms_without_torch_do_not_reach_it() -> None:
    violations = {}
    for module in own_modules():
        through = reached_from(module, with_packages=True)
        torch = next((name for name in through if name.split(".")[0] == "torch"), None)
        if room_of(module) in WITHOUT_TORCH and torch is not None:
            violations[module] = way_to(torch, through)
    assert not violations, "\n".join(violations.values())


def test_nothing_is_imported_in_a_circle() -> None:
    circles = set()
    for module in own_modules():
        reached = {other for imported in graph()[module] for other in reached_from(imported)} - {module}
        back = frozenset({module} | {other for other in reached if module in reached_from(other)})
        if len(back) > 1 or module in graph()[module]:
            circles.add(", ".join(sorted(back)))
    assert circles == set()


@pytest.mark.parametrize(("source", "imported"), [("def f():\n    import torch", "torch"), ("import a.b", "a.b")])
def test_imports_inside_functions_count(source: str, imported: str, tmp_path: Path) -> None:
    (tmp_path / "m.py").write_text(source)
    assert set(imports_of("m", tmp_path / "m.py", {})) == {imported}


def test_imports_for_type_checkers_do_not_count(tmp_path: Path) -> None:
    (tmp_path / "m.py").write_text("if TYPE_CHECKING:\n    import torch\nimport math")
    assert set(imports_of("m", tmp_path / "m.py", {})) == {"math"}
