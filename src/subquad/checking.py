"""Checks values against the types of the fields that hold them: the same check for the command line, Python and files.

A field declares what it takes in its type, such as ``features: Count``. `Checked` is the base class of dataclasses of
options: their values are checked whenever one is made. `read` makes one from what stands in a file.
"""

import dataclasses
import json
import reprlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar, get_args, get_origin, get_type_hints

import numpy as np
from annotated_types import Ge, Gt, Le, Lt, MinLen
from pydantic import AfterValidator, ConfigDict, InstanceOf, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError
from typing_extensions import is_typeddict

from subquad.errors import OptionError, SubquadError

LARGEST = 2**48
"""Largest count of anything: above it, sizes of tensors overflow instead of being too large."""
LARGEST_NUMBER = 3e38
"""Largest real number: above it, float32 is infinite."""

Count = Annotated[int, Ge(1), Le(LARGEST)]
"""How many there are, at least one."""
Whole = Annotated[int, Ge(0), Le(LARGEST)]
"""How many there are, or none."""
AtLeastTwo = Annotated[int, Ge(2), Le(LARGEST)]
"""How many there are, at least two."""
Place = Annotated[int, Ge(-LARGEST), Le(LARGEST)]
"""Position in a list, counted from 0, or from the end if negative."""
Seed = Annotated[int, Ge(0), Lt(2**63)]
"""Seed of a random number generator."""
Positive = Annotated[float, Gt(0), Le(LARGEST_NUMBER)]
"""A number above 0 that float32 can hold."""
Moderate = Annotated[float, Gt(0), Le(1e30)]
"""A number above 0 that float32 can hold, and many times of it as well."""
NonNegative = Annotated[float, Ge(0), Le(LARGEST_NUMBER)]
"""A number, 0 or above, that float32 can hold."""
Exponent = Annotated[float, Ge(-80), Le(80)]
"""A logarithm of a number that float32 can hold."""
Share = Annotated[float, Ge(0), Le(1)]
"""A part of a whole: from 0 to 1."""
InnerShare = Annotated[float, Gt(0), Lt(1)]
"""A part of a whole that is neither none nor all of it."""
BelowOne = Annotated[float, Ge(0), Lt(1)]
"""A part of a whole, maybe none, but never all of it."""
PositiveShare = Annotated[float, Gt(0), Le(1)]
"""A part of a whole, maybe all of it, but never none."""


def _writable(text: Any) -> Any:
    """Refuses what no file name and no message can hold."""
    try:
        size = len(str(text).encode())
    except UnicodeEncodeError:
        raise PydanticCustomError("text", "a text that UTF-8 can write") from None
    if "\0" in str(text):
        raise PydanticCustomError("text", "a text without NUL characters")
    if size > LONGEST_TEXT:
        raise PydanticCustomError("text", f"a text of at most {LONGEST_TEXT} bytes")
    return text


def _file_name(name: Any) -> Any:
    """Refuses what is too long for a file system."""
    if any(len(part.encode()) > LONGEST_NAME for part in Path(name).parts):
        raise PydanticCustomError("text", f"a path whose parts have at most {LONGEST_NAME} bytes")
    return name


LONGEST_TEXT = 4095
"""Bytes of the longest text, which is also the longest path that Linux takes."""
LONGEST_NAME = 255
"""Bytes of the longest name of one file or folder."""

Words = Annotated[str, AfterValidator(_writable)]
"""Words, such as the name of a column; may be empty."""
FilePath = Annotated[Path, AfterValidator(_writable), AfterValidator(_file_name)]
"""Where a file or a folder is."""
FileName = Annotated[str, AfterValidator(_writable), AfterValidator(_file_name)]
"""The same as a text, which may be empty."""
GivenFileName = Annotated[FileName, MinLen(1)]
"""The same as a text that is not empty."""

T = TypeVar("T")

Several = Annotated[tuple[T, ...], MinLen(1)]
"""One value or several."""

STRICT = ConfigDict(strict=True, allow_inf_nan=False, arbitrary_types_allowed=True)
"""Pydantic's settings for every check: no value is turned into another type, and every number is finite."""
_deferred: ContextVar[bool] = ContextVar("deferred", default=False)


class Checked:
    """Base class of dataclasses whose values are checked against the types of their fields when one is made."""

    renamed: ClassVar[Mapping[str, str]] = {}
    """Names that fields had in earlier versions, which files may still use, and their names of today."""

    def __post_init__(self) -> None:
        if not _deferred.get():
            check(self)

    def check(self) -> None:
        """Refuses values that each fit their type but do not fit together."""


def check(options: Checked) -> None:
    """Checks every field by its type, then the fields together. Raises `OptionError` for the first that does not fit."""
    kind: Any = type(options)
    for name, adapter in _adapters(kind).items():
        value = getattr(options, name)
        if isinstance(value, np.generic):
            object.__setattr__(options, name, value := value.item())
        if isinstance(value, list):
            object.__setattr__(options, name, value := tuple(value))
        try:
            adapter.validate_python(value)
        except ValidationError as error:
            raise OptionError(name, _problem(error, value)) from None
    options.check()


@contextmanager
def deferred() -> Iterator[None]:
    """Inside the block, instances of `Checked` are made unchecked, for a parser that would swallow the error."""
    token = _deferred.set(True)
    try:
        yield
    finally:
        _deferred.reset(token)


