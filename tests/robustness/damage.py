"""Damaged run folders, made from real ones: fields dropped and mistyped, files cut, emptied and replaced."""

import hashlib
import json
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple

from tests.robustness.cases import Case, Edit
from tests.robustness.spoiling import WRONG, as_json, places, replaced, spoilt, without

CONVERSION = ("--attention", "elu", "--steps", "1", "--tune-steps", "1", "--texts", "2", "--batch-tokens", "16")
ADVICE = ("advise", "--length", "100", "--run", "compared")
SMALL = ("--steps", "1", "--batch", "2", "--no-page")

COMMANDS = (
    *("predict", "train --resume", "convert --resume", "compare --resume", "error --resume", "choose --resume", "report"),
    "spectrum",
)
"""Commands that take a run."""


class Reader(NamedTuple):
    """A command that reads a run, and what it needs beside it."""

    argv: tuple[str, ...]
    templates: tuple[str, ...] = ()
    stdin: str = ""


READERS: dict[str, tuple[Reader, ...]] = {
    "copied": (
        Reader(("predict", "copied", "1", "2")),
        Reader(("train", "--resume", "copied")),
        Reader(("spectrum", "copied", "--sequences", "1", "--no-random")),
        Reader(("report", "copied")),
    ),
    "masked": (
        Reader(("predict", "masked", "the cat [MASK]"), ("texts",)),
        Reader(("train", "--resume", "masked"), ("texts",)),
        Reader(("convert", "masked", *CONVERSION, "--no-controls", "--no-page"), ("texts",)),
        Reader(("spectrum", "masked", "--sequences", "1", "--length", "8"), ("texts",)),
        Reader(
            ("train", "classify", "--text", "labelled.jsonl", "--start", "masked", "--length", "8", *SMALL),
            ("labelled.jsonl",),
        ),
    ),
    "classified": (
        Reader(("predict", "classified", "the cat"), ("labelled.jsonl",)),
        Reader(("train", "--resume", "classified"), ("labelled.jsonl",)),
    ),
    "events": (
        Reader(("predict", "events", "--data", "events.csv"), ("events.csv",)),
        Reader(("train", "--resume", "events")),
        Reader(("predict", "events", "--follow"), stdin="a 1 0\na 2 1\n"),
    ),
    "clients": (
        Reader(("train", "--resume", "clients")),
        Reader(("predict", "clients", "--data", "clients.csv"), ("clients.csv",)),
        Reader(("embed", "clients", "--data", "clients.csv", "--output", "vectors.csv"), ("clients.csv",)),
    ),
    "raced": (
        Reader(("choose", "--resume", "raced")),
        Reader(("report", "raced")),
        Reader(("predict", "raced", "1")),
    ),
    "compared": (
        Reader(ADVICE),
        Reader(("compare", "--resume", "compared", "--budget", "0.000001")),
        Reader(("report", "compared")),
    ),
    "converted": (
        Reader(("convert", "--resume", "converted"), ("masked", "texts")),
        Reader(("report", "converted")),
        Reader(("predict", "converted/model", "the [MASK]"), ("texts",)),
    ),
    "looked": (Reader(("report", "looked")),),
    "estimated": (
        Reader(("report", "estimated")),
        Reader(("error", "--resume", "estimated"), ("masked", "texts")),
        Reader((*ADVICE, "--error", "0.1", "--error-run", "estimated"), ("compared",)),
    ),
}

FEW = 3
"""Mistyped values that are tried for each field, in turns, beside dropping it."""

STEPS = ("options", "training", "steps")
"""A field that is not dropped: a run without it goes on to the usual number of steps, which takes minutes."""

STRANGE_METRICS = ("../../outside", "/outside", "a/b", "", ".", "x" * 5000, "a\0b", "\ud800", "<script>", "\n", "__class__")


def damages(templates: Path) -> Iterator[Case]:
    """All of them."""
    for name in READERS:
        yield from _fields_of("run.json", name, "run.json", templates)
        yield from _files("run.json", name, "run.json", templates)
        yield from _files("rows", name, "rows.jsonl", templates)
        yield from _rows(name, templates)
        yield from _checkpoints(name, templates)
    yield from _wrong_json()
    yield from _places()


def _fields_of(what: str, name: str, file: str, templates: Path) -> Iterator[Case]:
    """Every field of a JSON file dropped, and mistyped in some ways."""
    written = json.loads((templates / name / file).read_text())
    readers, wrong = cycle(READERS[name]), cycle(WRONG.items())
    for path in places(written):
        where = ".".join(map(str, path))
        if path != STEPS:
            edit = Edit("write", f"{name}/{file}", as_json(without(written, path)))
            yield _case(f"{what}: fields", f"{name}/{file} without {where}", (edit,), next(readers))
        for _ in range(FEW):
            label, value = next(wrong)
            edit = Edit("write", f"{name}/{file}", as_json(replaced(written, path, value)))
            yield _case(f"{what}: fields", f"{name}/{file}: {where} is {label}", (edit,), next(readers))


