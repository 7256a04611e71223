"""What a check found: whether a property holds, the number that decides, and two lines that show it."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from subquad.checking import excerpt
from subquad.errors import SubquadError
from subquad.results import place_of

Verdict = Literal["holds", "fails", "not asked", "not decided", "measured"]


@dataclass(frozen=True)
class Finding:
    """The answer to one question."""

    check: str
    """Name of the property, such as "padding"."""
    verdict: Verdict
    sentence: str
    """What was compared and what came out, or why it was not asked."""
    aspect: str = ""
    """Which of several comparisons decided, such as "other contents of padding, right"."""
    value: float | None = None
    """The measured number; None if there is none, or if it is not finite."""
    allowed: float | None = None
    """Largest number with which the property holds."""
    form: str = ""
    """The form that was asked: "bidirectional", "causal", or empty for a whole model."""
    low: float | None = None
    """Lower end of the number's interval."""
    high: float | None = None
    """Upper end of the number's interval."""
    reproducer: str = ""
    """Two lines of Python that show a failure."""

    def __str__(self) -> str:
        return f"{self.check}{f' ({self.form})' if self.form else ''}: {self.verdict}: {self.sentence}"

    def row(self) -> dict[str, Any]:
        """The finding as a row of a run: its value is whether the property holds, and is missing where that is open."""
        fields = {name: value for name, value in vars(self).items() if value not in (None, "") and name != "value"}
        truth = {"holds": 1, "fails": 0}.get(self.verdict)
        measured = {} if self.value is None else {"measured": self.value}
        return {"metric": "held", "value": truth, "unit": "truth", **fields, **measured}

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> "Finding":
        """The finding that a row holds."""
        if row["verdict"] not in get_args(Verdict):
            raise SubquadError(f"{place_of(row)}: {excerpt(row['verdict'])} is no verdict: mend the row or take it out")
        names = {name for name in cls.__dataclass_fields__ if name != "value"}
        needed = {name: row[name] for name in ("check", "sentence")}  # what is missing is said with its line
        return cls(value=row.get("measured"), **needed | {name: row[name] for name in names if name in row})


def not_asked(check: str, reason: str) -> Finding:
    """A property that cannot be asked of this callable, and why."""
    return Finding(check, "not asked", reason)


def judged(check: str, sizes: dict[str, float], allowed: float, says: str) -> Finding:
    """Decides by the largest of several differences, each named by what was compared."""
    name = max(sizes, key=lambda name: sizes[name])
    value = sizes[name]
    finite = math.isfinite(value)
    amount = f"by {value:.2g} of their size" if finite else "to numbers that are not finite"
    verdict: Verdict = "holds" if value <= allowed else "fails"
    sentence = f"{says} {amount} ({name})"
    return Finding(check, verdict, sentence, name, value if finite else None, allowed)
