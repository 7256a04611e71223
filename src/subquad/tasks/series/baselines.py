"""Forecasts without a trained model: last value, seasonal, drift, and a linear autoregression by least squares.

Each gives a point forecast. Its quantiles are those of its errors on training windows, by step and channel.
"""

from collections.abc import Callable, Mapping

import numpy as np
from jaxtyping import Bool, Float
from numpy import ndarray

from subquad.tasks.series.model import LEVELS

Context = Float[ndarray, "w n c"]
Points = Float[ndarray, "w h c"]
MOST_LAGS = 128
"""Largest number of last steps that the autoregression reads."""
MOST_TRIED = 8
"""Largest number of channels by which it is chosen how many steps the autoregression reads."""
FITTED = 0.7
"""Share of the training windows that the autoregression is fitted to while its number of steps is chosen."""
PENALTY = 1e-3
"""Penalty on squared weights of the autoregression, relative to the variance of its inputs."""


def filled(values: Context, mask: Bool[ndarray, "w n c"]) -> Context:
    """Values in which each missing one is the last known before it, or else the first known one, or 0 without any."""
    length = values.shape[1]
    places = np.where(mask, np.arange(length)[None, :, None], -1)
    last = np.maximum.accumulate(places, axis=1)
    first = np.where(mask.any(1), mask.argmax(1), -1)[:, None, :]
    at = np.where(last >= 0, last, first)
    taken = np.take_along_axis(values, np.maximum(at, 0), axis=1)
    return np.where(at >= 0, taken, 0.0).astype(np.float64)


def last_value(context: Context, horizon: int) -> Points:
    """The last value for all steps."""
    return np.repeat(context[:, -1:], horizon, axis=1)


def drift(context: Context, horizon: int) -> Points:
    """The line through the first and the last value of the context, continued."""
    slope = (context[:, -1] - context[:, 0]) / max(1, context.shape[1] - 1)
    return context[:, -1:] + slope[:, None] * np.arange(1, horizon + 1)[None, :, None]


def seasonal(context: Context, horizon: int, season: int) -> Points:
    """The value a season before; where that is to be forecast, too, two seasons before, and so on."""
    length = context.shape[1]
    at = length - season + np.arange(horizon) % season
    return context[:, at]


class Autoregression:
    """A linear function of the last steps of a channel, relative to the last one, for each step and channel.

    How many last steps it reads is chosen by the error on the last of the windows that it is fitted to.
    """

    def __init__(self, context: Context, future: Points, known: Bool[ndarray, "w h c"]) -> None:
        lags = [at for at in (1, 2, 4, 8, 16, 32, 64, MOST_LAGS) if at < context.shape[1]]
        fitted = max(1, int(FITTED * len(context)))
        errors = {}
        some, came, is_known = (part[:, :, :MOST_TRIED] for part in (context, future, known))
        for self.lags in (*lags, min(MOST_LAGS, context.shape[1])):
            self.weights = self._fit_all(some[:fitted], came[:fitted], is_known[:fitted])
            missed = np.abs(self(some[fitted:], future.shape[1]) - came[fitted:])
            errors[self.lags] = float(np.where(is_known[fitted:], missed, 0.0).sum())
        self.lags = min(errors, key=errors.__getitem__)
        self.weights = self._fit_all(context, future, known)

    def _fit_all(self, context: Context, future: Points, known: Bool[ndarray, "w h c"]) -> Float[ndarray, "c lags h"]:
        channels = range(context.shape[2])
        return np.stack([self._fit(context[:, :, at], future[:, :, at], known[:, :, at]) for at in channels])

    def _inputs(self, context: Float[ndarray, "w n"]) -> Float[ndarray, "w lags"]:
        relative = context[:, -self.lags :] - context[:, -1:]
        relative[:, -1] = context[:, -1]  # the last value itself, for series that return to their mean
        return np.concatenate([relative, np.ones((len(context), 1))], axis=1)

    def _fit(
        self, context: Float[ndarray, "w n"], future: Float[ndarray, "w h"], known: Bool[ndarray, "w h"]
    ) -> Float[ndarray, "lags h"]:
        inputs = self._inputs(context)
        wanted = np.where(known, future - context[:, -1:], 0.0)
        weights = np.zeros((inputs.shape[1], future.shape[1]))
        penalty = PENALTY * len(inputs) * max(1e-12, float(inputs.var())) * np.eye(inputs.shape[1])
        if known.all():
            return np.linalg.solve(inputs.T @ inputs + penalty, inputs.T @ wanted)
        for step in range(future.shape[1]):
            rows = inputs[known[:, step]]
            weights[:, step] = np.linalg.solve(rows.T @ rows + penalty, rows.T @ wanted[known[:, step], step])
        return weights

    def __call__(self, context: Context, horizon: int) -> Points:
        """Point forecasts of all channels."""
        points = [self._inputs(context[:, :, at]) @ weights + context[:, -1:, at] for at, weights in enumerate(self.weights)]
        return np.stack(points, axis=2)


class Baselines:
    """Baselines fitted to training windows, and the quantiles of their errors there."""

    def __init__(
        self, context: Context, mask: Bool[ndarray, "w n c"], future: Points, known: Bool[ndarray, "w h c"], season: int
    ) -> None:
        whole, self.horizon = filled(context, mask), future.shape[1]
        forecasts: dict[str, Callable[[Context, int], Points]] = {"last value": last_value, "drift": drift}
        if 2 <= season <= context.shape[1]:
            forecasts["seasonal naive"] = lambda values, horizon: seasonal(values, horizon, season)
        forecasts["linear autoregression"] = Autoregression(whole, future, known)
        self.forecasts = forecasts
        self.errors = {
            name: _quantiles(future - forecast(whole, self.horizon), known) for name, forecast in forecasts.items()
        }
        self.usual = _quantiles(future, known)

    def predict(self, context: Context, mask: Bool[ndarray, "w n c"]) -> Mapping[str, Float[ndarray, "w h c q"]]:
        """Quantiles by the name of the baseline."""
        whole = filled(context, mask)
        return {
            name: forecast(whole, self.horizon)[..., None] + self.errors[name] for name, forecast in self.forecasts.items()
        }


def _quantiles(errors: Points, known: Bool[ndarray, "w h c"]) -> Float[ndarray, "h c q"]:
    """Quantiles over windows at `LEVELS`; 0 where no value is known."""
    masked = np.where(known, errors, np.nan)
    masked[:, ~known.any(0)] = 0.0
    return np.moveaxis(np.nanquantile(masked, LEVELS, axis=0), 0, -1)