def _files(what: str, name: str, file: str, templates: Path) -> Iterator[Case]:
    """A file of a run cut, emptied, replaced by what is none, or filled with something else."""
    readers = cycle(READERS[name])
    for label, edits in spoilt(f"{name}/{file}", (templates / name / file).read_bytes()):
        yield _case(f"{what}: files", f"{name}/{file} {label}", edits, next(readers))


def _rows(name: str, templates: Path) -> Iterator[Case]:
    """Rows with fields dropped and mistyped, with strange metrics, and lines that are no rows."""
    file, readers, wrong = f"{name}/rows.jsonl", cycle(READERS[name]), cycle(WRONG.items())
    lines = (templates / file).read_text().splitlines()
    kinds = {tuple(sorted(json.loads(line))): number for number, line in reversed(list(enumerate(lines)))}
    for number in kinds.values():
        row = json.loads(lines[number])
        for field in row:
            changed: dict[str, Any] = {"without": {key: value for key, value in row.items() if key != field}}
            for _ in range(FEW):
                label, value = next(wrong)
                changed[f"with {label} for"] = row | {field: value}
            for label, new in changed.items():
                edit = Edit("write", file, _lines([*lines[:number], json.dumps(new), *lines[number + 1 :]]))
                yield _case("rows: fields", f"{file}, line {number + 1}, {label} {field}", (edit,), next(readers))
    for number, metric in enumerate(STRANGE_METRICS):
        strange = json.dumps(json.loads(lines[-1]) | {"metric": metric})
        edit = Edit("write", file, _lines([*lines, strange, strange]))
        yield _case("rows: metrics", f"{file} with strange metric {number}", (edit,), _figures(name))
    for label, line in _strange_lines(lines[0]):
        edit = Edit("write", file, _lines([*lines[:1], line, *lines[1:]]))
        yield _case("rows: lines", f"{file} with {label}", (edit,), next(readers))


def _strange_lines(line: str) -> Iterator[tuple[str, str]]:
    yield from (("an empty line", ""), ("a blank line", "  "), ("a list", "[]"), ("a number", "7"), ("null", "null"))
    yield from (("deep nesting", "[" * 100_000), ("an open brace", "{"), ("another text", "metric=loss"))
    yield "a value that overflows", line.replace('"value": ', '"value": 1e999, "old": ')
    yield "a value of a thousand digits", line.replace('"value": ', f'"value": {"9" * 1000}, "old": ')
    yield "a value of ten thousand digits", line.replace('"value": ', f'"value": {"9" * 10_000}, "old": ')
    yield "a field twice", line.replace("{", '{"metric": "other", ', 1)
    yield "a field named by an overlong text", line.replace("{", f'{{"{"k" * 5000}": 1, ', 1)


def _figures(name: str) -> Reader:
    return Reader(("report", name, "--figures", "figures"), ("masked", "texts") if name == "converted" else ())


def _lines(lines: list[str]) -> bytes:
    return "".join(line + "\n" for line in lines).encode()


def _checkpoints(name: str, templates: Path) -> Iterator[Case]:
    """Checkpoints with files that are spoilt, folders that are renamed, and tensors that are others."""
    folders = sorted((templates / name / "checkpoint").glob("step-*"))
    if not folders:
        return
    readers = cycle(reader for reader in READERS[name] if reader.argv[0] != "report")
    newest = folders[-1]
    for file in ("about.json", "model.safetensors", "optimizer.safetensors"):
        for label, edits in spoilt(f"{name}/checkpoint/{newest.name}/{file}", (newest / file).read_bytes()):
            yield _case("checkpoints: files", f"{name}: {file} {label}", edits, next(readers))
            both = [edit._replace(path=edit.path.replace(newest.name, folder.name)) for edit in edits for folder in folders]
            if label in ("empty", "removed", "cut after a half"):
                yield _case("checkpoints: files", f"{name}: every {file} {label}", tuple(both), next(readers))
    for new in ("step-", "step-x", "step-999999999999999999999", "step--1", "step-1.5", "other", "step-000000001.part"):
        edits = (Edit("rename", f"{name}/checkpoint/{newest.name}", new.encode()),)
        yield _case("checkpoints: names", f"{name}: renamed to {new}", edits, next(readers))
    for deed in ("folder", "link", "write"):
        edits = (Edit("remove", f"{name}/checkpoint"), Edit(deed, f"{name}/checkpoint", b"gone"))
        yield _case("checkpoints: names", f"{name}: checkpoint is another {deed}", edits, next(readers))
    yield from _about(name, newest, readers)
    yield from _tensors(name, newest, readers)


def _about(name: str, newest: Path, readers: Iterator[Reader]) -> Iterator[Case]:
    """Fields of the newest checkpoint's about.json."""
    written, wrong = json.loads((newest / "about.json").read_text()), cycle(WRONG.items())
    for path in places(written):
        where, file = ".".join(map(str, path)), f"{name}/checkpoint/{newest.name}/about.json"
        yield _case(
            "checkpoints: fields",
            f"{name}: no {where}",
            (Edit("write", file, as_json(without(written, path))),),
            next(readers),
        )
        for _ in range(FEW):
            label, value = next(wrong)
            edit = Edit("write", file, as_json(replaced(written, path, value)))
            yield _case("checkpoints: fields", f"{name}: {where} is {label}", (edit,), next(readers))


