"""The sequences of a run by split, their vocabulary and labels, and what a run stores of them."""

from collections.abc import Mapping
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray
from typing_extensions import TypedDict

from subquad.checking import STRICT, Whole, read_as
from subquad.data.splits import SplitName, shuffled
from subquad.errors import SubquadError
from subquad.results import place_of
from subquad.tasks.base import DataSize
from subquad.tasks.targets.kinds import learn_target, target_from
from subquad.tasks.targets.labels import Labelled, label_column
from subquad.tasks.targets.sourced import (
    FEW,
    SPLITS,
    USES,
    check_same,
    divide_told,
    goal_line,
    label_groups,
    resolve_goal,
    target_json,
)
from subquad.tasks.targets.target import Target
from subquad.tasks.tokens.loading import SymbolSequences
from subquad.tasks.tokens.options import TokenOptions
from subquad.tasks.tokens.vocabulary import UNKNOWN, Vocabulary, learn_vocabulary

TENTH = 10
SHORTEST = 30
"""Smallest number of tokens of sequences that are cut into splits."""


class LearnedFields(TypedDict):
    """Types of the fields that a run stores about its sequences."""

    __pydantic_config__ = STRICT  # type: ignore[misc]

    goal: Literal["next", "label"]
    vocabulary: dict[str, Any]
    target: dict[str, Any] | None
    sequences: Whole
    tokens: Whole


class Encoded(NamedTuple):
    """Sequences of a split with their tokens, and with their targets if labels are predicted."""

    raw: SymbolSequences
    tokens: list[Int[ndarray, "n"]]
    truth: Float[ndarray, "sequences k"]

    @property
    def lengths(self) -> Int[ndarray, "sequences"]:
        """Number of tokens of each sequence."""
        return np.array([len(tokens) for tokens in self.tokens], np.int64)


