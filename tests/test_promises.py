"""Every promise in docs/promises.md names a test, and the test exists."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
NAMED_TEST = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")


def promises() -> list[str]:
    """The rows of the tables in docs/promises.md, without their headings."""
    lines = (ROOT / "docs" / "promises.md").read_text().splitlines()
    rows = [line for line in lines if line.startswith("|")]
    headings = {at for at, line in enumerate(rows) if re.fullmatch(r"[|\s-]+", line)}
    return [line for at, line in enumerate(rows) if at not in headings and at + 1 not in headings]


def test_every_promise_names_a_test_that_exists() -> None:
    assert len(promises()) > 20
    for promise in promises():
        named = NAMED_TEST.findall(promise)
        assert named, f"this promise names no test: {promise}"
        for file, name in named:
            nodes = ast.walk(ast.parse((ROOT / file).read_text()))
            functions = {node.name for node in nodes if isinstance(node, ast.FunctionDef)}
            assert name in functions, f"{file} has no {name}, which a promise names"
