"""Command lines made from the types of the options, one or two strange values at a time, around tiny valid ones."""

import dataclasses
import random
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, get_type_hints

from subquad.attention import MECHANISMS
from subquad.cli import (
    advise,
    check,
    choose,
    compare,
    convert,
    embed,
    error,
    predict,
    report,
    reproduce,
    spectrum,
    training_options,
)
from subquad.conversion import ConversionOptions
from subquad.models import ModelOptions
from subquad.tasks import TASKS
from subquad.training import TrainOptions
from tests.robustness.cases import Case, Edit
from tests.robustness.values import Tried, values_for

PAIRS = 400
"""Cases with two strange values at once."""

STRANGE_FILES = (
    Edit("folder", "folder"),
    Edit("write", "file", b"some text\n"),
    Edit("write", "binary", bytes(range(256))),
    Edit("link", "dangling", b"nothing-here"),
    Edit("link", "circle", b"circle"),
)
"""What paths among the values lead to."""

Words = dict[str, tuple[str, ...]]

SMALL_MODEL: Words = {"layers": ("1",), "heads": ("1",), "head_dim": ("4",)}
SMALL_TRAINING: Words = {"steps": ("1",), "batch": ("2",), "no-page": ()}
SMALL_TASKS: dict[str, Words] = {
    "copy": {"length": ("2",), "held-out": ("2",)},
    "sorting": {"length": ("8",), "symbols": ("3",), "held-out": ("2",)},
    "recall": {"length": ("8",), "pairs": ("2",), "keys": ("3",), "values": ("2",), "held-out": ("2",), "tested": ("2",)},
    "induction": {"length": ("8",), "symbols": ("3",), "held-out": ("2",), "tested": ("2",)},
    "transactions": {"clients": ("60",), "shortest-history": ("2",), "longest-history": ("4",)},
    "events": {"sequences": ("4",), "inner": ("4",), "components": ("2",)},
    "mlm": {"text": ("texts",), "vocabulary": ("bytes",), "length": ("8",), "held-out": ("2",), "tested": ("2",)},
    "lm": {"text": ("texts",), "vocabulary": ("bytes",), "length": ("8",), "held-out": ("8",), "tested": ("8",)},
    "classify": {"text": ("labelled.jsonl",), "vocabulary": ("bytes",), "length": ("8",), "held-out": ("2",)},
    "lra-listops": {"shortest": ("3",), "largest": ("20",), "held-out": ("2",), "tested": ("2",)},
    "lra-text": {"data": ("labelled.jsonl",), "length": ("8",), "held-out": ("2",), "tested": ("2",)},
    "lra-retrieval": {"length": ("8",), "held-out": ("2",), "tested": ("2",)},
    "lra-image": {"held-out": ("2",), "tested": ("2",)},
    "lra-pathfinder": {"difficulty": ("easy",), "held-out": ("2",), "tested": ("2",)},
    "images": {"side": ("4",), "held-out": ("2",), "tested": ("2",)},
    "series": {"series": ("20",), "mean-length": ("12",), "horizon": ("2",), "held-out": ("2",), "tested": ("2",)},
    "tokens": {"sequences": ("20",), "mean-length": ("8",), "length": ("4",), "held-out": ("8",), "tested": ("8",)},
    "speech": {"bands": ("8",), "examples": ("20",), "held-out": ("2",), "tested": ("2",)},
}
SMALL_ATTENTIONS: dict[str, Words] = {
    "softmax": {},
    "linear": {},
    "favor": {"features": ("4",)},
    "linformer": {"k": ("2",), "max-length": ("64",)},
    "infinity": {"segment": ("4",), "basis": ("4",), "points": ("4",), "bins": ("4",)},
    "hybrid": {"block": ("4",)},
    "window": {"reach": ("3",)},
    "sparse": {"block": ("2",)},
    "nystrom": {"landmarks": ("2",)},
    "cosformer": {"max-length": ("64",)},
    "lsh": {"rounds": ("1",), "buckets": ("2",), "chunk": ("4",)},
}
ENDLESS = {
    ("train copy", "steps"),
    ("train sorting", "held_out"),
    ("train recall", "held_out"),
    ("train recall", "tested"),
    ("train induction", "held_out"),
    ("train induction", "tested"),
    ("train lra-listops", "held_out"),
    ("train lra-listops", "tested"),
    ("train lra-retrieval", "held_out"),
    ("train lra-retrieval", "tested"),
    ("train lra-pathfinder", "held_out"),
    ("train lra-pathfinder", "tested"),
    ("predict lm", "tokens"),
    ("convert", "steps"),
    ("convert", "tune_steps"),
    ("convert", "minutes"),
    ("compare", "budget"),
    ("error", "draws"),
}
"""Options of which a huge value is right, and takes as long as it says."""
HUGE = ("highest", "a billion", "largest")


