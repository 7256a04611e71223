"""How tyro reads the frozen dataclasses of options: each field under its name, with the comment behind it as its help."""

import dataclasses
import inspect
import re
from argparse import ArgumentParser
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, get_type_hints

import tyro
from tyro.constructors import (
    ConstructorRegistry,
    PrimitiveConstructorSpec,
    PrimitiveTypeInfo,
    StructConstructorSpec,
    StructFieldSpec,
    StructTypeInfo,
)

from subquad.attention.hybrid import Rest
from subquad.checking import Checked, FilePath
from subquad.cli.values import choose
from subquad.feature_maps import FEATURE_MAPS, FeatureMapOptions

Flags = dict[tuple[type[Any], str], str]
"""Maps the class and the name of an option to its name on the command line, where the two names differ."""


@dataclass(frozen=True)
class Resume(Checked):
    """Continues a run where it stopped, with the options that it was started with."""

    resume: FilePath
    """Folder of the run to continue."""
    restart: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Delete the rows and checkpoints of the run and start it over. Needed if none of its checkpoints can be read."""


def is_resumed(words: Sequence[str]) -> bool:
    """Whether a command line has --resume, which excludes all other options but --restart."""
    return any(argument == "--resume" or argument.startswith("--resume=") for argument in words)


def attention_in(words: Sequence[str]) -> str | None:
    """The value of --attention, which decides what other options there are; None if the option is not given."""
    parser = ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--attention", nargs="?")
    attention: str | None = parser.parse_known_args(words)[0].attention
    return attention


def joined(name: str, parts: Mapping[str, Any], prefixed: Mapping[str, Any] | None = None) -> Any:
    """Returns one dataclass out of several whose options stand side by side on a command line.

    Each part is an instance, whose values are the defaults, or a class with a required argument, which must come first. The
    options of `prefixed` parts, which come last, begin with the name of their part.
    """
    fields: list[tuple[str, Any, Any]] = []
    for part, options in parts.items():
        is_class = isinstance(options, type)
        default = dataclasses.field() if is_class else dataclasses.field(default=options)
        kind = options if is_class else type(options)
        fields.append((part, Annotated[kind, tyro.conf.OmitArgPrefixes], default))
    fields += [(part, type(options), dataclasses.field(default=options)) for part, options in (prefixed or {}).items()]
    return dataclasses.make_dataclass(name, fields, frozen=True)


def clashing(parts: Mapping[str, Any]) -> Flags:
    """Returns prefixed names for options that share their name with an option of another part.

    An option of the attention yields to all others, and an option of the task to those of the model and of the training.
    """
    flags: Flags = {}
    taken: set[str] = set()
    order = {"shared": 0, "model": 0, "training": 0, "conversion": 0, "task": 1}  # then mechanisms, one or several
    for part in sorted(parts, key=lambda part: order.get(part, 2)):
        kind = parts[part] if isinstance(parts[part], type) else type(parts[part])
        names = [field.name for field in dataclasses.fields(kind) if field.init]
        flags |= {(kind, name): f"{part}-{name.replace('_', '-')}" for name in names if name in taken}
        taken |= set(names)
    return flags


def registry(classes: Iterable[type[Any]], flags: Flags | None = None) -> ConstructorRegistry:
    """Returns tyro's rules for these classes of options, and for feature maps, which are chosen by their kind.

    `flags` holds the names on the command line of options that cannot keep their own.
    """
    known = set(classes)
    rules = ConstructorRegistry()

    @rules.struct_rule
    def options(info: StructTypeInfo) -> StructConstructorSpec | None:
        kind: Any = info.type
        if kind not in known:
            return None
        types, helps = get_type_hints(kind), _comments(kind)
        default = info.default if isinstance(info.default, kind) else kind()
        specs = []
        for field in (field for field in dataclasses.fields(kind) if field.init):
            flag = (flags or {}).get((kind, field.name))
            hint: Any = Annotated[types[field.name], tyro.conf.arg(name=flag)] if flag else types[field.name]
            specs.append(StructFieldSpec(field.name, hint, getattr(default, field.name), helps.get(field.name)))
        return StructConstructorSpec(instantiate=kind, fields=tuple(specs))

    @rules.primitive_rule
    def feature_map(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
        if info.type not in (FeatureMapOptions, Rest):
            return None
        known: dict[str, Any] = FEATURE_MAPS | ({} if info.type is FeatureMapOptions else {"none": lambda: "none"})
        return PrimitiveConstructorSpec(
            nargs=1,
            metavar="{" + ",".join(known) + "}",
            instance_from_str=lambda names: known[choose("feature map", names[0], known)](),
            is_instance=lambda value: value == "none" or hasattr(value, "kind"),
            str_from_instance=lambda value: [value if isinstance(value, str) else value.kind],
        )

    return rules


@cache  # finding the source of a class takes most of the time of parsing
def _comments(options: type[Any]) -> Mapping[str, str]:
    """Maps each field of a class, inherited fields included, to the comment behind it."""
    classes = [base for base in options.__mro__ if dataclasses.is_dataclass(base)]
    comments = (re.findall(r"^    (\w+): .*  # (.*)$", inspect.getsource(base), flags=re.MULTILINE) for base in classes)
    return dict(pair for pairs in comments for pair in reversed(pairs))
