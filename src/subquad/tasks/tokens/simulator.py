"""Made-up sequences whose structure is known, and so is how well they can be predicted.

To predict the next symbol: with probability `ECHO` a symbol is that `LAG` places before it, and otherwise it is drawn by a
Markov chain. N-grams do not reach so far back. To predict a label: half of the sequences of a Markov chain are reversed, so
that single symbols tell nothing and their order everything.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray

from subquad.checking import AtLeastTwo, Checked, Count, Seed
from subquad.tasks.tokens.forms import Form
from subquad.tasks.tokens.loading import SymbolSequences

ECHO, LAG = 0.5, 12
CONCENTRATION = 0.3
"""Parameter of the Dirichlet distribution of the chain's transitions: few symbols are likely after each."""
CLASSES = ("as it came", "reversed")


@dataclass(frozen=True)
class Simulator(Checked):
    """Draws sequences of random lengths around a mean length."""

    sequences: Count
    symbols: AtLeastTwo
    mean_length: Count
    seed: Seed
    labelled: bool

    @property
    def chain(self) -> Float[ndarray, "k k"]:
        """Probability of each symbol after each symbol."""
        return np.random.default_rng(self.seed).dirichlet(np.full(self.symbols, CONCENTRATION) + 1e-3, size=self.symbols)

    def draw(self) -> SymbolSequences:
        """The sequences, with labels if these are to be predicted."""
        rng = np.random.default_rng([self.seed, 1])
        shortest, longest = max(1, self.mean_length * 3 // 4), max(1, self.mean_length * 5 // 4)
        lengths = rng.integers(shortest, longest + 1, self.sequences)
        drawn = self._walk(int(lengths.max()), rng)
        reversed_rows = rng.random(self.sequences) < 0.5
        sequences = []
        for row, length, is_reversed in zip(drawn, lengths, reversed_rows, strict=True):
            sequences.append((row[:length][::-1] if is_reversed and self.labelled else row[:length]).astype(np.int32))
        names = [f"sequence {at + 1}" for at in range(self.sequences)]
        labels: list[str | None] = [CLASSES[int(is_reversed)] for is_reversed in reversed_rows]
        alphabet = [f"s{at}" for at in range(self.symbols)]
        return SymbolSequences(names, sequences, alphabet, labels if self.labelled else None, Form(), {})

    def _walk(self, longest: int, rng: np.random.Generator) -> Int[ndarray, "sequences longest"]:
        ends = np.cumsum(self.chain, axis=1)
        walked = np.zeros((self.sequences, longest), np.int64)
        walked[:, 0] = rng.integers(self.symbols, size=self.sequences)
        for at in range(1, longest):
            chances = rng.random(self.sequences)
            walked[:, at] = (ends[walked[:, at - 1]] < chances[:, None]).sum(1).clip(max=self.symbols - 1)
            if at >= LAG and not self.labelled:
                walked[:, at] = np.where(rng.random(self.sequences) < ECHO, walked[:, at - LAG], walked[:, at])
        return walked

    def best_nats(self, sequences: SymbolSequences) -> list[Float[ndarray, "n"]]:
        """Negative log-probability of each symbol under the law that it was drawn by."""
        chain = self.chain
        nats = []
        for sequence in sequences.sequences:
            chances = np.full(len(sequence), 1 / self.symbols)
            chances[1:] = chain[sequence[:-1], sequence[1:]]
            if len(sequence) > LAG:
                chances[LAG:] = ECHO * (sequence[LAG:] == sequence[:-LAG]) + (1 - ECHO) * chances[LAG:]
            nats.append(-np.log(np.maximum(chances, 1e-300)))
        return nats

    def best_accuracy(self, sequences: SymbolSequences) -> float:
        """Accuracy of the likelihood ratio of both directions, which no model can beat but by chance."""
        logs = np.log(np.maximum(self.chain, 1e-300))
        right = []
        assert sequences.labels is not None
        for sequence, label in zip(sequences.sequences, sequences.labels, strict=True):
            forward, backward = logs[sequence[:-1], sequence[1:]].sum(), logs[sequence[1:], sequence[:-1]].sum()
            right.append(CLASSES[int(backward > forward)] == label)
        return float(np.mean(right))
