"""Checks values against the types of the fields that hold them: the same check for the command line, Python and files.

A field declares what it takes in its type, such as ``features: Count``. `Checked` is the base class of dataclasses of
options: their values are checked whenever an instance is made. `read` makes an instance from the values in a file.
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
"""A number of things, at least one."""
Whole = Annotated[int, Ge(0), Le(LARGEST)]
"""A number of things, zero included."""
AtLeastTwo = Annotated[int, Ge(2), Le(LARGEST)]
"""A number of things, at least two."""
Place = Annotated[int, Ge(-LARGEST), Le(LARGEST)]
"""Position in a list, counted from 0, or from the end if negative."""
Seed = Annotated[int, Ge(0), Lt(2**63)]
"""Seed of a random number generator."""
Positive = Annotated[float, Gt(0), Le(LARGEST_NUMBER)]
"""A number above 0 that float32 can hold."""
Moderate = Annotated[float, Gt(0), Le(1e30)]
"""A number above 0, small enough that float32 also holds large multiples of it."""
NonNegative = Annotated[float, Ge(0), Le(LARGEST_NUMBER)]
"""A number, 0 or above, that float32 can hold."""
Exponent = Annotated[float, Ge(-80), Le(80)]
"""The natural logarithm of a number that float32 can hold."""
Share = Annotated[float, Ge(0), Le(1)]
"""A share of a whole, from 0 to 1."""
InnerShare = Annotated[float, Gt(0), Lt(1)]
"""A share of a whole, above 0 and below 1."""
BelowOne = Annotated[float, Ge(0), Lt(1)]
"""A share of a whole, from 0 to below 1."""
PositiveShare = Annotated[float, Gt(0), Le(1)]
"""A share of a whole, above 0 and up to 1."""


def _writable(text: Any) -> Any:
    """Refuses text that cannot be part of a file name or a message."""
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
    """Refuses a path with a part that is too long for a file system."""
    if any(len(part.encode()) > LONGEST_NAME for part in Path(name).parts):
        raise PydanticCustomError("text", f"a path whose parts have at most {LONGEST_NAME} bytes")
    return name


LONGEST_TEXT = 4095
"""Largest number of bytes of a text. It is also the longest path that Linux accepts."""
LONGEST_NAME = 255
"""Largest number of bytes in the name of one file or folder."""

Words = Annotated[str, AfterValidator(_writable)]
"""Text, such as the name of a column; may be empty."""
FilePath = Annotated[Path, AfterValidator(_writable), AfterValidator(_file_name)]
"""Path of a file or a folder."""
FileName = Annotated[str, AfterValidator(_writable), AfterValidator(_file_name)]
"""Path of a file or a folder as text; may be empty."""
GivenFileName = Annotated[FileName, MinLen(1)]
"""Path of a file or a folder as text that is not empty."""

T = TypeVar("T")

Several = Annotated[tuple[T, ...], MinLen(1)]
"""A tuple of at least one value."""

STRICT = ConfigDict(strict=True, allow_inf_nan=False, arbitrary_types_allowed=True)
"""Pydantic's settings for every check: no value is turned into another type, and every number is finite."""
_deferred: ContextVar[bool] = ContextVar("deferred", default=False)


class Checked:
    """Base class of dataclasses whose values are checked against the types of their fields when an instance is made."""

    renamed: ClassVar[Mapping[str, str]] = {}
    """Maps names that fields had in earlier versions, which files may still use, to the current names."""

    def __post_init__(self) -> None:
        if not _deferred.get():
            check(self)

    @classmethod
    def updated(cls, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """Returns the values of a file with those replaced that had another meaning in the version that wrote it."""
        return values

    def check(self) -> None:
        """Raises `OptionError` or `SubquadError` for values that fit their types but do not fit together."""


def check(options: Checked) -> None:
    """Checks each field of `options` against its type, then all together. Raises `OptionError` for the first problem."""
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
    """Returns an instance of the dataclass `kind` made from JSON values; `where` names their source in error messages."""
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
        return kind(**(kind.updated(typed) if issubclass(kind, Checked) else typed))
    except OptionError as error:
        raise SubquadError(f"{where}: {error}") from None


def read_kind(registry: Mapping[str, type[Any]], values: object, where: str) -> Any:
    """Returns an instance of the dataclass that `registry` has under the field ``kind`` of `values`."""
    kind = values.get("kind") if isinstance(values, Mapping) else None
    if not isinstance(values, Mapping) or not isinstance(kind, str) or kind not in registry:
        raise SubquadError(f"{where} must have a kind out of {', '.join(registry)}, but is {excerpt(values)}")
    return read(registry[kind], {name: value for name, value in values.items() if name != "kind"}, where)


def read_as(hint: Any, value: object, where: str) -> Any:
    """Returns a value from a file as the type `hint`, for types that are not dataclasses, such as ``dict[str, int]``."""
    return _from_json(_adapter(hint), value, where)


def excerpt(value: object) -> str:
    """The repr of a value, shortened to fit into a message."""
    return _SHORT.repr(value)


_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 60


def _from_json(adapter: TypeAdapter[Any], value: object, where: str) -> Any:
    """Converts a JSON value to Python's types. Instances of dataclasses are checked and returned as they are."""
    try:
        if dataclasses.is_dataclass(value):
            return adapter.validate_python(value)
        return adapter.validate_json(json.dumps(value))
    except (ValidationError, RecursionError) as error:
        problem = _problem(error, value) if isinstance(error, ValidationError) else "is nested too deep"
        raise SubquadError(f"{where} {problem}") from None


@cache
def _adapters(kind: Any) -> dict[str, TypeAdapter[Any]]:
    """Validators of the fields that the constructor of a dataclass takes, by name."""
    hints = get_type_hints(kind, include_extras=True)
    return {field.name: _adapter(hints[field.name]) for field in dataclasses.fields(kind) if field.init}


@cache
def _adapter(hint: Any) -> TypeAdapter[Any]:
    if dataclasses.is_dataclass(bare := get_args(hint)[0] if get_origin(hint) is Annotated else hint):
        return TypeAdapter(InstanceOf[bare])  # type: ignore[misc, valid-type]  # its fields were checked when it was made
    if is_typeddict(hint):  # a TypedDict has its own configuration
        return TypeAdapter(hint)
    return TypeAdapter(hint, config=STRICT)


def _problem(error: ValidationError, value: object) -> str:
    """What is wrong with `value`, as the rest of a sentence that begins with its name."""
    first, *others = error.errors(include_url=False)
    place = _place(first["loc"], value)
    if first["type"] == "missing":
        return f"{place}lacks {excerpt(first['loc'][-1])}: the file is damaged"
    alternatives = [_rule(detail) for detail in (first, *others) if _place(detail["loc"], value) == place]
    shown = value if first["type"] == "json_invalid" else first["input"]
    return f"{place}must be {' or '.join(dict.fromkeys(alternatives))}, but is {excerpt(shown)}"


def _rule(error: ErrorDetails) -> str:
    """What a value must be, for the rule that pydantic says was broken."""
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
    """The position of a part inside a nested value, such as ``[2]['name']``. Path elements that name a type are left out."""
    words = []
    for part in path:
        is_key = isinstance(value, Mapping) and part in value
        is_index = isinstance(value, list | tuple) and isinstance(part, int) and part < len(value)
        if is_key or is_index:
            value = value[part]
            words.append(f"[{excerpt(part)}]")
    return "".join(words) + " " * bool(words)
