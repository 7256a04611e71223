"""How tyro reads the frozen dataclasses of options: each field by its own name, explained by the comment behind it."""

import dataclasses
import inspect
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Resume(Checked):
    """Goes on with a run where it stopped. Its options stay as they were."""

    resume: FilePath
    restart: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Starts the run over, deleting its rows and checkpoints. Needed where no checkpoint can be read."""


def is_resumed(given: Sequence[str]) -> bool:
    """Whether a run is to be gone on with, which takes no other options."""
    return any(argument == "--resume" or argument.startswith("--resume=") for argument in given)


def attention_in(given: Sequence[str], otherwise: str) -> str:
    """The name after --attention, which decides what other options there are."""
    for at, argument in enumerate(given):
        if argument == "--attention" and at + 1 < len(given):
            return given[at + 1]
        if argument.startswith("--attention="):
            return argument.split("=", 1)[1]
    return otherwise


def joined(name: str, parts: Mapping[str, type[Any]]) -> Any:
    """One dataclass of several, whose options stand side by side. Those with positional arguments come first."""
    fields = []
    for part, kind in parts.items():
        is_needed = any(at.default is at.default_factory is dataclasses.MISSING for at in dataclasses.fields(kind))
        default = dataclasses.field() if is_needed else dataclasses.field(default_factory=kind)
        fields.append((part, Annotated[kind, tyro.conf.OmitArgPrefixes], default))
    return dataclasses.make_dataclass(name, fields, frozen=True)


def registry(classes: Iterable[type[Any]]) -> ConstructorRegistry:
    """Rules for these classes, and for feature maps, which are chosen by their kind."""
    known = set(classes)
    rules = ConstructorRegistry()

    @rules.struct_rule
    def options(info: StructTypeInfo) -> StructConstructorSpec | None:
        if info.type not in known:
            return None
        types, helps = get_type_hints(info.type), _comments(info.type)
        default = info.default if isinstance(info.default, info.type) else info.type()
        fields = [found for found in dataclasses.fields(info.type) if found.init]
        specs = [StructFieldSpec(at.name, types[at.name], getattr(default, at.name), helps.get(at.name)) for at in fields]
        return StructConstructorSpec(instantiate=info.type, fields=tuple(specs))

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


def _comments(options: type[Any]) -> dict[str, str]:
    """What the comments behind a class' fields say of them, fields of base classes included."""
    classes = [base for base in options.__mro__ if dataclasses.is_dataclass(base)]
    found = (re.findall(r"^    (\w+): .*  # (.*)$", inspect.getsource(base), flags=re.MULTILINE) for base in classes)
    return dict(pair for pairs in found for pair in reversed(pairs))
