"""Devices: those that are there, and a stand-in for those that are not."""

from types import SimpleNamespace

import pytest
import torch

from subquad.errors import SubquadError
from subquad.measure.devices import peak_bytes, require_device, wait_for


def test_what_is_not_there_is_refused() -> None:
    require_device("cpu")
    with pytest.raises(SubquadError, match="'abacus' is no device that PyTorch knows"):
        require_device("abacus")
    if not torch.cuda.is_available():
        with pytest.raises(SubquadError, match="the device 'cuda' is not there"):
            require_device("cuda")


def test_the_allocators_peak_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU: wait, forget the old peak, run, wait, and take the new peak above what was there."""
    calls: list[str] = []
    module = SimpleNamespace(
        synchronize=lambda: calls.append("wait"),
        reset_peak_memory_stats=lambda: calls.append("forget"),
        memory_allocated=lambda: 100,
        max_memory_allocated=lambda: 350,
    )
    monkeypatch.setattr(torch, "get_device_module", lambda device: module)
    assert peak_bytes("cuda", lambda: calls.append("run")) == 250
    assert calls == ["wait", "forget", "run", "wait"]
    wait_for("cuda")
    assert calls[-1] == "wait"


def test_a_device_that_does_not_tell_its_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[bool] = []
    monkeypatch.setattr(torch, "get_device_module", lambda device: SimpleNamespace(synchronize=lambda: None))
    assert peak_bytes("mps", lambda: ran.append(True)) is None
    assert ran == [True]