def read(kind: type[T], values: object, where: str) -> T:
    """An instance of a dataclass from the values of its fields as JSON has them; `where` names their place in messages."""
    if not isinstance(values, Mapping):
        raise SubquadError(f"{where} must be an object with fields, but is {excerpt(values)}")
    fields = {field.name: field for field in dataclasses.fields(kind) if field.init}  # type: ignore[arg-type]
    renamed = kind.renamed if issubclass(kind, Checked) else {}
    values = {renamed.get(name, name): value for name, value in values.items()}
    if unknown := sorted(values.keys() - fields.keys(), key=str):
        raise SubquadError(
            f"{where} has {excerpt(unknown[0])}, which this version does not know: it was made by another one"
        )
    required = [name for name, field in fields.items() if field.default is field.default_factory is dataclasses.MISSING]
    if missing := [name for name in required if name not in values]:
        raise SubquadError(f"{where} lacks {missing[0]}: the file is damaged")
    plain_kind: Any = kind
    adapters = _adapters(plain_kind)
    typed = {name: _from_json(adapters[name], value, f"{where}: {name}") for name, value in values.items()}
    try:
        return kind(**typed)
    except OptionError as error:
        raise SubquadError(f"{where}: {error}") from None


def read_kind(registry: Mapping[str, type[Any]], values: object, where: str) -> Any:
    """An instance of the dataclass that a registry has for the field ``kind``, from the other fields."""
    kind = values.get("kind") if isinstance(values, Mapping) else None
    if not isinstance(values, Mapping) or not isinstance(kind, str) or kind not in registry:
        raise SubquadError(f"{where} must have a kind out of {', '.join(registry)}, but is {excerpt(values)}")
    return read(registry[kind], {name: value for name, value in values.items() if name != "kind"}, where)


def read_as(hint: Any, value: object, where: str) -> Any:
    """A value of a file as a type that is no dataclass of options, such as a TypedDict or ``dict[str, int]``."""
    return _from_json(_adapter(hint), value, where)


def excerpt(value: object) -> str:
    """A value for a message: its repr, cut to a length that fits into a sentence."""
    return _SHORT.repr(value)


_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 60


def _from_json(adapter: TypeAdapter[Any], value: object, where: str) -> Any:
    """The value in Python's types. What has been read already, such as a feature map's options, is taken as it is."""
    try:
        if dataclasses.is_dataclass(value):
            return adapter.validate_python(value)
        return adapter.validate_json(json.dumps(value))
    except (ValidationError, RecursionError) as error:
        problem = _problem(error, value) if isinstance(error, ValidationError) else "is nested too deep"
        raise SubquadError(f"{where} {problem}") from None


@cache
def _adapters(kind: Any) -> dict[str, TypeAdapter[Any]]:
    """A validator for each field that is given when an instance is made."""
    hints = get_type_hints(kind, include_extras=True)
    return {field.name: _adapter(hints[field.name]) for field in dataclasses.fields(kind) if field.init}


@cache
def _adapter(hint: Any) -> TypeAdapter[Any]:
    if dataclasses.is_dataclass(bare := get_args(hint)[0] if get_origin(hint) is Annotated else hint):
        return TypeAdapter(InstanceOf[bare])  # type: ignore[misc, valid-type]  # whose own fields were checked when it was made
    if is_typeddict(hint):  # which brings its own configuration
        return TypeAdapter(hint)
    return TypeAdapter(hint, config=STRICT)


def _problem(error: ValidationError, value: object) -> str:
    """What is wrong with a value, as the rest of a sentence that begins with its name."""
    first, *others = error.errors(include_url=False)
    place = _place(first["loc"], value)
    if first["type"] == "missing":
        return f"{place}lacks {excerpt(first['loc'][-1])}: the file is damaged"
    alternatives = [_rule(each) for each in (first, *others) if _place(each["loc"], value) == place]
    shown = value if first["type"] == "json_invalid" else first["input"]
    return f"{place}must be {' or '.join(dict.fromkeys(alternatives))}, but is {excerpt(shown)}"


def _rule(error: ErrorDetails) -> str:
    """What a value must be, by pydantic's name of the rule that it broke."""
    limits: Mapping[str, Any] = error.get("ctx", {})
    match error["type"]:
        case "int_type" | "int_from_float":
            return "a whole number"
        case "float_type":
            return "a number"
        case "finite_number":
            return "a finite number"
        case "bool_type":
            return "true or false"
        case "string_type":
            return "a text"
        case "json_invalid":
            return "made of characters that UTF-8 can write"
        case "too_short" if limits["field_type"] == "Tuple":
            return "one value or several"
        case "string_too_short" | "too_short":
            return "not empty"
        case "tuple_type" | "list_type":
            return "a list"
        case "dict_type":
            return "an object with fields"
        case "greater_than":
            return "positive" if limits["gt"] == 0 else f"above {limits['gt']:.15g}"
        case "greater_than_equal":
            return {0: "0 or more", 1: "positive"}.get(limits["ge"], f"at least {limits['ge']:.15g}")
        case "less_than":
            return f"below {limits['lt']:.15g}"
        case "less_than_equal":
            return f"at most {limits['le']:.15g}"
        case "literal_error":
            return str(limits["expected"]).replace("'", "")
        case "is_instance_of" if limits["class"] == "Path":
            return "the name of a file or folder"
        case "is_instance_of":
            return f"an instance of {limits['class']}"
        case _:
            return error["msg"].removeprefix("Input should be ")


def _place(path: tuple[int | str, ...], value: Any) -> str:
    """Where in a nested value something is. Parts of the path that name a type, not a place, are left out."""
    words = []
    for part in path:
        is_key = isinstance(value, Mapping) and part in value
        is_index = isinstance(value, list | tuple) and isinstance(part, int) and part < len(value)
        if is_key or is_index:
            value = value[part]
            words.append(f"[{excerpt(part)}]")
    return "".join(words) + " " * bool(words)
