"""Texts from files and folders: one document per file, or per line of JSON lines."""

import ast
import json
import sysconfig
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from subquad.errors import SubquadError
from subquad.files import kind_of, read_bytes

SUFFIXES = (".txt", ".md", ".jsonl", ".jsonl.gz")
PACKAGES = (
    *("asyncio", "email", "http", "idlelib", "importlib", "logging", "multiprocessing"),
    *("tkinter", "unittest", "urllib", "xml"),
)
"""Packages of the standard library whose docstrings are used, labelled by package. Some installations lack a few."""
SAYS_SOMETHING = 60  # smallest number of characters of a docstring that is used
TESTS = {"test", "tests", "idle_test"}  # folders whose docstrings are not used


class Documents(NamedTuple):
    """Texts with their names, and with labels and second texts if these were asked for."""

    names: list[str]
    texts: list[str]
    labels: list[str]
    complaints: tuple[str, ...]
    seconds: Sequence[str] = ()
    """The second texts of pairs; empty if the texts are no pairs."""

    def at(self, places: Sequence[int]) -> "Documents":
        """The documents at these places."""
        columns = (self.names, self.texts, self.labels, self.seconds)
        names, texts, labels, seconds = ([column[at] for at in places] if column else [] for column in columns)
        return Documents(names, texts, labels, self.complaints, seconds)

    @property
    def characters(self) -> int:
        """Number of characters of all texts together."""
        return sum(map(len, self.texts))


def python_topics() -> Documents:
    """The topics of Python's `help()`, as English text that is always available."""
    from pydoc_data.topics import topics

    return Documents(sorted(topics), [topics[name] for name in sorted(topics)], [], ())


def python_docstrings() -> Documents:
    """The docstrings of Python's library, each once, labelled by package."""
    library = Path(sysconfig.get_paths()["stdlib"])
    collected, copies = Collected(), LeftOut()
    for package in PACKAGES:
        for file in sorted((library / package).rglob("*.py")):
            name = file.relative_to(library)
            if not TESTS & {*name.parts}:
                for line, text in _docstrings(file):
                    collected.add(f"{name}:{line}", text, label=package, left_out=copies)
    if not collected.texts:
        raise SubquadError(
            "this Python comes without the sources of its library, whose docstrings would be used: give --text"
        )
    return Documents(collected.names, collected.texts, collected.labels, ())


def _docstrings(file: Path) -> Iterator[tuple[int, str]]:
    """Yields the docstrings of a file, each with the line on which its module, class or function begins."""
    for node in ast.walk(ast.parse(read_bytes(file))):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node) or ""
            if len(text) >= SAYS_SOMETHING:
                yield getattr(node, "lineno", 1), text


def load_texts(path: Path) -> Documents:
    """Reads all texts at a path, without duplicates and empty ones."""
    collected, left_out = Collected(), LeftOut()
    for file, name in files_at(path, SUFFIXES):
        text = text_of(file, left_out, alone=file == path, name=name)
        if text is None:
            continue
        if file.name.endswith(SUFFIXES[2:]):
            _read_lines(text, name, collected, left_out)
        else:
            collected.add(name, text, left_out=left_out)
    if not collected.texts:
        why = left_out.sentences(path)
        raise SubquadError(f"{path} holds no text that can be used: {why[0] if why else 'its files are empty'}")
    return Documents(collected.names, collected.texts, [], tuple(left_out.sentences(path)))


def has_labels(path: Path) -> bool:
    """Whether a file of JSON lines at a path has a label in its first line."""
    for file, _ in files_at(path, SUFFIXES):
        if file.name.endswith(SUFFIXES[2:]):
            row = json_object(read_bytes(file).split(b"\n", 1)[0])
            if row is not None and "label" in row:
                return True
    return False


class LeftOut:
    """Counts texts, lines and files that are left out, by reason, with the place of the first one."""

    def __init__(self) -> None:
        self.counts: dict[tuple[str, str], tuple[int, str]] = {}

    def add(self, what: str, why: str, where: str) -> None:
        count, first = self.counts.get((what, why), (0, where))
        self.counts[what, why] = (count + 1, first)

    def sentences(self, path: Path) -> list[str]:
        """One sentence for each reason, with the number of cases and the place of the first."""
        sentences = []
        for (what, why), (count, first) in self.counts.items():
            number, at = (f"1 {what} is", "") if count == 1 else (f"{count:,} {what}s are", "the first ")
            sentences.append(f"{path.name}: {number} left out, {why}: {at}{first}")
        return sentences


class Collected:
    """The texts read so far, without duplicates unless `copies`."""

    def __init__(self, *, copies: bool = False) -> None:
        self.copies = copies
        self.names: list[str] = []
        self.texts: list[str] = []
        self.seconds: list[str] = []
        self.labels: list[str] = []
        self.seen: set[tuple[str, str]] = set()

    def add(self, name: str, text: str, second: str = "", label: str = "", *, left_out: LeftOut) -> None:
        """Adds a text unless it is empty or a duplicate, because duplicates could end up in two splits."""
        if not text.strip():
            left_out.add("text", "empty", name)
        elif (text, second) in self.seen and not self.copies:
            left_out.add("text", "a copy of an earlier one", name)
        else:
            self.seen.add((text, second))
            self.names.append(name)
            self.texts.append(text)
            self.seconds.append(second)
            self.labels.append(label)

    def documents(self) -> Documents:
        """The texts, with second texts if there is one."""
        return Documents(self.names, self.texts, self.labels, (), self.seconds if any(self.seconds) else ())


def files_at(path: Path, suffixes: tuple[str, ...]) -> Iterator[tuple[Path, str]]:
    """Yields the files at a path with their names relative to it, in order. Hidden files are ignored."""
    kind = kind_of(path)
    if kind == "nothing":
        raise SubquadError(f"there is no file or folder {path}")
    if kind != "folder":
        yield path, path.name
        return
    named = (file for file in path.rglob("*") if file.name.endswith(suffixes) and file.is_file())
    below = sorted((file.relative_to(path), file) for file in named)
    files = [(file, str(name)) for name, file in below if not any(part.startswith(".") for part in name.parts)]
    if not files:
        wanted = ", ".join(f"*{suffix}" for suffix in suffixes)
        raise SubquadError(f"the folder {path} has no text in it: there should be {wanted}")
    yield from files


def text_of(file: Path, left_out: LeftOut, *, alone: bool, name: str) -> str | None:
    """The text of a file. A file that is not text is refused if it is `alone`, and otherwise counted as left out."""
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


def _read_lines(text: str, name: str, collected: Collected, left_out: LeftOut) -> None:
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        where = f"{name}:{number}"
        row = json_object(line)
        if row is None:
            left_out.add("line", "no JSON object", where)
        elif not isinstance(row.get("text"), str):
            left_out.add("line", 'without a "text" in words', where)
        else:
            collected.add(where, whole_characters(row["text"]), left_out=left_out)


def whole_characters(text: str) -> str:
    """A text with a question mark for each unpaired surrogate, which JSON can hold."""
    return text.encode(errors="replace").decode()


def json_object(line: str | bytes) -> dict[str, Any] | None:
    """The JSON object in a line, or None if there is none or it is nested too deeply."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
