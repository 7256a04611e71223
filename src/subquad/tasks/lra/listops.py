"""ListOps (Nangia and Bowman 2018), long: the value of a nested expression such as ``[MAX 4 [MIN 2 3 ] 1 ]``.

Expressions are drawn by the grammar of the Long Range Arena: below the largest depth a node is an operator with probability
1/4, with 2 to 10 arguments, and otherwise a digit; expressions that are too short or too long are drawn again.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import numpy as np
from annotated_types import Ge, Le

from subquad.checking import AtLeastTwo, Count, Seed, Whole, excerpt
from subquad.data.splits import SplitName
from subquad.data.tables import Tally, find_column, read_table
from subquad.data.texts import files_at
from subquad.errors import SubquadError
from subquad.tasks.lra.base import ArenaOptions, Unlabelled
from subquad.tasks.lra.files import split_files
from subquad.tasks.lra.sources import Example, Loaded, Source, stored

OPERATORS = ("[MIN", "[MAX", "[MED", "[SM")
END = "]"
WORDS = (*map(str, range(10)), *OPERATORS, END)
"""Words of an expression, in the order of their tokens: digits, operators, and the end of an operator's arguments."""
TOKEN = {word: token for token, word in enumerate(WORDS)}
PARENTHESES = ("(", ")")
"""Words of the released files that say nothing beyond what brackets say, and are left out."""
OPERATOR_SHARE = 0.25
"""Probability that a node below the largest depth is an operator."""
DEEPEST = 200
"""Largest depth that can be asked for."""
TRIES = 100_000
"""Number of expressions drawn in vain after which the limits are taken to be impossible."""
SPLITS: tuple[SplitName, ...] = ("train", "development", "test")
SHOWN = 60
"""Largest number of characters of an expression that a sample shows."""


@dataclass(frozen=True)
class ListOps(ArenaOptions):
    """Long Range Arena: compute nested lists of MIN, MAX, MED (median) and SM (sum modulo 10). Drawn by the grammar."""

    shortest: Whole = 100  # expressions have more words than this; 500 in the paper
    largest: AtLeastTwo = 256  # expressions have fewer words than this; 2000 in the paper
    depth: Annotated[int, Ge(1), Le(DEEPEST)] = 10  # largest depth of an expression; a single operator has depth 2
    arguments: AtLeastTwo = 10  # largest number of arguments of an operator
    examples: Count = 96_000  # number of different training expressions
    data_seed: Seed = 0  # seed of the expressions
    kind: str = field(default="lra-listops", init=False)

    def check(self) -> None:
        if not self.data and self.largest < self.shortest + 2:
            raise SubquadError(
                f"expressions have more words than --shortest, {self.shortest}, and fewer than --largest, {self.largest}: "
                "leave room between them"
            )

    @property
    def vocabulary(self) -> int:
        return len(WORDS)

    @property
    def longest(self) -> int:
        return self.largest

    def load(self) -> Loaded:
        """Reads the released files, or prepares to draw expressions, each from its own seed."""
        digits = [str(digit) for digit in range(10)]
        if self.data:
            splits = {
                split: read_expressions(path, self.largest) for split, path in split_files(self.data, (".tsv",)).items()
            }
            return Loaded(splits, digits, self.largest)
        self.draw("train", 0)  # refuses impossible limits before anything is trained
        counts = {"train": self.examples, "development": self.held_out, "test": self.tested or 2000}
        splits = {split: self._source(split, counts[split]) for split in SPLITS}
        return Loaded(splits, digits, self.largest)

    def _source(self, split: SplitName, count: int) -> Source:
        return Source(count, lambda number: self.draw(split, number))

    def draw(self, split: SplitName, number: int) -> Example:
        """Returns the expression with this number, which depends on the number, the split and the seed only."""
        drawing = random.Random(f"{self.data_seed} {split} {number}")
        for _ in range(TRIES):
            tokens: list[int] = []
            value = self._grow(drawing, tokens, 1)
            if value is not None and self.shortest < len(tokens) < self.largest:
                return Example(np.array(tokens, np.int64), value)
        raise SubquadError(
            f"no expression of depth {self.depth} with up to {self.arguments} arguments had more than {self.shortest} and "
            f"fewer than {self.largest} words in {TRIES:,} tries: give other --shortest, --largest, --depth or --arguments"
        )

    def _grow(self, drawing: random.Random, tokens: list[int], depth: int) -> int | None:
        """Appends the tokens of a node, and returns its value; None if the expression has become too long."""
        if len(tokens) >= self.largest:
            return None
        if depth >= self.depth or drawing.random() > OPERATOR_SHARE:
            digit = drawing.randrange(10)
            tokens.append(digit)
            return digit
        operator = drawing.choice(OPERATORS)
        tokens.append(TOKEN[operator])
        values = []
        for _ in range(drawing.randint(2, self.arguments)):
            value = self._grow(drawing, tokens, depth + 1)
            if value is None:
                return None
            values.append(value)
        tokens.append(TOKEN[END])
        return apply(operator, values)

    def parse(self, words: Sequence[str], longest: int) -> Example:
        return Example(expression_tokens(" ".join(words), longest), 0)

    def spell(self, example: Example) -> str:
        text = " ".join(WORDS[token] for token in example.tokens)
        return text if len(text) <= SHOWN else f"{text[:SHOWN]} ..."

    def read_unlabelled(self, path: Path, longest: int) -> Unlabelled:
        """Reads expressions from the column Source of a table."""
        ((file, name), *_) = files_at(path, (".tsv", ".csv"))
        rows = _rows(file, labelled=False)
        examples = [Example(_placed(text, f"{name}:{line}", longest), 0) for line, text, _ in rows]
        return Unlabelled([f"{name}:{line}" for line, _, _ in rows], examples)


