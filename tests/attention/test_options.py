"""Options are the file format."""

import json
from dataclasses import FrozenInstanceError, asdict

import pytest

from subquad import MECHANISMS, Linear
from subquad.attention import options_from
from subquad.feature_maps import FEATURE_MAPS
from tests.attention.cases import CASES


@pytest.mark.parametrize("name", CASES)
def test_options_come_back_from_json(name: str) -> None:
    options = CASES[name]
    assert options_from(json.loads(json.dumps(asdict(options)))) == options


def test_registries_name_things_as_they_name_themselves() -> None:
    assert {name: options().kind for name, options in MECHANISMS.items()} == {name: name for name in MECHANISMS}
    assert {name: options().kind for name, options in FEATURE_MAPS.items()} == {name: name for name in FEATURE_MAPS}


def test_every_feature_map_works_in_linear_attention() -> None:
    """The suite of the contract covers them: this keeps a new one from being left out of it."""
    covered = {case.feature_map.kind for case in CASES.values() if isinstance(case, Linear)}
    assert covered == set(FEATURE_MAPS)


def test_options_are_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        Linear().kind = "other"  # type: ignore[misc]
