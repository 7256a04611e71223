"""Checks the shapes that annotations promise, while tests run, in every module that annotates tensors."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args

from beartype import beartype
from jaxtyping import AbstractArray

SOURCE = Path(__file__).parents[1] / "src"
ANNOTATION = re.compile(r'\[(Tensor|ndarray), "|(:|->|\|) (Queries|Keys|Values|Mixed|Keep|Features)\b')


def annotated_modules() -> Iterator[str]:
    """Names of the modules of subquad whose functions have annotations with shapes."""
    for path in sorted(SOURCE.rglob("*.py")):
        if ANNOTATION.search(path.read_text()):
            parts = path.relative_to(SOURCE).with_suffix("").parts
            yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def check_shapes(function: Callable[..., Any]) -> Callable[..., Any]:
    """Applies beartype to the annotations that have a shape. Options are checked by `subquad.checking`, in words."""
    function.__annotations__ = {name: hint for name, hint in function.__annotations__.items() if _has_shape(hint)}
    return beartype(function) if function.__annotations__ else function


def _has_shape(hint: Any) -> bool:
    return (isinstance(hint, type) and issubclass(hint, AbstractArray)) or any(map(_has_shape, get_args(hint)))
