"""The distribution of gaps without the history: a mixture of log-normal distributions, fitted by EM."""

import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from numpy import ndarray
from scipy.special import logsumexp

SAMPLE = 20_000
"""Largest number of gaps that a mixture is fitted to."""

ROUNDS = 100
"""Number of rounds of expectation-maximization."""

RAREST = 1e-4
"""Smallest weight of a component."""


class RenewalMixture(NamedTuple):
    """A mixture of normal distributions of log-gaps."""

    weights: Float[ndarray, "m"]
    means: Float[ndarray, "m"]
    deviations: Float[ndarray, "m"]

    def log_density(self, log_gaps: Float[ndarray, "gaps"]) -> Float[ndarray, "gaps"]:
        """Log-density of log-gaps."""
        return np.asarray(logsumexp(self._by_component(log_gaps), axis=1))

    def responsibilities(self, log_gaps: Float[ndarray, "gaps"]) -> Float[ndarray, "gaps m"]:
        """Probability of each component for each log-gap."""
        by_component = self._by_component(log_gaps)
        return np.exp(by_component - np.asarray(logsumexp(by_component, axis=1, keepdims=True)))

    def _by_component(self, log_gaps: Float[ndarray, "gaps"]) -> Float[ndarray, "gaps m"]:
        z = (log_gaps[:, None] - self.means) / self.deviations
        constants = np.log(self.weights) - np.log(self.deviations) - math.log(2.0 * math.pi) / 2.0
        return constants - np.square(z) / 2.0


def fit_renewal(log_gaps: Float[ndarray, "gaps"], components: int, least: float) -> RenewalMixture:
    """Fits a mixture whose components are no narrower than `least`.

    At the start, half of the components have equal shares of the gaps, and the others equal parts of the range, because the
    former are all alike if most gaps are of one size.
    """
    sample = np.sort(log_gaps)[:: -(-len(log_gaps) // SAMPLE)]
    by_share, by_range = -(-components // 2), components // 2
    means = np.concatenate(
        [
            np.quantile(sample, (np.arange(by_share) + 0.5) / by_share),
            np.linspace(float(np.quantile(sample, 0.01)), float(np.quantile(sample, 0.99)), by_range),
        ]
    )
    width = max(float(sample.std()) / 2.0, least)
    mixture = RenewalMixture(np.full(components, 1.0 / components), means, np.full(components, width))
    for _ in range(ROUNDS):
        shares = mixture.responsibilities(sample)
        sums = shares.sum(0) + RAREST
        # a component without gaps stays where it is
        means = (sample @ shares + RAREST * mixture.means) / sums
        squares = (shares * np.square(sample[:, None] - means)).sum(0) + RAREST * np.square(mixture.deviations)
        weights = np.maximum(sums / sums.sum(), RAREST)
        mixture = RenewalMixture(weights / weights.sum(), means, np.maximum(np.sqrt(squares / sums), least))
    return mixture
