"""Synchronization with a device, and its peak memory."""

import re
from collections.abc import Callable
from typing import Any

import torch

from subquad.errors import SubquadError
from subquad.measure.memory import peak_extra_bytes

REASONS = {
    "cuda": "a PyTorch that was built for CUDA or ROCm, and a GPU with its driver",
    "mps": "macOS 14 or later on Apple silicon",
    "xpu": "a PyTorch that was built for Intel's GPUs, and one with its driver",
}
"""What a machine needs for a type of device."""


def require_device(name: str, dtype: str = "float32") -> None:
    """Raises `SubquadError` for a device that this machine lacks, or that does not compute with a data type."""
    try:
        device = torch.device(name)
        present = 1 if device.type == "cpu" else torch.get_device_module(device).device_count()
    except (RuntimeError, AttributeError):
        raise SubquadError(f"{name!r} is no device that PyTorch knows: use cpu, cuda, cuda:1, mps or xpu") from None
    if (device.index or 0) >= present:
        needed = f", which needs {REASONS[device.type]}" if device.type in REASONS else ""
        raise SubquadError(
            f"the device {name!r} is not there: PyTorch sees {present} of the kind {device.type}{needed}; use cpu"
        )
    if device.type == "mps" and dtype == "float64":
        raise SubquadError("the device 'mps' has no float64: use --dtype float32, or --device cpu")


def unsupported(error: BaseException, device: str) -> str | None:
    """Returns a sentence for an error that says that a device lacks an operation of PyTorch; None for other errors."""
    if device.startswith("cpu") or not isinstance(error, NotImplementedError):
        return None
    operator = re.search(r"aten::[\w.]+", str(error))
    which = "an operation" if operator is None else f"the operation {operator[0]}"
    fallback = "set PYTORCH_ENABLE_MPS_FALLBACK=1, with which the CPU computes it, or " if device.startswith("mps") else ""
    return f"this PyTorch does not support {which} on {device}: {fallback}use --device cpu"


def device_name(device: str) -> str | None:
    """Returns the name of a GPU as its driver gives it; None for other devices."""
    return torch.cuda.get_device_name(torch.device(device)) if device.startswith("cuda") else None


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
