"""Settings are suggested again in the same way, within their bounds, and survive as text."""

import builtins
from typing import Any

import pytest

from subquad import Favor, Layers, Linear, Softmax, SubquadError
from subquad.attention import MECHANISMS
from subquad.choose.space import RATE_FACTOR, Setting, Tried, import_optuna, suggest

START = Setting(1e-2, Favor(features=64))


def test_the_first_setting_is_the_task_s_own() -> None:
    first, *others = suggest(START, 512, 4, [], good="high", seed=(0, 1, 0))
    assert first == START
    assert len(others) == 3
    for setting in others:
        assert 1e-2 / RATE_FACTOR <= setting.learning_rate <= 1e-2 * RATE_FACTOR
        assert isinstance(setting.attention, Favor)
        assert setting.attention.features in (32, 64, 128, 256)


def test_the_first_learning_rates_are_on_both_sides_of_the_default() -> None:
    rates = [setting.learning_rate for setting in suggest(START, 512, 5, [], good="high", seed=(0, 1, 0))]
    assert rates[:3] == pytest.approx([1e-2, 4e-3, 2.5e-2])
    assert suggest(START, 512, 2, [], good="high", seed=(0, 1, 0))[1].attention == Favor(features=256)
    later = suggest(START, 512, 3, [Tried(START, 0.1)], good="high", seed=(0, 1, 1))
    assert all(setting.learning_rate != pytest.approx(rate) for setting in later for rate in rates[:3])


def test_suggestions_depend_on_seed_and_results_only() -> None:
    first = suggest(START, 512, 4, [], good="high", seed=(0, 1, 0))
    tried = [Tried(setting, score) for setting, score in zip(first, (0.1, 0.5, None, 0.3), strict=True)]
    second = suggest(START, 512, 3, tried, good="high", seed=(0, 1, 1))
    assert second == suggest(START, 512, 3, tried, good="high", seed=(0, 1, 1))
    assert second != suggest(START, 512, 3, tried, good="high", seed=(5, 1, 1))
    assert START not in second


@pytest.mark.parametrize("name", MECHANISMS)
def test_choices_of_every_mechanism_can_be_built(name: str) -> None:
    start = Setting(1e-3, MECHANISMS[name]())
    for setting in suggest(start, 40, 5, [], good="low", seed=(3,)):
        assert Setting.from_text(setting.as_text()) == setting
        setting.attention.build(heads=2, head_dim=4)
        assert "rate" in setting.words


def test_layers_have_their_learning_rate_searched() -> None:
    start = Setting(1e-3, Layers((Linear(), Softmax())))
    settings = suggest(start, 40, 3, [], good="low", seed=(3,))
    assert {setting.attention for setting in settings} == {start.attention}
    assert len({setting.learning_rate for setting in settings}) == 3
    assert Setting.from_text(settings[2].as_text()) == settings[2]


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"learning_rate": "x", "attention": {}}', '{"learning_rate": 1}'])
def test_damaged_settings_are_refused(text: str) -> None:
    with pytest.raises(SubquadError, match="setting"):
        Setting.from_text(text)


def test_without_optuna_a_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    original = builtins.__import__

    def refuse(name: str, *rest: Any) -> Any:
        if name == "optuna":
            raise ImportError(name)
        return original(name, *rest)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(SubquadError, match=r"pip install 'subquad\[choose\]'"):
        import_optuna()
