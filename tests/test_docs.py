"""The documents: their code runs as it stands, their commands exist, their links lead somewhere."""

import re
import shlex
from collections.abc import Iterator
from contextlib import redirect_stdout
from functools import cache
from io import StringIO
from pathlib import Path

import pytest

from subquad.cli import main

ROOT = Path(__file__).parent.parent
DOCUMENTS = ["README.md", "CONTRIBUTING.md", *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md")))]
MOST_WORDS = 750
LONGEST_LINE = 120


def blocks(document: str, language: str) -> list[str]:
    """The code blocks of a document that are in one language."""
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / document).read_text(), flags=re.DOTALL)


@pytest.mark.parametrize("document", [document for document in DOCUMENTS if blocks(document, "python")])
def test_code_blocks_run(document: str) -> None:
    names: dict[str, object] = {"__name__": document}
    for block in blocks(document, "python"):
        exec(compile(block, document, "exec"), names)


def test_readme_is_short() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(text.split()) < MOST_WORDS
    assert [line for line in text.splitlines() if len(line) > LONGEST_LINE] == []


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_lead_somewhere(document: str) -> None:
    text = (ROOT / document).read_text()
    for link in re.findall(r"\]\(([^)]+)\)", text) + re.findall(r"^\[[^\]]+\]: (\S+)$", text, flags=re.MULTILINE):
        if not link.startswith("https://"):
            path, _, place = link.partition("#")
            target = (ROOT / document).parent / path if path else ROOT / document
            assert target.exists(), f"{document} links to {link}"
            assert not place or place in headings(target), f"{document} links to {link}"


def headings(document: Path) -> set[str]:
    """The anchors of a document's headings, as GitHub makes them."""
    found = re.findall(r"^#+ (.*)$", document.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in found}


def commands() -> Iterator[tuple[str, str]]:
    """Every command line of the documents: in blocks of shell code, and in backquotes."""
    for document in DOCUMENTS:
        lines = [line for block in blocks(document, "sh") for line in block.splitlines()]
        lines += re.findall(r"`(subquad [^`]+)`", (ROOT / document).read_text())
        yield from ((document, " ".join(line.split())) for line in lines if line.startswith("subquad "))


@pytest.mark.parametrize(("document", "line"), sorted(set(commands())))
def test_commands_have_the_options_that_are_named(document: str, line: str) -> None:
    words = shlex.split(line.split(" < ")[0], comments=True)[1:]
    options = [word.split("=")[0] for word in words if word.startswith("--")]
    if words[0] == "reproduce" or "..." in words:
        return
    named = words[0] in ("train", "choose") and len(words) > 1 and not words[1].startswith("--")
    lead = words[: 3 if words[:2] == ["choose", "--model"] else 2 if named else 1]
    attention = [word for at, word in enumerate(words) if words[at - 1] in ("--attention", "--mechanisms")]
    text = helped(tuple(lead), tuple(attention))
    missing = [option for option in options if not re.search(rf"{option}\b", text)]
    assert missing == [], f"{document}: {line}"


@cache
def helped(lead: tuple[str, ...], attention: tuple[str, ...]) -> str:
    """What a command says of its options, with those of an attention."""
    extra = ["--attention", attention[0]] if attention and lead[0] in ("train", "convert") else []
    with redirect_stdout(StringIO()) as printed:
        assert main([*lead, *extra, "--help"]) == 0
    return printed.getvalue()


def test_the_files_of_the_architecture_exist_and_stand_in_one_way_only() -> None:
    ways = re.findall(r"^\*\*.*?(?=\n\n|\Z)", (ROOT / "docs/architecture.md").read_text(), flags=re.MULTILINE | re.DOTALL)
    assert len(ways) == 5
    for way in ways:
        files = re.findall(r"`([\w/]+\.py)`", way)
        assert [file for file in files if not (ROOT / "src/subquad" / file).is_file()] == []
        assert len(files) == len(set(files))
