"""What `subquad error` measured: the error of FAVOR+ by number of features, and how many features reach an error."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from subquad.measure.bounds import features_for
from subquad.results import Row
from subquad.statistics import Interval
from subquad.words import between

ESTIMATES = ("positive", "hyperbolic", "trigonometric")
"""Kernels that estimate softmax, whose error falls with the number of features."""
USUAL_FEATURES = 256
"""Number of features of FAVOR+ by default, at which errors are compared."""


class InputsName(NamedTuple):
    """Names the queries and keys on which an error was measured."""

    name: str
    """random or model."""
    size: float
    """Standard deviation of random queries and keys."""

    @property
    def words(self) -> str:
        """The inputs in words."""
        return "the model's queries and keys" if self.name == "model" else f"random queries and keys of size {self.size:g}"


class Variant(NamedTuple):
    """A kernel and a projection of FAVOR+."""

    kernel: str
    projection: str


class Accuracy(NamedTuple):
    """An error that FAVOR+ is to stay below, and the number of features that this takes."""

    error: float
    inputs: InputsName
    reach: "Reach"
    timed_features: int
    """Number of features with which FAVOR+'s time and memory were measured, which grow in proportion to it."""
    others: "Mapping[InputsName, Reach]"
    """What the error takes on other inputs."""

    def sentences(self) -> list[str]:
        """How many features the error takes, on the inputs that decide and on others."""
        found = [self.reach.sentence(self.error, self.inputs)]
        if self.others:
            found.append(
                f"Elsewhere: {'; '.join(f'{inputs.words}: {other.brief}' for inputs, other in self.others.items())}."
            )
        return found


ErrorsByFeatures = dict[int, Interval]
"""Error by number of features, the mean over layers."""


class Reach(NamedTuple):
    """The number of features from which on an error is reached, or the smallest error that was measured."""

    variant: Variant
    features: int | None
    """Number of features, interpolated between measured ones; None if the error was not reached."""
    measured_features: int
    """The smallest measured number of features with which the error is reached, else the largest measured one."""
    measured: Interval
    """The error with so many features."""

    @property
    def brief(self) -> str:
        """The number of features in a few words."""
        return f"more than {self.measured_features} features" if self.features is None else f"{self.features} features"

    def sentence(self, error: float, inputs: InputsName) -> str:
        """How many features reach the error, in one sentence with the measured figure."""
        drawn = f"{self.variant.kernel} features along {self.variant.projection} directions"
        figure = f"measured {between(self.measured, '.3g')} with {self.measured_features}"
        if self.features is None:
            return f"FAVOR+ does not reach an error of {error:g} on {inputs.words} with {drawn}: {figure}, the most."
        return f"FAVOR+ reaches an error of {error:g} on {inputs.words} with {self.features} {drawn}: {figure}."


def output_errors(rows: Sequence[Row]) -> dict[InputsName, dict[Variant, ErrorsByFeatures]]:
    """Returns the relative errors of attention's output by inputs and variant, the most telling inputs first."""
    return averaged(rows, "output error")


def averaged(rows: Sequence[Row], metric: str) -> dict[InputsName, dict[Variant, ErrorsByFeatures]]:
    """Returns geometric means over layers of a metric. Numbers of features with an error that is not finite are left out."""
    by_cell: dict[tuple[InputsName, Variant, int], list[Row]] = defaultdict(list)
    for row in rows:
        if row["metric"] == metric:
            cell = InputsName(row["inputs"], row["size"]), Variant(row["kernel"], row["projection"]), row["features"]
            by_cell[cell].append(row)
    errors: dict[InputsName, dict[Variant, ErrorsByFeatures]] = {}
    for inputs, variant, features in sorted(by_cell, key=lambda cell: (_telling(cell[0]), cell[2])):
        layers = by_cell[inputs, variant, features]
        if all(row["value"] is not None for row in layers):
            errors.setdefault(inputs, {}).setdefault(variant, {})[features] = _geometric_mean(layers)
    return errors


def end_of(row: Row, end: str) -> float:
    """Returns one of the row's value, low and high; the value if the row has no interval."""
    return float(row["value"] if row.get(end) is None else row[end])


def reach(error: float, errors: Mapping[Variant, ErrorsByFeatures]) -> Reach:
    """Returns the variant that reaches the error with the fewest features; if none does, the one with the smallest error.

    Kernels that do not estimate softmax are left out, unless there are no others.
    """
    errors = {variant: errors[variant] for variant in errors if variant.kernel in ESTIMATES} or errors
    needed: dict[Variant, float] = {}
    for variant, by_features in errors.items():
        features = features_for(error, {count: interval.value for count, interval in by_features.items()})
        if features is not None:
            needed[variant] = features
    if needed:
        variant = min(needed, key=lambda candidate: needed[candidate])
        features = math.ceil(needed[variant] / 2) * 2  # some kernels have two features for each direction
        at = min(count for count in errors[variant] if count >= needed[variant])
        return Reach(variant, features, at, errors[variant][at])
    variant = min(errors, key=lambda candidate: errors[candidate][max(errors[candidate])].value)
    most = max(errors[variant])
    return Reach(variant, None, most, errors[variant][most])


def accuracy(error: float, rows: Sequence[Row], timed_features: int) -> Accuracy | None:
    """Returns what an error takes, decided by the most telling inputs of a measurement; None if there are none."""
    reaches = {inputs: reach(error, errors) for inputs, errors in output_errors(rows).items()}
    if not reaches:
        return None
    inputs, *others = reaches
    return Accuracy(error, inputs, reaches[inputs], timed_features, {name: reaches[name] for name in others})


def usual_variant(errors: Mapping[Variant, ErrorsByFeatures]) -> Variant:
    """Returns the variant that others are compared with: FAVOR+'s default if it was measured, else the first."""
    usual = Variant("positive", "orthogonal")
    return usual if usual in errors else next(iter(errors))


def usual_features(by_features: Mapping[int, Interval]) -> int:
    """Returns the measured number of features that is nearest to the usual one."""
    return min(by_features, key=lambda features: abs(math.log(features / USUAL_FEATURES)))


def _telling(inputs: InputsName) -> tuple[bool, float, float]:
    """Orders inputs: a model's first, then random ones by how near their size is to 1."""
    return inputs.name != "model", abs(math.log(inputs.size)), inputs.size


def _geometric_mean(rows: Sequence[Row]) -> Interval:
    """Geometric means of values and of the ends of their intervals; an end that is not positive is taken as tiny."""
    logs = [[math.log(max(end_of(row, end), 1e-300)) for row in rows] for end in Interval._fields]
    return Interval(*(math.exp(sum(values) / len(values)) for values in logs))
