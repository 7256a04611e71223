"""A case is data: the files it starts from, and the command that is run on them."""

import hashlib
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

Deed = Literal["write", "remove", "folder", "link", "rename"]


class Edit(NamedTuple):
    """A change to the case's folder before the command is run."""

    deed: Deed
    path: str
    content: bytes = b""
    """What is written, or where a link leads, or what a file is renamed to."""


class Case(NamedTuple):
    """One run of the command line, or of a function, in a folder of its own."""

    kind: str
    name: str
    argv: tuple[str, ...]
    templates: tuple[str, ...] = ()
    """Real runs and inputs that are copied into the folder, under their own names."""
    edits: tuple[Edit, ...] = ()
    entry: Literal["subquad", "hub.load", "script"] = "subquad"
    """What is run: a command; `subquad.hub.load` on a folder; or, to test the runner, lines of Python that set `code`."""
    stdin: str = ""

    @property
    def label(self) -> str:
        """Its kind and name, which no other case has."""
        return f"{self.kind}: {self.name}"


def sample(cases: Iterable[Case], count: int) -> list[Case]:
    """The same few cases every time, of each kind in proportion and at least one."""
    by_kind: dict[str, list[Case]] = {}
    for case in cases:
        by_kind.setdefault(case.kind, []).append(case)
    total = sum(map(len, by_kind.values()))
    chosen: list[Case] = []
    for of_kind in by_kind.values():
        wanted = max(1, round(count * len(of_kind) / total))
        chosen += sorted(of_kind, key=_lot)[:wanted]
    return chosen


def refuse_doubles(cases: Sequence[Case]) -> None:
    """Fails where two cases have one name, of which a report would show only one."""
    labels = [case.label for case in cases]
    doubled = sorted({label for label in labels if labels.count(label) > 1}) if len(set(labels)) < len(labels) else []
    assert not doubled, f"cases of one name: {doubled[:5]}"


def _lot(case: Case) -> str:
    """A draw that depends on the name only."""
    return hashlib.sha256(case.label.encode(errors="surrogatepass")).hexdigest()
