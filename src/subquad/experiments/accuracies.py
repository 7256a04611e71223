"""Test accuracies of several seeds, as experiments on tasks with right and wrong answers compare them."""

from collections.abc import Mapping
from dataclasses import dataclass

from subquad.statistics import Interval, mean_over_seeds


@dataclass(frozen=True, kw_only=True)
class Accuracies:
    """Test accuracies by seed."""

    accuracies: Mapping[int, float]
    planned: int
    """Number of seeds that the scale has."""

    @property
    def accuracy(self) -> Interval:
        """Mean over seeds with its interval."""
        return mean_over_seeds(list(self.accuracies.values()))

    @property
    def is_complete(self) -> bool:
        """Whether all seeds are finished."""
        return len(self.accuracies) == self.planned