def _tensors(name: str, newest: Path, readers: Iterator[Reader]) -> Iterator[Case]:
    """Tensors of other names, shapes and types, too many and too few, and numbers that are none."""
    import numpy as np
    from safetensors.numpy import load, save

    for file in ("model.safetensors", "optimizer.safetensors"):
        held = load((newest / file).read_bytes())
        if not held:
            continue
        first = next(iter(held))
        others: dict[str, Any] = {
            "none": dict,
            "one too few": lambda held=held, first=first: {k: v for k, v in held.items() if k != first},
            "one too many": lambda held=held, first=first: held | {"another": held[first]},
            "another name": lambda held=held, first=first: {("x" if k == first else k): v for k, v in held.items()},
            "another shape": lambda held=held, first=first: held | {first: held[first].reshape(-1)[:1]},
            "whole numbers": lambda held=held: {k: v.astype("int64") for k, v in held.items()},
            "doubles": lambda held=held: {k: v.astype("float64") for k, v in held.items()},
            "NaN": lambda held=held: {k: np.asarray(v * float("nan")) for k, v in held.items()},
            "infinities": lambda held=held: {k: np.asarray(v + float("inf")) for k, v in held.items()},
        }
        for label, make in others.items():
            edit = Edit("write", f"{name}/checkpoint/{newest.name}/{file}", save(make()))
            yield _case("checkpoints: tensors", f"{name}: {file} with {label}", (edit,), next(readers))


def _wrong_json() -> Iterator[Case]:
    """Files that are JSON, or nearly, and no run."""
    texts = {
        "a list": "[]",
        "null": "null",
        "a number": "1",
        "an empty object": "{}",
        "a later format": '{"format": 999, "kind": "train", "versions": {"subquad": "9.9"}}',
        "a later format of nobody": '{"format": 2, "versions": [1]}',
        "a format that is text": '{"format": "1", "kind": "train"}',
        "a format that is true": '{"format": true, "kind": "train"}',
        "a format that is negative": '{"format": -1, "kind": "train"}',
        "a format that is huge": '{"format": 99999999999999999999999, "kind": "train"}',
        "an unknown kind": '{"format": 1, "kind": "dance"}',
        "no kind": '{"format": 1}',
        "no options": '{"format": 1, "kind": "train", "seed": 0}',
        "deep nesting": "[" * 100_000,
        "deep objects": '{"a":' * 50_000,
        "a number of ten thousand digits": f'{{"format": {"9" * 10_000}}}',
    }
    readers = (
        "predict",
        "train --resume",
        "convert --resume",
        "compare --resume",
        "report",
        "spectrum",
        "advise --length 9 --run",
    )
    for label, text in texts.items():
        for reader in readers:
            edits = (Edit("write", "run/run.json", text.encode()), Edit("write", "run/rows.jsonl", b""))
            yield Case("run.json: others", f"{reader} on {label}", (*reader.split(), "run"), (), edits)


def _places() -> Iterator[Case]:
    """Where a run should be, or a page should go, there is something else."""
    for command in ("predict", "train --resume", "convert --resume", "compare --resume", "report", "spectrum", "convert"):
        for label, place in {
            "a file": "file",
            "a dangling link": "dangling",
            "a circle": "circle",
            "empty": "folder",
        }.items():
            edits = (
                Edit("write", "file", b"text"),
                Edit("link", "dangling", b"nowhere"),
                Edit("link", "circle", b"circle"),
                Edit("folder", "folder"),
            )
            yield Case("places", f"{command} on {label}", (*command.split(), place), (), edits)
    for name in ("copied", "compared", "looked"):
        full = (Edit("folder", f"{name}/report.html"), Edit("write", f"{name}/report.html/kept", b"kept"))
        yield Case("places", f"report of {name} over a folder", ("report", name), (name,), full)
        for place in ("file/below", "folder", "dangling", "/dev/full", "/proc/nothing"):
            files = (Edit("write", "file", b"text"), Edit("folder", "folder"), Edit("link", "dangling", b"no/where"))
            yield Case("places", f"report of {name} to {place}", ("report", name, "--out", place), (name,), files)
            yield Case("places", f"figures of {name} in {place}", ("report", name, "--figures", place), (name,), files)


def _case(kind: str, name: str, edits: tuple[Edit, ...], reader: Reader) -> Case:
    command = " ".join(reader.argv[:2])
    digest = hashlib.sha256(repr(edits).encode()).hexdigest()[:4]  # fields may have one name in two places
    run = edits[0].path.split("/")[0]
    templates = tuple(dict.fromkeys((run, *reader.templates)))
    return Case(kind, f"{name} ({command}, {digest})", reader.argv, templates, edits, stdin=reader.stdin)