class Base(NamedTuple):
    """A small command line that works, and the options that it takes beside those."""

    kind: str
    command: tuple[str, ...]
    given: Words
    parts: tuple[type[Any], ...]
    templates: tuple[str, ...] = ()

    def argv(self, changed: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
        """The command line with some options changed. Those go last, for one that lacks its value."""
        options = {**{name: words for name, words in self.given.items() if name not in changed}, **changed}
        return (*self.command, *(word for name, words in options.items() for word in (f"--{name}", *words)))


def invocations() -> Iterator[Case]:
    """All of them."""
    bases = [*_training(), *_commands()]
    for base in bases:
        yield Case(base.kind, "as it is", base.argv({}), base.templates, STRANGE_FILES)
        for name, tried in _fields(base):
            yield _case(base, {name: tried})
    yield from _pairs([base for base in bases if base.kind.startswith("train ")])
    yield from _misused()


def _training() -> Iterator[Base]:
    """Every task with its own options, every attention with its own, and what all share once."""
    labelled = dict.fromkeys(("classify", "lra-text"), ("labelled.jsonl",))
    texts = {"mlm": ("texts",), "lm": ("texts",), **labelled}
    for task in TASKS:
        shared = (training_options.Shared, ModelOptions, TrainOptions) if task == "copy" else ()
        given = SMALL_TASKS[task] | SMALL_MODEL | SMALL_TRAINING
        yield Base(f"train {task}", ("train", task), given, (TASKS[task], *shared), texts.get(task, ()))
    for attention, options in MECHANISMS.items():
        task = "copy" if options().traits.causal else "mlm"
        given = SMALL_TASKS[task] | SMALL_MODEL | SMALL_TRAINING | SMALL_ATTENTIONS[attention]
        command = ("train", task, "--attention", attention)
        yield Base(f"train with {attention}", command, given, (options,), texts.get(task, ()))


def _commands() -> Iterator[Base]:
    measured: Words = {"lengths": ("16",), "mechanisms": ("linear",), "what": ("forward",), "budget": ("0.000001",)}
    yield Base("compare", ("compare",), measured | {"heads": ("1",), "head_dim": ("4",)}, (compare.Compare,))
    raced: Words = SMALL_TASKS["recall"] | SMALL_MODEL | {"batch": ("2",), "budget": ("1s",), "mechanisms": ("linear",)}
    yield Base("choose", ("choose", "recall"), raced, (choose.Choose,))
    yield Base("advise", ("advise",), {"length": ("100",), "run": ("compared",)}, (advise.Advise,), ("compared",))
    yield Base("predict", ("predict", "copied", "1", "2"), {}, (predict.Predict,), ("copied",))
    yield Base(
        "predict events", ("predict", "events"), {"data": ("events.csv",)}, (predict.Predict,), ("events", "events.csv")
    )
    yield Base(
        "embed",
        ("embed", "clients"),
        {"data": ("clients.csv",), "output": ("vectors.csv",)},
        (embed.Embed,),
        ("clients", "clients.csv"),
    )
    yield Base("predict lm", ("predict", "continued"), {"text": ("the cat",)}, (predict.Predict,), ("continued",))
    few: Words = {"sequences": ("1",), "length": ("8",)}
    yield Base("spectrum", ("spectrum", "masked"), few, (spectrum.Spectrum,), ("masked", "texts"))
    brief: Words = {
        "features": ("2",),
        "kernels": ("positive",),
        "projections": ("givens",),
        "sizes": ("1",),
        "draws": ("2",),
    }
    brief |= {"length": ("4",), "head-dim": ("2",)}
    yield Base("error", ("error",), brief, (error.Error,))
    examined: Words = {**brief, **few, "no-random": ()}
    yield Base("error of a model", ("error", "bert"), examined | {"text": ("texts",)}, (), ("bert", "texts"))
    asked: Words = {"heads": ("1",), "head_dim": ("4",), "checks": ("batch",), "length": ("16",)}
    yield Base("check", ("check", "linear"), asked, (check.Check,))
    yield Base("report", ("report", "copied"), {}, (report.Report,), ("copied",))
    yield Base("reproduce", ("reproduce", "nothing"), {}, (reproduce.Reproduce,))
    tiny: Words = {"steps": ("1",), "tune-steps": ("1",), "texts": ("2",), "batch-tokens": ("16",), "no-page": ()}
    tiny |= {"no-controls": (), "attention": ("elu",), "minutes": ("0.05",)}
    yield Base("convert", ("convert", "masked"), tiny, (convert.Shared, ConversionOptions), ("masked", "texts"))
    short: Words = {"text": ("texts",), "cost-lengths": ("16",)}
    yield Base("convert pretrained", ("convert", "bert"), tiny | short, (), ("bert", "texts"))


def _fields(base: Base) -> Iterator[tuple[str, Tried]]:
    """Every option with every value to try."""
    for part in base.parts:
        hints = get_type_hints(part, include_extras=True)
        for field in dataclasses.fields(part):
            if not field.init or _is_positional(hints[field.name]) or dataclasses.is_dataclass(field.type):
                continue
            for tried in values_for(hints[field.name]):
                if (base.kind, field.name) not in ENDLESS or tried.label not in HUGE:
                    yield field.name.replace("_", "-"), tried


def _is_positional(hint: Any) -> bool:
    return any("Positional" in repr(rule) for rule in getattr(hint, "__metadata__", ()))


def _case(base: Base, changed: Mapping[str, Tried]) -> Case:
    name = ", ".join(f"--{name} {tried.label}" for name, tried in changed.items())
    argv = base.argv({name: tried.words for name, tried in changed.items()})
    return Case(base.kind, name, argv, base.templates, STRANGE_FILES)


def _pairs(bases: list[Base]) -> Iterator[Case]:
    """Two options at once, drawn by a fixed seed."""
    draw = random.Random(16)
    fields = [(base, found) for base in bases if len(found := list(_fields(base))) > 1]
    seen: set[str] = set()
    while len(seen) < PAIRS:
        base, found = draw.choice(fields)
        first, second = draw.sample(found, 2)
        case = _case(base, dict((first, second)))
        if first[0] != second[0] and case.label not in seen:
            seen.add(case.label)
            yield case._replace(kind="pairs of options", name=f"{base.kind}, {case.name}")


def _misused() -> Iterator[Case]:
    """What is no option: unknown commands, tasks and options, words too many, and none at all."""
    words = {
        "nothing": (),
        "help": ("--help",),
        "version": ("--version",),
        "an unknown command": ("trian",),
        "an empty command": ("",),
        "an option first": ("--layers", "3"),
        "a NUL byte": ("\0",),
        "an unknown task": ("train", "copying"),
        "an empty task": ("train", ""),
        "an unknown attention": ("train", "copy", "--attention", "lineer"),
        "no attention": ("train", "copy", "--attention"),
        "an empty attention": ("train", "copy", "--attention="),
        "an attention without a causal form": ("train", "copy", "--attention", "linformer"),
        "an option of another attention": ("train", "copy", "--attention", "linear", "--features", "4"),
        "an unknown experiment": ("reproduce", "everything"),
        "a surrogate": ("train", "\udcff"),
        "resume of nothing": ("train", "--resume"),
        "resume of an empty name": ("train", "--resume", ""),
        "resume with other options": ("train", "--resume", "copied", "--layers", "2"),
        "resume of two": ("train", "--resume", "copied", "--resume", "copied"),
        "resume of another kind": ("convert", "--resume", "copied"),
        "a run that is there": ("train", "copy", "--out", "copied"),
        "a comparison into a run that is there": ("compare", "--out", "copied", "--lengths", "16"),
        "report of nothing": ("report",),
        "report of two kinds": ("report", "copied", "compared"),
    }
    for command in (
        "compare",
        "advise",
        "choose",
        "train",
        "convert",
        "predict",
        "embed",
        "spectrum",
        "error",
        "check",
        "reproduce",
        "report",
    ):
        words[f"help of {command}"] = (command, "--help")
        words[f"an unknown option of {command}"] = (command, "--no-such-option", "7")
        words[f"words too many for {command}"] = (command, "copied", "copied", "copied", "--", "copied")
    for name, argv in words.items():
        yield Case("misuse", name, argv, ("copied", "compared"), STRANGE_FILES)