def apply(operator: str, values: Sequence[int]) -> int:
    """The value of an operator. The median of an even number of values is the mean of the middle two, rounded down."""
    if operator == "[MIN":
        return min(values)
    if operator == "[MAX":
        return max(values)
    if operator == "[SM":
        return sum(values) % 10
    ordered, middle = sorted(values), len(values) // 2
    return ordered[middle] if len(values) % 2 else (ordered[middle - 1] + ordered[middle]) // 2


def expression_tokens(text: str, longest: int) -> np.ndarray:
    """The tokens of an expression. Raises `SubquadError` for one that is not well-formed or too long."""
    words = [word for word in text.replace("]", " ] ").split() if word not in PARENTHESES]
    if unknown := next((word for word in words if word not in TOKEN), None):
        raise SubquadError(
            f"{excerpt(unknown)} is no word of an expression, which are 0 to 9, {', '.join(OPERATORS)} and {END}"
        )
    open_lists = 0
    for place, word in enumerate(words):
        if place and not open_lists:
            raise SubquadError(f"the expression goes on after its end, with {word!r}: give one list")
        if word == END and (words[place - 1] in OPERATORS or not place):
            raise SubquadError("a list of the expression is empty: give each operator a digit or a list")
        open_lists += (word in OPERATORS) - (word == END)
    if not words or open_lists:
        raise SubquadError(
            f"the expression lacks {open_lists} of its {END}: close every list" if words else "give an expression"
        )
    if len(words) > longest:
        raise SubquadError(f"the model reads {longest} words, but the expression has {len(words)}")
    return np.array([TOKEN[word] for word in words], np.int64)


def read_expressions(path: Path, longest: int) -> Source:
    """Reads a released file: a line of column names, then an expression and its value in each line."""
    tokens, labels = [], []
    for line, text, target in _rows(path, labelled=True):
        where = f"{path.name}:{line}"
        if target not in WORDS[:10]:
            raise SubquadError(f"{where}: the value must be a digit from 0 to 9, but is {excerpt(target)}")
        tokens.append(_placed(text, where, longest).astype(np.uint8))
        labels.append(int(target))
    if not tokens:
        raise SubquadError(f"{path} holds no expressions: it should have the columns Source and Target, and a line for each")
    return stored(tokens, labels)


def _placed(text: str, where: str, longest: int) -> np.ndarray:
    try:
        return expression_tokens(text, longest)
    except SubquadError as error:
        raise SubquadError(f"{where}: {error}; if it is too long, give a larger --largest") from None


def _rows(path: Path, *, labelled: bool) -> list[tuple[int, str, str]]:
    """Line number, expression and value of each line of a table. Values are empty unless `labelled`."""

    def choose(names: list[str]) -> dict[str, str]:
        roles = {"source": "Source", **({"target": "Target"} if labelled else {})}
        return {
            role: find_column(path, names, name, (name,), "the name " + name, "expressions") for role, name in roles.items()
        }

    rows: list[tuple[int, str, str]] = []
    for chunk in read_table(path, choose, Tally(path), quoted=False):
        targets = chunk.columns.get("target", [""] * len(chunk.lines))
        rows += zip(chunk.lines.tolist(), chunk.columns["source"], (target.strip() for target in targets), strict=True)
    return rows
