"""Devices: those that are there, and a stand-in for those that are not."""

from types import SimpleNamespace

import pytest
import torch

from subquad.errors import SubquadError
from subquad.measure.devices import peak_bytes, require_device, unsupported, wait_for


def test_what_is_not_there_is_refused() -> None:
    require_device("cpu")
    with pytest.raises(SubquadError, match="'abacus' is no device that PyTorch knows"):
        require_device("abacus")
    if not torch.cuda.is_available():
        with pytest.raises(SubquadError, match="the device 'cuda' is not there"):
            require_device("cuda")


@pytest.mark.parametrize(("name", "needed"), [("mps", "macOS 14 or later on Apple silicon"), ("xpu:1", "Intel's GPUs")])
def test_apples_and_intels_devices_are_refused_in_one_sentence(
    name: str, needed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "get_device_module", lambda device: SimpleNamespace(device_count=lambda: 0))
    with pytest.raises(SubquadError, match=f"the device '{name}' is not there: PyTorch sees 0.*{needed}.*; use cpu"):
        require_device(name)


def test_a_type_that_a_device_lacks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_device_module", lambda device: SimpleNamespace(device_count=lambda: 1))
    require_device("mps", "bfloat16")
    require_device("xpu", "float64")
    with pytest.raises(SubquadError, match="the device 'mps' has no float64: use --dtype float32"):
        require_device("mps", "float64")


def test_an_operation_that_a_device_lacks_is_said() -> None:
    error = NotImplementedError("The operator 'aten::cummax.out' is not currently implemented for the MPS device.")
    said = unsupported(error, "mps")
    assert said is not None
    assert said.startswith("this PyTorch does not support the operation aten::cummax.out on mps: set PYTORCH_ENABLE_MPS")
    assert (
        unsupported(error, "xpu") == "this PyTorch does not support the operation aten::cummax.out on xpu: use --device cpu"
    )
    assert unsupported(error, "cpu") is None
    assert unsupported(RuntimeError("aten::cummax.out"), "mps") is None


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