class Source:
    """Reads the sequences of a run on first use. Without stored fields, learns vocabulary and labels from them."""

    def __init__(self, options: TokenOptions, learned: Mapping[str, Any] | None = None) -> None:
        self.options = options
        self.place = f"{place_of(learned or {})}: learned"
        self.kept = None if learned is None else read_as(LearnedFields, learned, self.place)

    @cached_property
    def raw(self) -> SymbolSequences:
        """All sequences. Raises `SubquadError` if they are not those that the run was made with."""
        raw = self.options.load()
        if self.kept is not None:
            had, has = (self.kept["sequences"], self.kept["tokens"]), (len(raw.names), int(raw.lengths.sum()))
            check_same(self.options.source, ("sequences", "tokens"), had, has)
        return raw

    @cached_property
    def goal(self) -> Literal["next", "label"]:
        """What is predicted."""
        if self.kept is not None:
            return self.kept["goal"]
        return resolve_goal(self.options.goal, "next", self.options.source, has_labels=self.raw.labels is not None)

    @cached_property
    def labelled(self) -> Labelled:
        """The labels of all sequences as classes, several labels or numbers."""
        assert self.raw.labels is not None
        return label_column(self.options.source, self.raw.labels, self.options.target)

    @cached_property
    def splits(self) -> dict[SplitName, SymbolSequences]:
        """The sequences of each split: as files tell, or drawn by their names and the seed.

        Fewer than `FEW` sequences without labels are each cut into training, development and test, in this order.
        """
        raw = self.raw
        if self.goal == "label":
            return {split: raw.take(places) for split, places in self.labelled_places.items()}
        told = {split: raw.take(places) for split, places in raw.told.items()}
        if not told and len(raw.names) < FEW:
            return _cut(raw, self.options.source)
        rest = told.get("train", raw)
        order = shuffled(rest.names, self.options.split_seed).tolist()
        for split in ("test", "development"):
            if split not in told:
                size = max(1, len(rest.names) // TENTH)
                told[split], order = rest.take(order[:size]), order[size:]
        if not order:
            raise SubquadError(f"{self.options.source} has {len(raw.names)} sequences, too few to be divided: give more")
        return {**told, "train": rest.take(order)}

    @cached_property
    def labelled_places(self) -> dict[SplitName, list[int]]:
        """Indices of the labelled sequences of each split."""
        options, raw = self.options, self.raw
        groups = label_groups(self.labelled)
        return divide_told(raw.names, groups, raw.told, seed=options.split_seed, source=options.source)

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """The symbols that the model knows."""
        if self.kept is not None:
            return Vocabulary.from_json(self.kept["vocabulary"], f"{self.place}: vocabulary")
        return learn_vocabulary(self.splits["train"], rare=self.options.rare, most=self.options.vocabulary_size)

    @cached_property
    def target(self) -> Target:
        """What is predicted of a sequence, where labels are predicted."""
        if self.kept is not None:
            return target_from(self.kept["target"], f"{self.place}: target")
        return learn_target(self.labelled.kind, self.labelled.names, self.truth("train"))

    def truth(self, split: SplitName) -> Float[ndarray, "sequences k"]:
        """The targets of the sequences of a split; empty where the next token is predicted."""
        if self.goal == "next":
            return np.zeros((len(self.splits[split].names), 0))
        return self.labelled.targets[self.labelled_places[split]]

    def encoded(self, split: SplitName) -> Encoded:
        """The tokens of a split."""
        sequences = self.splits[split]
        return Encoded(sequences, self.encode(sequences), self.truth(split))

    def encode(self, sequences: SymbolSequences) -> list[Int[ndarray, "n"]]:
        """The tokens of sequences; for labels, the last ones of each, and an unknown token where there is none."""
        tokens = self.vocabulary.encode(sequences)
        if self.goal == "next":
            return tokens
        return [each[-self.options.latest :] if len(each) else np.array([UNKNOWN]) for each in tokens]

    @property
    def learned(self) -> dict[str, Any]:
        """The fields that a run stores."""
        return {
            "goal": self.goal,
            "vocabulary": self.vocabulary.as_json(),
            "target": target_json(self.target) if self.goal == "label" else None,
            "sequences": len(self.raw.names),
            "tokens": int(self.raw.lengths.sum()),
        }

    @property
    def data_size(self) -> DataSize:
        """Numbers of training sequences and of their tokens."""
        lengths = self.splits["train"].lengths
        return DataSize(len(lengths), int(lengths.sum()))

    @property
    def complaints(self) -> tuple[str, ...]:
        """Sentences about what was left out of the data."""
        more = tuple(self.labelled.complaints) if self.goal == "label" else ()
        return (*self.raw.complaints, *more)

    @property
    def description(self) -> list[str]:
        """Lines that say what the data hold and what was recognised."""
        raw, vocabulary = self.raw, self.vocabulary
        shortest, middle, longest = np.quantile(raw.lengths, (0.0, 0.5, 1.0))
        counts = ", ".join(f"{len(self.splits[split].names):,} {name}" for split, name in USES.items())
        unknown = np.mean(np.concatenate(vocabulary.encode(self.splits["test"])) == UNKNOWN)
        lines = [
            f"{len(raw.names):,} sequences of {shortest:,.0f} to {longest:,.0f} tokens, median {middle:,.0f}: {counts}",
            f"  {raw.form.said()}; {len(raw.alphabet):,} different ones, of which the model knows "
            f"{len(vocabulary.symbols):,}; {unknown:.2%} of the test tokens are unknown",
            *(f"  {said}" for said in raw.said),
        ]
        if self.goal == "next":
            return [*lines, "  goal: the next token (--goal next)"]
        return [*lines, goal_line(self.labelled, self.target)]


def _cut(raw: SymbolSequences, source: str) -> dict[SplitName, SymbolSequences]:
    """Cuts each sequence into its first 80% to learn from, the next 10% for development, and the last 10% for the test."""
    if raw.lengths.sum() < SHORTEST:
        raise SubquadError(f"{source} has {raw.lengths.sum()} tokens, too few to be divided: give at least {SHORTEST}")
    parts: dict[SplitName, list[ndarray]] = {split: [] for split in SPLITS}
    for sequence in raw.sequences:
        first, second = len(sequence) * 8 // 10, len(sequence) * 9 // 10
        for split, part in zip(SPLITS, (sequence[:first], sequence[first:second], sequence[second:]), strict=True):
            parts[split].append(part)
    cut = {split: _without_empty(raw._replace(sequences=sequences, labels=None)) for split, sequences in parts.items()}
    if not all(split.names for split in cut.values()):
        raise SubquadError(
            f"the sequences of {source} are too short to be cut into parts for training, development and test: give longer "
            f"ones, or at least {FEW}"
        )
    return cut


def _without_empty(sequences: SymbolSequences) -> SymbolSequences:
    return sequences.take(np.flatnonzero(sequences.lengths > 0).tolist())
