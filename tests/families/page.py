"""The page of families, from the rows of a run."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import transformers

from subquad.files import write_whole
from subquad.results import Row

SYMBOLS = {"crash": "!", "silent error": "✗", "refused": "r", "works": "✓", "does not apply": "·"}
"""What stands for the worst that came of a cell in any class of a family, the worst first."""
_WRONG = ("crash", "silent error")
_EXAMPLES = 8
_MOST = 4
"""Number of tests that are named; more are called most."""


def write_page(path: Path, rows: Sequence[Row]) -> None:
    """Writes the page from the rows of a run."""
    parts = [_head(rows), _counts(rows), _cells(rows), _table(rows), _wrong(rows), _refusals(rows), _unbuilt(rows)]
    write_whole(path, "\n\n".join(parts) + "\n")


def _head(rows: Sequence[Row]) -> str:
    return (
        "# Families of transformers\n\n"
        f"What works when `subquad.hub.swap` gives the models of transformers {transformers.__version__} another attention. "
        "Written by `make test-families`, which builds every family that a small config allows with random weights and puts "
        "each of its classes through the same tests. A family is a folder of transformers' models; a class is one of its "
        "bodies or heads."
    )


def _counts(rows: Sequence[Row]) -> str:
    """How many families there are of each sort."""
    sorts = Counter(_sort(list(each)) for each in _by(rows, "family").values())
    classes = _by(rows, "class_name")
    built = {row["class_name"] for row in rows if row["cell"] == "built" and row["status"] == "works"}
    lines = [
        f"{sum(sorts.values())} families with {len(classes)} classes, of which {len(built)} were built.",
        "",
        "| families | |",
        "|---:|---|",
        f"| {sorts['whole']} | everything that applies works |",
        f"| {sorts['part']} | works, but for what is refused in a sentence |",
        f"| {sorts['refused']} | cannot be swapped, which is said in a sentence: their attention is built in |",
        f"| {sorts['wrong']} | something is silently wrong or crashes |",
        f"| {sorts['unbuilt']} | cannot be built or run small as they are: missing packages, no inputs that fit |",
    ]
    return "\n".join(lines)


def _cells(rows: Sequence[Row]) -> str:
    """How many classes each test has of each result."""
    names = list(SYMBOLS)[::-1]
    lines = ["## Tests, by what came of them", "", f"| classes | {' | '.join(names)} |", "|---|" + "---:|" * len(names)]
    for cell, some in _by(_tested(rows), "cell").items():
        counts = Counter(row["status"] for row in some)
        lines.append(f"| {cell} | {' | '.join(str(counts[name]) for name in names)} |")
    return "\n".join(lines)


def _table(rows: Sequence[Row]) -> str:
    """A line for each family that can be swapped, with the worst that came of each cell."""
    cells = list(_by(_tested(rows), "cell"))
    legend = ", ".join(f"{symbol} {name}" for name, symbol in reversed(SYMBOLS.items()))
    lines = ["## Families", "", f"{legend}; of several classes, the worst.", ""]
    lines += [f"| family | classes | {' | '.join(cells)} |", "|---|---:|" + ":-:|" * len(cells)]
    for family, some in _by(_tested(rows), "family").items():
        worst = {cell: _worst(row["status"] for row in each) for cell, each in _by(some, "cell").items()}
        marks = " | ".join(SYMBOLS[worst[cell]] if cell in worst else "" for cell in cells)
        lines.append(f"| {family} | {len(_by(some, 'class_name'))} | {marks} |")
    return "\n".join(lines)


def _wrong(rows: Sequence[Row]) -> str:
    lines = ["## Silent errors and crashes", ""]
    wrong = [row for row in rows if row["status"] in _WRONG]
    lines += [f"- {row['class_name']}, {row['cell']}: {row['status']}, {row['message']}" for row in wrong]
    return "\n".join(lines if wrong else [*lines, "None."])


def _refusals(rows: Sequence[Row]) -> str:
    """The sentences with which something is refused, and in how many families."""
    lines = ["## What is refused, and how", "", "| families | tests | sentence | for example |", "|---:|---|---|---|"]
    refused = [row for row in rows if row["status"] == "refused"]
    groups = _by(refused, lambda row: _without_names(str(row["message"]).replace(str(row["class_name"]), "…")))
    sized = sorted(groups.items(), key=lambda pair: -len(_by(pair[1], "family")))
    for sentence, some in sized:
        families, cells = list(_by(some, "family")), list(_by(some, "cell"))
        tests = "all" if "swapped" in cells else "most" if len(cells) > _MOST else ", ".join(cells)
        more = ", …" if len(families) > _EXAMPLES else ""
        lines.append(f"| {len(families)} | {tests} | {sentence} | {', '.join(families[:_EXAMPLES])}{more} |")
    return "\n".join(lines)


def _unbuilt(rows: Sequence[Row]) -> str:
    """The classes that transformers itself does not build or run small, by what it says."""
    lines = ["## Cannot be built small", "", "| classes | |", "|---|---|"]
    unbuilt = [row for row in rows if row["cell"] == "built" and row["status"] != "works"]
    for message, some in _by(unbuilt, lambda row: str(row["message"]).replace("|", "\\|")).items():
        lines.append(f"| {', '.join(_by(some, 'class_name'))} | {message} |")
    return "\n".join(lines)


def _sort(rows: Sequence[Row]) -> str:
    """What is to be said of a family as a whole."""
    statuses = {row["status"] for row in rows}
    if statuses & set(_WRONG):
        return "wrong"
    tested = _tested(rows)
    if not tested:
        return "refused" if "refused" in statuses else "unbuilt"
    return "part" if "refused" in statuses else "whole"


def _tested(rows: Iterable[Row]) -> list[Row]:
    return [row for row in rows if row["cell"] not in ("built", "swapped")]


def _worst(statuses: Iterable[str]) -> str:
    seen = set(statuses)
    return next(status for status in SYMBOLS if status in seen)


def _without_names(sentence: str) -> str:
    """A sentence without what differs between classes and runs."""
    plain = re.sub(r"/\S*tmp\S*", "the folder", sentence.replace("|", "\\|"))
    plain = re.sub(
        r"\b[A-Z]\w*[a-z0-9](Attention|Model|Block|Layer|Encoder|Decoder|LM)\w*|\b[A-Z]\w+For[A-Z]\w+", "…", plain
    )
    plain = re.sub(r"\b[a-z_]+(\.\w+)+(?= computes|: )|\b[a-z_]+(\.\w+)*\.\d+\.\w+(\.\w+)*", "…", plain)
    return re.sub(r"\bby [\d.e+-]+|\(\d+(, \d+)+\)|\b\d+(?= (queries|keys|positions))", "…", plain)


def _by(rows: Iterable[Row], field: str | Callable[[Row], str]) -> dict[str, list[Row]]:
    """Rows by what they hold under a name, in the order in which that comes."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(str(row[field]) if isinstance(field, str) else field(row), []).append(row)
    return found
