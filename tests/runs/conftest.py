"""Runs are made and reported hundreds of times here."""

import pytest

from subquad.measure import fits


@pytest.fixture(autouse=True)
def _quick_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages whose charts are made but neither checked against their grammar nor packed with what draws them."""
    monkeypatch.setattr("altair.utils.schemapi.validate_jsonschema", lambda *given, **named: None)
    monkeypatch.setattr("subquad.report.page._scripts", lambda charts, script: iter(()))
    monkeypatch.setattr(fits.draw_costs, "__defaults__", (10,))
