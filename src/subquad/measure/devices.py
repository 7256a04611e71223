"""Synchronization with a device, and its peak memory."""

from collections.abc import Callable
from typing import Any

import torch

from subquad.errors import SubquadError
from subquad.measure.memory import peak_extra_bytes


def require_device(name: str) -> None:
    """Raises `SubquadError` for a device that this machine lacks."""
    try:
        device = torch.device(name)
        present = 1 if device.type == "cpu" else torch.get_device_module(device).device_count()
    except (RuntimeError, AttributeError):
        raise SubquadError(f"{name!r} is no device that PyTorch knows: use cpu, cuda, cuda:1 and the like") from None
    if (device.index or 0) >= present:
        raise SubquadError(f"the device {name!r} is not there: PyTorch sees {present} of the kind {device.type}; use cpu")


def wait_for(device: str) -> None:
    """Waits until the device has finished all work."""
    if not device.startswith("cpu"):
        _module(device).synchronize()


def peak_bytes(device: str, run: Callable[[], object]) -> int | None:
    """Returns the peak memory during `run()` minus the memory before: resident on a CPU, allocated on other devices.

    Returns None for devices that do not report it, such as Apple's.
    """
    if device.startswith("cpu"):
        return peak_extra_bytes(run)
    module = _module(device)
    if not hasattr(module, "max_memory_allocated"):
        run()
        return None
    module.synchronize()
    module.reset_peak_memory_stats()
    before: int = module.memory_allocated()
    run()
    module.synchronize()
    return int(module.max_memory_allocated()) - before


def _module(device: str) -> Any:
    return torch.get_device_module(torch.device(device))
