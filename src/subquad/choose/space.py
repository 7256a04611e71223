"""What is tried of each attention: the task's own setting first, then settings that Optuna suggests.

Suggestions come in generations. Each generation is a function of the seed and of the results so far, so that a race that
was interrupted asks for the same settings again.
"""

import dataclasses
import json
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from subquad.attention import options_from
from subquad.errors import SubquadError
from subquad.types import AttentionOptions

RATE = "learning_rate"
RATE_FACTOR = 4.0
"""Learning rates are searched from the default divided by this to the default times this."""
FIRST_RATES = (1.0, 0.4, 2.5)
"""Learning rates of the first settings, as multiples of the default: chance alone might leave a whole side out."""


class Setting(NamedTuple):
    """A learning rate and the options of an attention."""

    learning_rate: float
    attention: AttentionOptions

    def as_text(self) -> str:
        """The setting as JSON, for a row."""
        options: Any = self.attention
        return json.dumps({RATE: self.learning_rate, "attention": dataclasses.asdict(options)})

    @classmethod
    def from_text(cls, text: str) -> "Setting":
        """Reads a setting from a row."""
        try:
            fields = json.loads(text)
            return cls(float(fields[RATE]), options_from(fields["attention"], "a setting"))
        except (ValueError, KeyError, TypeError) as error:
            raise SubquadError(f"a row has a setting that cannot be read: {str(error)[:200]}; start a new race") from None

    @property
    def words(self) -> str:
        """The options that differ from their defaults, and the learning rate, in words."""
        parts = self.attention.parts
        plain = type(parts[0])() if len(parts) == 1 and not parts[0].traits.foreign else None
        values = {} if plain is None else _differing(self.attention, plain)
        return ", ".join(
            [*(f"{name.replace('_', ' ')} {value}" for name, value in values.items()), f"rate {self.learning_rate:.2g}"]
        )


class Tried(NamedTuple):
    """A setting and its score on the development sequences; None if it failed."""

    setting: Setting
    score: float | None


def _differing(options: Any, plain: Any) -> dict[str, str]:
    named = {field.name: getattr(options, field.name) for field in dataclasses.fields(options) if field.init}
    return {name: _label(value) for name, value in named.items() if value != getattr(plain, name)}


def _label(value: object) -> str:
    return str(getattr(value, "kind", value))


def import_optuna() -> Any:
    """Returns the package Optuna, which only the search needs. Raises `SubquadError` if it is not installed."""
    try:
        import optuna
    except ImportError:
        raise SubquadError(
            "choosing an attention needs the package optuna, which is not installed: pip install 'subquad[choose]'"
        ) from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


def suggest(
    start: Setting, length: int, count: int, tried: Sequence[Tried], *, good: str, seed: Sequence[int]
) -> list[Setting]:
    """Returns the next settings of an attention to try: the start if nothing was tried, then what Optuna suggests.

    Args:
        start: the setting that the task uses by default.
        length: the length of sequences for which options are worth trying.
        count: how many settings are wanted.
        tried: the settings of earlier generations with their scores.
        good: whether low or high scores are good.
        seed: numbers that the suggestions depend on.
    """
    optuna = import_optuna()
    first = [] if tried else [start]
    if len(first) >= count:
        return first[:count]
    values = _choices(start.attention, length)
    rate = optuna.distributions.FloatDistribution(
        start.learning_rate / RATE_FACTOR, start.learning_rate * RATE_FACTOR, log=True
    )
    known = {name: optuna.distributions.CategoricalDistribution(list(by_label)) for name, by_label in values.items()}
    distributions = {RATE: rate, **known}
    number = int(np.random.SeedSequence(list(seed)).generate_state(1)[0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about parts of Optuna that may still change
        sampler = optuna.samplers.TPESampler(seed=number, n_startup_trials=3, constant_liar=True)
        study = optuna.create_study(direction="maximize" if good == "high" else "minimize", sampler=sampler)
        for each in tried:
            if (told := _params(each.setting, values)) is not None and each.score is not None:
                study.add_trial(optuna.trial.create_trial(params=told, distributions=distributions, value=each.score))
        asked = [study.ask(distributions).params for _ in range(count - len(first))]
    settings = [*first, *(_setting(start, params, values) for params in asked)]
    if first and len(settings) > 1:
        settings[1] = settings[1]._replace(attention=_largest(start.attention, length))
    rates = [start.learning_rate * each for each in FIRST_RATES] if first else []
    return [setting._replace(learning_rate=rates[at]) if at < len(rates) else setting for at, setting in enumerate(settings)]


def _choices(attention: AttentionOptions, length: int) -> dict[str, dict[str, Any]]:
    """The values worth trying, by option and label, with the value that the attention has."""
    choices: dict[str, dict[str, Any]] = {}
    for name, values in attention.choices(length).items():
        mine = getattr(attention, name)
        choices[name] = {_label(value): value for value in values} | {_label(mine): mine}
    return choices


def _largest(attention: AttentionOptions, length: int) -> AttentionOptions:
    """The attention with the last value of each option worth trying, such as most features or the farthest reach."""
    options: Any = attention
    last = {name: values[-1] for name, values in attention.choices(length).items() if values}
    replaced: AttentionOptions = dataclasses.replace(options, **last)
    return replaced


def _params(setting: Setting, values: Mapping[str, Mapping[str, Any]]) -> dict[str, Any] | None:
    labels = {name: _label(getattr(setting.attention, name)) for name in values}
    if any(label not in values[name] for name, label in labels.items()):
        return None
    return {RATE: setting.learning_rate, **labels}


def _setting(start: Setting, params: Mapping[str, Any], values: Mapping[str, Mapping[str, Any]]) -> Setting:
    changed = {name: values[name][params[name]] for name in values}
    options: Any = start.attention
    return Setting(float(params[RATE]), dataclasses.replace(options, **changed))
