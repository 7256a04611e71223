"""Texts from files and folders: a document for each file, or for each line of JSON lines."""

import ast
import json
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from subquad.errors import SubquadError
from subquad.files import kind_of, read_bytes

SUFFIXES = (".txt", ".md", ".jsonl", ".jsonl.gz")
PACKAGES = (
    *("asyncio", "email", "http", "idlelib", "importlib", "logging", "multiprocessing"),
    *("tkinter", "unittest", "urllib", "xml"),
)
"""Packages of the standard library whose docstrings are labelled by package; some installations have fewer."""
SAYS_SOMETHING = 60  # characters of a docstring
TESTS = {"test", "tests", "idle_test"}  # folders whose docstrings are of another kind


class Documents(NamedTuple):
    """Texts, each with a name, and with a label where labels were asked for."""

    names: list[str]
    texts: list[str]
    labels: list[str]
    complaints: tuple[str, ...]

    @property
    def characters(self) -> int:
        """Characters of all texts together."""
        return sum(map(len, self.texts))


def python_topics() -> Documents:
    """English text that comes with Python: the topics of its `help()`."""
    from pydoc_data.topics import topics

    return Documents(sorted(topics), [topics[name] for name in sorted(topics)], [], ())


def python_docstrings() -> Documents:
    """Labelled text that is there wherever Python's sources are: docstrings of its library, each once, by their package."""
    library = Path(sysconfig.get_paths()["stdlib"])
    found, copies = _Found(), _LeftOut()
    for package in PACKAGES:
        for file in sorted((library / package).rglob("*.py")):
            name = file.relative_to(library)
            if not TESTS & {*name.parts}:
                for line, text in _docstrings(file):
                    found.add(f"{name}:{line}", text, package, copies)
    if not found.texts:
        raise SubquadError(
            "this Python comes without the sources of its library, whose docstrings would be used: give --text"
        )
    return Documents(found.names, found.texts, found.labels, ())


def _docstrings(file: Path) -> Iterator[tuple[int, str]]:
    """The docstrings of a file, each with the line where its module, class or function begins."""
    for node in ast.walk(ast.parse(read_bytes(file))):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node) or ""
            if len(text) >= SAYS_SOMETHING:
                yield getattr(node, "lineno", 1), text


def load_texts(path: Path, *, labelled: bool = False) -> Documents:
    """Everything that can be read at a path: no text twice, none that is empty. Labels are those of JSON lines."""
    suffixes = SUFFIXES[2:] if labelled else SUFFIXES
    found, left_out = _Found(), _LeftOut()
    for file, name in _files(path, suffixes):
        text = _text(file, left_out, alone=file == path, name=name)
        if text is None:
            continue
        if file.name.endswith(SUFFIXES[2:]):
            _read_lines(text, name, found, left_out, labelled=labelled)
        else:
            found.add(name, text, "", left_out)
    if not found.texts:
        why = left_out.sentences(path)
        raise SubquadError(f"{path} holds no text that can be used: {why[0] if why else 'its files are empty'}")
    return Documents(found.names, found.texts, found.labels if labelled else [], tuple(left_out.sentences(path)))


def has_labels(path: Path) -> bool:
    """Whether a file of JSON lines at a path has a label in its first line."""
    for file, _ in _files(path, SUFFIXES):
        if file.name.endswith(SUFFIXES[2:]):
            row = _object(read_bytes(file).split(b"\n", 1)[0])
            if row is not None and "label" in row:
                return True
    return False


class _LeftOut:
    """Counts texts, lines and files that are left out, by reason, with the place of the first one."""

    def __init__(self) -> None:
        self.counts: dict[tuple[str, str], tuple[int, str]] = {}

    def add(self, what: str, why: str, where: str) -> None:
        count, first = self.counts.get((what, why), (0, where))
        self.counts[what, why] = (count + 1, first)

    def sentences(self, path: Path) -> list[str]:
        """One sentence for each reason."""
        said = []
        for (what, why), (count, first) in self.counts.items():
            number, at = (f"1 {what} is", "") if count == 1 else (f"{count:,} {what}s are", "the first ")
            said.append(f"{path.name}: {number} left out, {why}: {at}{first}")
        return said


class _Found:
    """Texts that were read so far, each once."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.texts: list[str] = []
        self.labels: list[str] = []
        self.seen: set[str] = set()

    def add(self, name: str, text: str, label: str, left_out: _LeftOut) -> None:
        """Adds a text unless it is empty, or a copy of an earlier one, which could then stand in two splits."""
        if not text.strip():
            left_out.add("text", "empty", name)
        elif text in self.seen:
            left_out.add("text", "a copy of an earlier one", name)
        else:
            self.seen.add(text)
            self.names.append(name)
            self.texts.append(text)
            self.labels.append(label)


def _files(path: Path, suffixes: tuple[str, ...]) -> Iterator[tuple[Path, str]]:
    """Files in the order of their names below the folder. Those that are hidden are not looked at."""
    kind = kind_of(path)
    if kind == "nothing":
        raise SubquadError(f"there is no file or folder {path}")
    wanted = ", ".join(f"*{suffix}" for suffix in suffixes)
    if kind != "folder":
        if path.name.endswith(SUFFIXES[2:]) or suffixes == SUFFIXES:
            yield path, path.name
            return
        raise SubquadError(f"{path} is none of {wanted}: texts with labels are JSON lines with the fields text and label")
    named = (file for file in path.rglob("*") if file.name.endswith(suffixes) and file.is_file())
    below = sorted((file.relative_to(path), file) for file in named)
    files = [(file, str(name)) for name, file in below if not any(part.startswith(".") for part in name.parts)]
    if not files:
        raise SubquadError(f"the folder {path} has no text in it: there should be {wanted}")
    yield from files


def _text(file: Path, left_out: _LeftOut, *, alone: bool, name: str) -> str | None:
    """A file's text. One that is none is refused where it was named itself, and counted where its folder was."""
    content = read_bytes(file)
    try:
        if b"\0" not in content:
            return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        pass
    if alone:
        raise SubquadError(f"{file} is not text in UTF-8 but something binary or in another encoding: save it as UTF-8")
    left_out.add("file", "not text in UTF-8", name)
    return None


def _read_lines(text: str, name: str, found: _Found, left_out: _LeftOut, *, labelled: bool) -> None:
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        where = f"{name}:{number}"
        row = _object(line)
        if row is None:
            left_out.add("line", "no JSON object", where)
        elif not isinstance(row.get("text"), str):
            left_out.add("line", 'without a "text" in words', where)
        elif labelled and not isinstance(row.get("label"), str | int):
            left_out.add("line", 'without a "label" that is a word or a whole number', where)
        else:
            whole = row["text"].encode(errors="replace").decode()  # JSON can hold halves of characters, which are no text
            found.add(where, whole, str(row.get("label", "")), left_out)


def _object(line: str | bytes) -> dict[str, Any] | None:
    """The object in a line of JSON; None where there is none, or one that is nested too deep."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
